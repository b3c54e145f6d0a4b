"""Where results are stored and waited for: the key shows that one exists, the stream contains it."""

from __future__ import annotations

import time

from penstock.errors import PenstockError
from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.runtime.aio import pause
from penstock.task import Result, decode_result, encode
from penstock.tasks.blocking_reads import BlockingReads

_SWEEP_S = 1.0  # a notice is a hint: so often the key itself is looked at
_MAX_BLOCKED = 32  # connections that block on the server; further callers poll
_POLL_S = 0.05
_STEP = 500


async def stored(client: StreamClient, keys: TaskKeys, task_id: str, wait_ms: int = 0) -> bytes | None:
    """Return the result of a task as it is stored; else take note that somebody waits for it for so long."""
    names = [keys.results, keys.done, keys.awaited]
    found: bytes | None = await client.run("tasks/await", names, [task_id, wait_ms], Repeat.IDEMPOTENT)
    return found


class ResultStore:
    """The results of one queue."""

    def __init__(self, client: StreamClient, keys: TaskKeys) -> None:
        self._client, self._keys = client, keys
        self._reads = BlockingReads(client, keys.index)
        self._blocked = 0

    async def push(self, result: Result) -> bool:
        """Store a result unless the task has one; False = it has, and it is another one."""
        keys = [self._keys.results, self._keys.done, self._keys.awaited, self._keys.notice(result.task_id)]
        args = [result.task_id, result.kind, result.status.value, encode(result)]
        # A repetition after a lost answer finds this very result, and says so.
        return bool(await self._client.run("tasks/result", keys, args, Repeat.IDEMPOTENT))

    async def get(self, task_id: str, wait_ms: int = 0) -> Result | None:
        """Return the result of a task, if there is one; else take note that somebody waits for it for so long."""
        raw = await stored(self._client, self._keys, task_id, wait_ms)
        return None if raw is None else decode_result(raw)

    async def wait(self, task_id: str, timeout_s: float) -> Result | None:
        """Return the result of a task as soon as there is one; None when the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            found = await self.get(task_id, max(0, int(min(left_s, _SWEEP_S) * 1000) + 1000) if left_s > 0 else 0)
            if found is not None or left_s <= 0:
                return found
            if self._blocked < _MAX_BLOCKED:
                await self._listen(task_id, min(left_s, _SWEEP_S))
            else:
                await pause(min(left_s, _POLL_S))

    async def _listen(self, task_id: str, timeout_s: float) -> None:
        notice = self._keys.notice(task_id)
        self._blocked += 1
        try:
            # From the list to the same list, so that other callers that wait for it are woken as well.
            command = ("BLMOVE", notice, notice, "LEFT", "LEFT", f"{timeout_s:.3f}")
            await self._reads.read(command, timeout_s, hands_out=False)
        except PenstockError:
            await pause(min(timeout_s, _POLL_S))  # the next read raises if Redis is unavailable
        finally:
            self._blocked -= 1

    async def trim(self, retention_ms: int) -> int:
        """Let go of results that are older than the retention; return how many."""
        gone = 0
        while True:
            keys = [self._keys.results, self._keys.done]
            entries, results = await self._client.run("tasks/retention", keys, [retention_ms, _STEP], Repeat.IDEMPOTENT)
            gone += int(results)
            if not entries:
                return gone

    async def close(self) -> None:
        """Close the connections."""
        await self._reads.close()
