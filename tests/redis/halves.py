"""The two halves of the library behind one face, so that a promise is written once and checked on both."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import penstock
import penstock.redis.aio
import penstock.redis.aio_locator
import penstock.redis.blocking
import penstock.redis.blocking_locator
import penstock.sync
from penstock.redis.settings import ConnectionSettings
from tests.helpers.threads import DEADLINE_S


class Half:
    """One half: its names, and a way to call its functions from a test that is a plain function."""

    name = ""
    api: Any = None
    lane: Any = None
    locator: Any = None

    def __init__(self) -> None:
        self._closing: list[Callable[[], Any]] = []

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Starts a call beside the test."""
        raise NotImplementedError

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function and returns what it returns, whether it must be awaited or not."""
        return self.start(function, *args, **kwargs).result(DEADLINE_S)

    def client(self, url: str = "", **options: Any) -> Any:
        """Makes a client, which is closed after the test."""
        made = self.api.StreamClient.from_url(url, **options) if url else self.api.StreamClient(**options)
        return self.owned(made)

    def owned(self, client: Any) -> Any:
        """Has the client closed after the test."""
        self._closing.append(client.close)
        return client

    def connect(self, port: int, **settings: Any) -> Any:
        """Opens a bare connection to a loopback port, which is closed after the test."""
        locator = self.locator(ConnectionSettings(hosts=(("127.0.0.1", port),), **settings))
        connection = self.do(locator.connect, ("127.0.0.1", port))
        self._closing.append(connection.close)
        return connection

    def close(self) -> None:
        """Closes what the test left open."""
        for close in reversed(self._closing):
            self.do(close)


class AsyncHalf(Half):
    """asyncio, in an event loop that runs in a thread of its own."""

    name = "async"
    api = penstock
    lane = penstock.redis.aio
    locator = penstock.redis.aio_locator.Locator

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self.loop)

    def close(self) -> None:
        super().close()
        self.do(self._finish)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        assert not self._thread.is_alive(), "the event loop did not stop"
        self.loop.close()

    async def _finish(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()


class SyncHalf(Half):
    """Threads: every call that runs beside the test has one of its own."""

    name = "sync"
    api = penstock.sync
    lane = penstock.redis.blocking
    locator = penstock.redis.blocking_locator.Locator

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        result: Future[Any] = Future()

        def call() -> None:
            try:
                result.set_result(function(*args, **kwargs))
            except BaseException as error:  # raised where the test asks for the result
                result.set_exception(error)

        threading.Thread(target=call, name="test-call", daemon=True).start()
        return result


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fails when something is thrown away in the block that should have been closed."""
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(warning.message) for warning in found] == []
