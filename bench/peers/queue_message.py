"""The message that queues carry: no two of a process are alike, for a queue refuses what it has seen."""

from __future__ import annotations

import itertools
import json
from typing import Any

from bench.peers import payload
from bench.peers.params import Params
from bench.peers.payload import Message


class Unique:
    """One message that gets another number each time, and the size that the driver asked for.

    Always the same object: to walk through thousands that were made before costs a queue more than to encode one, and
    would be charged to it.
    """

    def __init__(self, params: Params) -> None:
        self._numbers = itertools.count()
        self._message = payload.message(0)
        if params.note_bytes:
            self._message["note"] = "x" * params.note_bytes

    def like(self, message: Message) -> Message:
        """Returns a message of the same time as the given one."""
        self._message["id"] = next(self._numbers)
        self._message["ts"] = message["ts"]
        return self._message


def decoder(params: Params) -> Any:
    """Returns what turns a text into what the handler needs: one that only counts needs nothing."""
    return json.loads if params.stamps else str
