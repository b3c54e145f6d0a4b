"""What may be sent again after a failure: the whole rule, in one place.

| class      | examples                              | not executed for sure | outcome unknown |
|------------|---------------------------------------|-----------------------|-----------------|
| READ       | XPENDING, XRANGE, XINFO, TIME         | again                 | again           |
| IDEMPOTENT | fenced scripts, XGROUP CREATE         | again                 | again           |
| ONCE       | XREADGROUP >, claims, XADD            | again                 | never           |

The outcome is unknown after ConnectionLost and CommandTimeout; it is known to be "not executed" after
ConnectionFailed, ServerBusy, ReadOnlyServer and NotReplicating. Every other error reply is final.
"""

from __future__ import annotations

import random
from enum import Enum

from penstock.errors import ConnectionFailed, ConnectionLost, NotReplicating, ReadOnlyServer, ServerBusy

_NOT_EXECUTED = (ConnectionFailed, ServerBusy, ReadOnlyServer, NotReplicating)


class Repeat(Enum):
    """How often a command may take effect."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"

    def allows(self, error: BaseException) -> bool:
        """Tell whether the command may be sent again after the error."""
        if isinstance(error, _NOT_EXECUTED):
            return True
        return self is not Repeat.ONCE and isinstance(error, ConnectionLost)


def pause_s(failures: int, chance: random.Random, first_s: float = 0.02, longest_s: float = 2.0) -> float:
    """Return how long to wait after so many failures in a row: doubling, with jitter."""
    plain: float = min(first_s * 2 ** min(failures - 1, 16), longest_s)
    return plain * chance.uniform(0.5, 1.0)
