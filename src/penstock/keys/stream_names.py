"""Finds the queue, task queue or service that a stream belongs to, from its name."""

from __future__ import annotations

from penstock.keys.names import hash_tag

_TASKS, _RESULTS, _DEAD = ".tasks", ".results", ".dead"
_DEAD_LETTERS, _INPUT = "_dlq", "-input"
_LOGS = ("completed", "failed")


def task_stream(name: str) -> tuple[str, str] | None:
    """Return the task queue of a stream and its part: tasks, results or dead; None if it is not named like one.

    The name alone does not prove that such a queue exists.
    """
    for suffix, part in ((_RESULTS, "results"), (_DEAD, "dead")):
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix), part
    root, found, lane = name.partition(_TASKS)
    return (root, "tasks") if found and root and (not lane or lane.startswith(".")) else None


def service_of(stream: str) -> str | None:
    """Return the balanced service of a load balancer stream; None if it is not named like one."""
    return stream.removesuffix(_INPUT) if stream.endswith(_INPUT) and len(stream) > len(_INPUT) else None


def queue_log(name: str) -> tuple[str, str] | None:
    """Return the message queue that a stream belongs to, and its part: completed, failed or dlq."""
    queue, found, part = name.rpartition("::")
    return (queue, part) if found and queue and part in (*_LOGS, "dlq") else None


def source_of_dead_letters(name: str) -> str | None:
    """Return the stream whose dead letters have this name by default; None if it is not named like one."""
    if not name.endswith(_DEAD_LETTERS) or len(name) == len(_DEAD_LETTERS):
        return None
    source = name.removesuffix(_DEAD_LETTERS)
    inside = without_tag(source)
    return inside if inside and service_of(inside) else source  # of a service the tag is put around the whole name


def without_tag(name: str) -> str | None:
    """Return the name inside a hash tag that is the whole name, else None."""
    return name[1:-1] if hash_tag(name) == name[1:-1] else None
