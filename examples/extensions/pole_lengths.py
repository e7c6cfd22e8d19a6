"""CartPole with a pole of a different length for each agent. The server, which evaluates, has the usual one.

    fedpg train --task pole_lengths:POLES --agents 10

H. Jin et al., "Federated reinforcement learning with environment heterogeneity", AISTATS 2022.
"""

import fedpg

LENGTHS = [round(0.1 + 0.8 * k / 9, 3) for k in range(10)]  # half the pole, in metres; usually 0.5
POLES = fedpg.make_task("CartPole-v1").vary({"half_length": LENGTHS})
