"""What the driver tells a child process, carried in one environment variable.

An environment variable and not an argument: peers whose worker is a command of their own inherit it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Literal

VARIABLE = "BENCH_PARAMS"
STREAM = "bench"
GROUP = "bench-workers"

Role = Literal["publish", "work"]
Mode = Literal["one", "fifty", "bulk", "paced"]


@dataclass(frozen=True)
class Params:
    """The task of one child process."""

    adapter: str
    """Module of `bench.peers` that holds the adapter."""
    role: Role
    port: int
    variant: str = ""
    """Which form of the peer, where a module knows more than one."""
    mode: Mode = "one"
    rate: int = 0
    """Messages a second in mode `paced`."""
    probe: str = ""
    """Path of the shared progress file; only a worker has one."""
    stamps: bool = False
    """Whether the handler records how long each message was on its way."""
    recovery_interval_ms: int = 0
    """How often a worker looks for orphans, where the peer has such a setting; 0 is its default."""
    note_bytes: int = 0
    """Size of the text in messages of a queue; 0 is the usual one."""
    holds: bool = False
    """Whether the handler never ends."""

    @property
    def url(self) -> str:
        """Returns the address of the server under test."""
        return f"redis://127.0.0.1:{self.port}/0"

    def to_json(self) -> str:
        """Returns the value of the environment variable."""
        return json.dumps(asdict(self))


def from_environment() -> Params:
    """Returns what the driver put into the environment."""
    return Params(**json.loads(os.environ[VARIABLE]))
