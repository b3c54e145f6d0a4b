"""What the driver tells a process of a peer, in its environment."""

from __future__ import annotations

import os

PORT = int(os.environ["BENCH_PORT"])
URL = f"redis://127.0.0.1:{PORT}/0"
COUNT = int(os.environ.get("BENCH_COUNT", "0"))
ROLE = os.environ["BENCH_ROLE"]
NAME = "bench"


def payload(number: int) -> dict[str, object]:
    """Returns what a task is given."""
    return {"order": number, "customer": f"customer-{number % 1000}", "amount": 12.5, "items": ["a", "b", "c"]}
