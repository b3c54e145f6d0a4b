"""What commands about task queues have in common: where the queue is, and how values are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated

import typer

from penstock.errors import ConfigurationError, SettingsError
from penstock.settings import Settings, TaskQueueSettings, flag
from penstock.sync.providers import make_task_queue
from penstock.sync.tasks import RedisTaskQueue

FROM_SETTINGS = ""  # what was not given is what penstock.toml or the environment says
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

Url = Annotated[str, typer.Option("--url", help="Where Redis is.", show_default="from the settings")]
QueueName = Annotated[
    str, typer.Option("--queue", "-q", help="The name of the queue.", show_default="from the settings, or penstock")
]
LOOPBACK = "127.0.0.1"
Host = Annotated[str, typer.Option("--host", help="Where to listen: 0.0.0.0 lets other machines ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def queue_settings(
    url: str, name: str, idle_ms: int | None = None, max_retry: int | None = None
) -> tuple[Settings, TaskQueueSettings]:
    """Return all settings and those of the task queue, the flags of a command above file and environment."""
    given = {"url": url, "idle_ms": idle_ms, "max_retry": max_retry}
    flags = [
        flag(f"task_queue.{key}", str(value), f"--{key.replace('_', '-')}")
        for key, value in given.items()
        if value is not None and value != FROM_SETTINGS
    ]
    settings = Settings.load(flags=flags)
    table = settings.task_queue
    if table.provider == "stub":
        raise SettingsError(
            "task_queue.provider is 'stub', a queue in the memory of one process, which no other can reach: use 'redis'"
        )
    return settings, replace(table, options={**table.options, "name": name}) if name else table


@contextmanager
def open_queue(url: str, name: str) -> Iterator[RedisTaskQueue]:
    """Open a queue for the length of a command."""
    _, table = queue_settings(url, name)
    queue = make_task_queue(table)
    if not isinstance(queue, RedisTaskQueue):
        raise SettingsError(f"task_queue.provider is {table.provider!r}: this command looks into queues in Redis only")
    with queue:
        yield queue


def seconds(text: str) -> float:
    """Read a duration as people write it: '90', '30s', '2h', '1h30m'."""
    if text.replace(".", "", 1).isdigit():
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigurationError(f"{text!r} is no duration: write '90', '30s', '2h' or '1h30m'")
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def moment(text: str, zone: tzinfo | None = None) -> datetime:
    """Read a moment: ISO 8601, in local time unless a zone is named, or how long ago it was ('2h')."""
    ago_s = None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found, ago_s = datetime.now(UTC), seconds(text)
    try:
        if ago_s is not None:
            return found - timedelta(seconds=ago_s)
        return found.replace(tzinfo=found.tzinfo or zone).astimezone(UTC)
    except (OverflowError, ValueError):
        raise ConfigurationError(f"{text!r} lies outside the calendar") from None
