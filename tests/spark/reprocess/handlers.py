"""Handlers that the tests name: they say in files what they did, and are stopped and killed through files."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from penstock import StreamMessage
from tests.spark.pipeline.shop import hang_in_c

GATE = 40


def doubled(messages: list[StreamMessage]) -> dict[str, Any]:
    """Doubles numbers, except those that end in 7; at the number GATE, waits until the named pipe `gate`, if any, is opened."""
    place = Path(messages[0].data["place"])
    for message in messages:
        n = message.data["n"]
        if n == GATE and (place / "gate").exists():
            sys.stderr.write("at the gate\n")
            sys.stderr.flush()
            (place / "gate").open().close()
            (place / "gate").unlink()
        with (place / "journal").open("a") as journal:
            journal.write(f"{n}\n")
        if n % 10 == 7:
            raise ValueError(f"order {n} has no price")
    return {message.id: {"twice": 2 * message.data["n"], "kind": message.headers.get("kind")} for message in messages}


async def fragile(messages: list[StreamMessage]) -> list[str]:
    """Takes its process along when it first meets a 5."""
    for message in messages:
        mark = Path(message.data["place"]) / "killed"
        if message.data["n"] == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if message.data["n"] % 10 == 7:
            raise ValueError(f"order {message.data['n']} has no price")
    return [message.id for message in messages]


def stuck(messages: list[StreamMessage]) -> list[str]:
    """Waits for ever at a 3, and at a 5 in C code that no signal interrupts."""
    for message in messages:
        if message.data["n"] == 3:
            threading.Event().wait()
        if message.data["n"] == 5:
            hang_in_c(holds_the_lock=False)
    return [message.id for message in messages]


def talkative(messages: list[StreamMessage]) -> str:
    """Returns what no handler may."""
    return "done"


NOT_A_FUNCTION = 7
