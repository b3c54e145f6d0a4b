"""Runs a handler on every stream that a balancer owns: starts and cancels it, finishes or hands over the stream."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.balancer.commands import BalancerCommands
from penstock.balancer.holdings import Holdings, Ownership, is_ahead, surplus
from penstock.balancer.messages import LBSInfo, StreamAdded, StreamExpired
from penstock.balancer.notice_queue import NoticeQueue
from penstock.balancer.owned_stream import OwnedStream, StreamWatcher
from penstock.delivery.drain import graceful_end
from penstock.errors import EXITS, AlreadyClaimed, ConfigurationError, OwnershipLost, PenstockError, StreamNotOwned
from penstock.runtime.aio import IS_ASYNC, Activity, Cancelled, Flag, TaskGroup, comes_from_outside, pause
from penstock.serializers import Serializer
from penstock.type_checks import is_async

if TYPE_CHECKING:
    from penstock.balancer.balancer import StreamBalancer

StreamHandler: TypeAlias = Callable[[OwnedStream], Awaitable[Any]]
_SETTLE_RETRY_S = 0.2
_YIELD_S, _YIELD_STEP_S = 0.3, 0.02  # how long a consumer with more streams leaves one to those with fewer
_BURST_S = 1.0  # hints at shorter intervals belong to one burst, for which it waits once
_PATIENCE_S = 10.0  # how long a handler may take to release a stream that should move


class Runner:
    """One run of a handler over the streams of a balancer."""

    def __init__(
        self, balancer: StreamBalancer, commands: BalancerCommands, holdings: Holdings, handler: StreamHandler,
        serializer: Serializer | None, rebalances: bool, grace_s: float,
    ) -> None:  # fmt: skip
        given: object = handler
        if not callable(given) or is_async(given) is not IS_ASYNC:
            kind = "an async function" if IS_ASYNC else "a plain function"
            raise ConfigurationError(f"handler must be {kind} that takes one stream, not {handler!r}")
        self._balancer, self._commands, self._holdings, self._handler = balancer, commands, holdings, handler
        self._serializer, self._rebalances, self._grace_s = serializer, rebalances, grace_s
        self._logger, self._watcher = balancer.config.logger, StreamWatcher(balancer.client)
        self._stopping = Flag()
        self._streams: dict[str, OwnedStream] = {}
        stop = self._stopping.set_from_outside
        self._handlers, self._activities = TaskGroup(stop), TaskGroup(stop)
        self._moving: dict[
            str, tuple[OwnedStream, float]
        ] = {}  # by entry: streams that are being released, and until when
        self._last_hint_s = self._yields_until_s = 0.0
        self._exit: BaseException | None = None  # raised by a handler to end the process

    def stop(self) -> None:
        """Make run() return; may be called from any thread and from signal handlers."""
        self._stopping.set_from_outside()

    async def run(self, on_signal: Callable[[], None] | None) -> None:
        """Run until stop(), or until the balancer fails."""
        async with graceful_end(self._shut_down, self._grace_s, on_signal):
            notices = await self._balancer.start()
            self._activities.start(self._follow, notices)
            self._activities.start(self._watcher.run)
            self._activities.start(self._keep_balance)
            await self._stopping.wait()
        if self._exit is not None:
            raise self._exit
        self._activities.raise_failure()

    async def _shut_down(self, grace_s: float) -> None:
        self._stopping.set()
        for stream in list(self._streams.values()):
            stream.drain()
        await self._handlers.join(grace_s)
        for stream in list(self._streams.values()):
            stream.lose()  # its handler does not end: refuse its commits from now on
        await self._handlers.cancel()
        await self._balancer.done()
        self._watcher.stop()
        if not await self._activities.join(1.0):
            await self._activities.cancel()

    # --- notices ------------------------------------------------------------------------------------

    async def _follow(self, notices: NoticeQueue) -> None:
        async for notice in notices:
            if isinstance(notice, StreamAdded):
                ownership = self._holdings.get(notice.payload.data_stream_name)
                if ownership is not None and ownership.payload == notice.payload:  # else it is lost already
                    self._begin(ownership)
            elif isinstance(notice, StreamExpired) and not self._stopping.is_set():
                await self._claim(notice.payload)
        self._stopping.set()

    async def _claim(self, payload: LBSInfo) -> None:
        now_s = time.monotonic()
        if now_s - self._last_hint_s > _BURST_S:
            self._yields_until_s = now_s + _YIELD_S
        self._last_hint_s = now_s
        while self._rebalances and time.monotonic() < self._yields_until_s and await self._is_ahead():
            await pause(_YIELD_STEP_S)
        try:
            self._begin(await self._balancer.claim(payload))
        except AlreadyClaimed:
            pass
        except PenstockError as error:
            self._logger.warning("cannot claim data stream %r: %s", payload.data_stream_name, error)

    async def _is_ahead(self) -> bool:
        try:
            peers = await self._commands.live_peers(len(self._holdings))
        except PenstockError:
            return False
        return is_ahead(peers, self._commands.me, len(self._streams))

    def _begin(self, ownership: Ownership) -> None:
        stream = OwnedStream(self._commands, ownership, self._watcher, self._serializer)
        self._streams[ownership.payload.id_in_lbs] = stream
        if self._stopping.is_set():
            stream.drain()
        stream.job = self._handlers.start(self._serve, stream)

    def lose(self, ownership: Ownership) -> None:
        """Cancel the handler of a stream that another consumer owns."""
        stream = self._streams.get(ownership.payload.id_in_lbs)
        if stream is not None and stream.ownership is ownership:
            stream.lose()
            if stream.job is not None:
                stream.job.interrupt()

    # --- one stream ---------------------------------------------------------------------------------

    async def _serve(self, stream: OwnedStream) -> None:
        is_failed = False
        try:
            await stream.open()
            await self._handler(stream)
        except OwnershipLost as error:
            stream.lose()
            self._logger.warning("%s", error)
        except Cancelled:
            if not stream.is_lost or self._stopping.is_set():
                raise
            Activity.resume()
        except BaseException as error:
            if comes_from_outside(error):
                raise
            if isinstance(error, EXITS):
                self._exit = error
                self._stopping.set_from_outside()
            is_failed = True
            self._log_failure(stream, error)
        finally:
            self._streams.pop(stream.ownership.payload.id_in_lbs, None)
            self._watcher.leave(stream.name)
        await self._settle(stream, is_failed=is_failed)

    def _log_failure(self, stream: OwnedStream, error: BaseException) -> None:
        keys, entry_id, attempt = self._commands.keys, stream.ownership.payload.id_in_lbs, stream.ownership.deliveries
        self._logger.error(
            "handler for data stream %r, entry %s of %s/%s, failed in attempt %d; handing the stream over",
            stream.name, entry_id, keys.stream, keys.group, attempt, exc_info=error,
            extra={"stream": keys.stream, "group": keys.group, "id": entry_id, "attempt": attempt},
        )  # fmt: skip

    async def _settle(self, stream: OwnedStream, *, is_failed: bool) -> None:
        # Retry until it succeeds: a stream whose handler has ended must not stay ours.
        is_done = not is_failed and not stream.is_lost and (stream.is_finished or not stream.is_draining)
        is_left = False  # it is not ours any more, and its position must expire
        while is_left or self._holdings.get(stream.name) is stream.ownership:  # else another ownership has replaced it
            try:
                if not is_done:
                    await self._balancer.release(stream.name)
                    return
                if not is_left:
                    await self._balancer.done_stream(stream.name)
                    is_left = True
                await stream.close()
                return
            except StreamNotOwned:
                return
            except PenstockError as error:
                self._logger.warning("data stream %r could not be settled: %s; retrying", stream.name, error)
                if self._stopping.is_set():
                    return  # done() hands over what is left
                await self._stopping.wait(_SETTLE_RETRY_S)

    # --- moving -------------------------------------------------------------------------------------

    async def _keep_balance(self) -> None:
        while not self._stopping.is_set():
            await self._stopping.wait(self._balancer.config.heartbeat_interval_ms / 1000)
            if not self._rebalances or self._stopping.is_set():
                continue
            try:
                peers = await self._commands.live_peers(len(self._holdings))
            except PenstockError:
                continue
            if not self._stopping.is_set():  # else all streams are being released
                self._move(surplus(peers, self._commands.me))

    def _move(self, count: int) -> None:
        # A handler that does not release its stream in time keeps it, and is asked again after all others.
        now_s, streams = time.monotonic(), self._streams.copy()  # it changes as handlers start and end
        # A stream that left and came back under the same key is another one, which was not asked for.
        self._moving = {key: entry for key, entry in self._moving.items() if streams.get(key) is entry[0]}
        kept = [key for key, (_, until_s) in self._moving.items() if now_s > until_s]
        for key in kept:
            streams[key].is_draining = False
        candidates = [key for key in reversed(streams) if key not in self._moving] + kept
        for key in candidates[: max(0, count - (len(self._moving) - len(kept)))]:
            self._moving.pop(key, None)  # moves it to the end: the one asked longest ago is first
            self._moving[key] = (streams[key], now_s + _PATIENCE_S)
            streams[key].drain()
