"""Theorem 1 as software: its bound and conditions, its constants measured, and a lab where its rates can be seen.

>>> from fedpg.theory import Setting, plan, terms
>>> federation = Setting(agents=10, alpha=0.3, horizon=10, discount=0.9, G=1.5, M=0.5, sigma=5.0, gap=2.0)
>>> terms(federation).total, plan(federation, epsilon=0.1).per_agent  # doctest: +SKIP
"""

from fedpg.theory.bound import (
    Condition,
    Constants,
    Plan,
    Setting,
    Terms,
    conditions,
    constants,
    paper_violations,
    plan,
    step_of,
    terms,
)
from fedpg.theory.measure import Measured, measure
from fedpg.theory.study import run_lab

__all__ = [
    "Condition",
    "Constants",
    "Measured",
    "Plan",
    "Setting",
    "Terms",
    "conditions",
    "constants",
    "measure",
    "paper_violations",
    "plan",
    "run_lab",
    "step_of",
    "terms",
]
