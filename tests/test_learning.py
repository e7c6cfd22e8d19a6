"""CartPole is learnt while three of ten agents lie, and it is the aggregator that does it."""

from typing import Any

import numpy as np
import pytest

import fedpg
from fedpg import Run

pytestmark = pytest.mark.slow

BEST = 500.0
LEARNT = 400.0
NOT_LEARNT = 100.0


def trained(**settings: Any) -> Run:
    return fedpg.train(
        "CartPole-v1", agents=10, byzantine=3, attack="sign-flipping", trajectories=300, seed=0, **settings
    )


def at_the_end(run: Run) -> float:
    """The mean of the last ten evaluations: a single one may be a lucky or an unlucky moment."""
    return float(run.records.test_returns[-10:].mean())


def test_cartpole_is_learnt_under_attack_with_the_filter_and_not_without():
    """The bars are far from what seed 0 does. On a machine that rounds differently it is another run: seeds 0 to 3
    all end at 498 or more with the rule."""
    filtered, averaged = trained(), trained(aggregator="mean")

    # Both begin with the same policy, which cannot do it.
    first = [run.records.tests[0] for run in (filtered, averaged)]
    np.testing.assert_array_equal(*first)
    assert first[0].mean() < 20

    assert LEARNT < at_the_end(filtered) <= BEST
    assert at_the_end(averaged) < NOT_LEARNT

    # The run hands over what was learnt: it pushes to the side that the pole falls to.
    assert [int(filtered.policy([0.0, 0.0, lean, 5 * lean])) for lean in (-0.1, 0.1)] == [0, 1]
    honest, _ = filtered.records.accepted()
    assert honest.mean() > 6, "of 7"
    # Liars who are let in once all gradients vanish do no harm: the step is moved as far as chance alone moves it.
    assert filtered.records.mean_harm("harm_step") < 1.2
    assert averaged.records.mean_harm("harm_step") > 1.5
