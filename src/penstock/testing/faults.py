"""The faults that a proxy has been told to cause, and the commands that it has seen."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Ending: TypeAlias = Literal["close", "reset", "black_hole"]
"""What becomes of a connection after a loss: FIN, RST, or it stays open and mute."""


@dataclass(eq=False)
class Fault:
    """One loss, armed on the proxy; `wait()` returns when it has happened."""

    command: str
    nth: int
    containing: bytes
    loses: Literal["reply", "half", "request", "nothing"]
    ending: Ending
    late_s: float = 0.0
    _happened: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def has_happened(self) -> bool:
        """Whether the loss has taken place."""
        return self._happened.is_set()

    def wait(self, timeout_s: float = 30.0) -> bool:
        """Blocks until the loss has taken place; returns False when the time is over first."""
        return self._happened.wait(timeout_s)

    def happen(self) -> None:
        """Notes that the loss has taken place."""
        self._happened.set()

    def is_triggered_by(self, command: str, words: list[bytes]) -> bool:
        """Counts the request if it is one of those that this fault waits for; returns True for the nth of them."""
        if command != self.command.upper() or not any(self.containing in word for word in words):
            return False
        self.nth -= 1
        return self.nth == 0


class FaultBoard:
    """The switches of a proxy: set by tests from their threads, obeyed by the links in the proxy's thread."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.is_black_hole = False
        self.is_holding = False
        self._armed: list[Fault] = []
        self._seen: Counter[str] = Counter()
        self._changed = threading.Condition()

    def arm(self, fault: Fault) -> Fault:
        """Adds a fault that waits for its command."""
        with self._changed:
            self._armed.append(fault)
        return fault

    def clear(self) -> None:
        """Turns every switch off and disarms what is armed."""
        with self._changed:
            self._armed.clear()
            self.delay_s = 0.0
            self.is_black_hole = False

    def judge(self, words: list[bytes]) -> Fault | None:
        """Notes a request that came by and returns the fault that it sets off, if any."""
        command = words[0].decode(errors="replace").upper()
        with self._changed:
            self._seen[command] += 1
            self._changed.notify_all()
            for fault in self._armed:
                if fault.is_triggered_by(command, words):
                    self._armed.remove(fault)
                    return fault
        return None

    def count(self, command: str) -> int:
        """Returns how many commands of this name have come by."""
        with self._changed:
            return self._seen[command.upper()]

    def wait_for(self, command: str, count: int, timeout_s: float) -> bool:
        """Blocks until so many commands of this name have come by; returns False when the time is over first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._seen[command.upper()] >= count, timeout_s)
