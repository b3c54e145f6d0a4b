"""What tests do side by side, threads half: the twin of aio.py, name by name."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 60.0
_POLL_S = 0.005

Event = threading.Event


class Task:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = (function, args, kwargs)
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="test")
        self._thread.start()

    def _run(self) -> None:
        function, args, kwargs = self._call
        try:
            self._result = function(*args, **kwargs)
        except BaseException as error:  # raised where the test joins
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout_s: float) -> Any:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self._call[0]} still runs after {timeout_s} s")
        if self._error is not None:
            raise self._error
        return self._result


def start(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Task:
    """Starts a call beside the test; `join` gives its result."""
    return Task(function, args, kwargs)


def join(task: Task, timeout_s: float = DEADLINE_S) -> Any:
    """Waits for a started call and returns what it returns, or raises what it raises."""
    return task.result(timeout_s)


def is_done(task: Task) -> bool:
    """Tells whether a started call has ended."""
    return task.done()


def outcomes(tasks: list[Task]) -> list[Any]:
    """Waits for started calls and returns what each returned or raised."""
    found = []
    for task in tasks:
        try:
            found.append(task.result(DEADLINE_S))
        except Exception as error:  # an outcome like any other
            found.append(error)
    return found


def wait_for(event: Event) -> None:
    """Waits until the event is set."""
    assert event.wait(DEADLINE_S), "the event was not set"


def next_turn() -> None:
    """Gives every other thread that is ready a turn."""
    time.sleep(0)


def pause(seconds: float) -> None:
    """Lets time pass: for what a handler does, never to wait for something."""
    time.sleep(seconds)


def eventually(condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
    """Waits until the condition holds and returns what it gave."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come true in {timeout_s} s: {inspect.getsource(condition).strip()}")
        time.sleep(_POLL_S)


def throughout(seconds: float, condition: Callable[[], Any]) -> None:
    """Looks at the condition for so long and fails as soon as it does not hold."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"it ceased to be true: {inspect.getsource(condition).strip()}"
        time.sleep(_POLL_S)
