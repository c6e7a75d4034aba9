"""The simulator against published measurements: ``shardwise validate``.

A group is rows of one kind with a reader and a predictor; ``GROUPS`` lists them. Rows that ship with the package are
in ``sim/data/truth``, each with the address of whoever published it; other folders in the same columns may take
their place. What cannot be predicted counts as a failure with a reason.
"""

from sim.validate.groups import GROUPS, validate
from sim.validate.result import Group, GroupReport, Outcome, Validation

__all__ = ["GROUPS", "Group", "GroupReport", "Outcome", "Validation", "validate"]
