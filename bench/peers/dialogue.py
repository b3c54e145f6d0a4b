"""The child's side of the talk with the driver, over stdin and stdout.

The child says READY; each `GO <count>` of the driver makes it publish that many messages and answer
`DONE <json>`; the end of stdin ends the child.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from bench.peers.payload import Message, message


def ready() -> None:
    """Tells the driver that the producer is connected."""
    print("READY", flush=True)


def next_count() -> int | None:
    """Waits for the driver's next order and returns how many messages it wants, or None at the end."""
    words = sys.stdin.readline().split()
    return int(words[1]) if words and words[0] == "GO" else None


def fresh_messages(count: int) -> list[Message]:
    """Builds the messages of one pass and takes them out of the garbage collector's sight.

    Otherwise the collector's walks over the harness's own messages would be charged to the peer.
    """
    messages = [message(number) for number in range(count)]
    gc.collect()
    gc.freeze()
    return messages


def done(started_at: float, late: int) -> None:
    """Tells the driver what the pass took since `started_at` and how many messages left too late."""
    print("DONE " + json.dumps({"wall_s": time.perf_counter() - started_at, "late": late}), flush=True)
