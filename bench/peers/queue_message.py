"""The message that queues carry: no two of a process are alike, for a queue refuses what it has seen."""

from __future__ import annotations

import itertools

from bench.peers.params import Params
from bench.peers.payload import Message


class Unique:
    """Gives every message a number of its own, and the size that the driver asked for."""

    def __init__(self, params: Params) -> None:
        self._numbers = itertools.count()
        self._note = "x" * params.note_bytes

    def mark(self, message: Message) -> Message:
        """Changes a message in place and returns it."""
        message["number"] = next(self._numbers)
        if self._note:
            message["note"] = self._note
        return message
