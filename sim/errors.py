"""The exceptions that this package raises on purpose.

ShardwiseError
├── InputError            something a user wrote cannot be used; carries every problem found
│   ├── UnitError         a quantity such as "32k" or "900 GB/s" cannot be read
│   ├── ModelError        a model description is incomplete or of a kind that is not modelled
│   ├── TopologyError     a machine cannot be built, or does not connect the GPUs
│   ├── LayoutError       a parallel layout cannot exist for this model on this machine
│   └── ScenarioError     a scenario file is wrong; problems carry file:line:col
├── ProgramError          a strategy's program does not type-check (a bug in the strategy)
├── FloorError            a predicted time is below its own physical floor (a bug in the simulator)
└── LostPartsError        workers of a study were lost too often; running it again continues
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong: where it stands, which key it is about, and what would work."""

    message: str
    key: str = ""
    where: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


class ShardwiseError(Exception):
    """Base class of all errors raised on purpose."""


class InputError(ShardwiseError):
    """Something a user wrote cannot be used.

    Parameters
    ----------
    problems
        Everything that was found wrong, so that a user fixes it in one go.
    """

    def __init__(self, problems: str | Problem | Iterable[str | Problem]):
        if isinstance(problems, (str, Problem)):
            problems = [problems]
        self.problems = tuple(p if isinstance(p, Problem) else Problem(p) for p in problems)
        super().__init__("\n".join(map(str, self.problems)))


def not_installed(what: str, extra: str) -> InputError:
    """The error for a package that comes with an extra of this one; ``what`` needs it."""
    return InputError(f"{what}; install it with: pip install 'shardwise[{extra}]', or in a checkout -e '.[{extra}]'")


class LostPartsError(ShardwiseError):
    """Workers of a study were lost so often that parts are missing; running it again continues."""


class UnitError(InputError, ValueError):
    """A quantity cannot be read."""


class ModelError(InputError):
    """A model description is incomplete, inconsistent, or of a kind that is not modelled."""


class TopologyError(InputError):
    """A machine cannot be built, or does not connect the GPUs that must talk."""


class LayoutError(InputError):
    """A parallel layout cannot exist for this model on this machine."""


class ScenarioError(InputError):
    """A scenario file is wrong."""


class ProgramError(ShardwiseError):
    """A strategy's program does not type-check: a bug in the strategy, not in the scenario."""


class FloorError(ShardwiseError):
    """A predicted time lies below the time that data-sheet bandwidth and peak allow."""
