"""Leases that grow old on the server at the word of a test: it waits for none, and none runs out because it is slow."""

from __future__ import annotations

import redis

LEASE_MS = 60_000
_OLD_MS, _YOUNG_MS = LEASE_MS * 2 // 3, LEASE_MS // 3
_PAGE = 10_000


class Ageing:
    """What is pending in a group, with leases of LEASE_MS.

    `age` lets most of a lease pass by the server's count; whoever renews it then has twenty real seconds to do so, and
    `is_renewed` tells that it happened.
    """

    def __init__(self, raw: redis.Redis, stream: str, group: str) -> None:
        self._raw, self._stream, self._group = raw, stream, group

    def age(self, *entry_ids: str) -> None:
        """Makes these messages, or all that are pending, as old as a holder lets them become only when it is dead."""
        self._set_idle(_OLD_MS, *entry_ids)

    def expire(self, *entry_ids: str) -> None:
        """Lets the leases of these messages, or of all that are pending, run out."""
        self._set_idle(2 * LEASE_MS, *entry_ids)

    def is_renewed(self, *entry_ids: str) -> bool:
        """Tells whether the leases of these messages, or of all that are pending, have begun anew since."""
        rows = self._pending(*entry_ids)
        return bool(rows) and all(row["time_since_delivered"] < _YOUNG_MS for row in rows)

    def _set_idle(self, idle_ms: int, *entry_ids: str) -> None:
        for row in self._pending(*entry_ids):
            self._raw.xclaim(
                self._stream, self._group, row["consumer"], 0, [row["message_id"]], idle=idle_ms, justid=True
            )  # fmt: skip

    def _pending(self, *entry_ids: str) -> list[dict[str, object]]:
        if not entry_ids:
            return list(self._raw.xpending_range(self._stream, self._group, "-", "+", _PAGE))
        return [
            row for item in entry_ids for row in self._raw.xpending_range(self._stream, self._group, item, item, 1)
        ]  # fmt: skip
