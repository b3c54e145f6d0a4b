"""What operators may change. Each action first says how much it concerns, and is carried out when that is confirmed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from penstock.dashboard.view import Refused, View
from penstock.keys import QueueKeys, StreamKeys
from penstock.ops import RetentionPolicy, StreamKind

_MAX_AT_ONCE = 10_000
_USUAL_CAP = 1_000
_LONGEST_S = 60  # that a browser waits for a redrive: beyond it, the rest is left for the next one


@dataclass(frozen=True, slots=True)
class Option:
    """Something that is asked along with the confirmation."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be confirmed; of nothing at all, nothing can be."""

    title: str
    text: str
    button: str
    count: int
    options: tuple[Option, ...] = ()
    is_destructive: bool = False
    fixed: tuple[tuple[str, str], ...] = ()  # parameters that are sent with the answer instead of those of the request


@dataclass(frozen=True, slots=True)
class Action:
    """Asks first, then does it and says in a sentence what came of it."""

    ask: Callable[[View], Awaitable[Question]]
    do: Callable[[View], Awaitable[str]]


def _some(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# --- pending messages -----------------------------------------------------------------------------


def _chosen(view: View) -> tuple[str, str, list[str]]:
    return view.needed("stream"), view.needed("group"), view.all("id")


async def _ask_claim(view: View) -> Question:
    stream, group, ids = _chosen(view)
    return Question(
        f"Claim {_some(len(ids), 'message')}",
        f"They are moved to another consumer of group {group} on {stream}, which handles them when the lease "
        "expires. A consumer that still handles one loses it.",
        "Claim",
        len(ids),
        (
            Option("to", "To consumer", is_needed=True),
            Option("idle", "Only if idle for at least", "1m", "skips messages that are being handled"),
        ),
    )


async def _claim(view: View) -> str:
    stream, group, ids = _chosen(view)
    consumer = view.needed("to")
    done = await view.inspector.pending.claim(stream, group, ids, consumer, min_idle_ms=view.milliseconds("idle"))
    return f"{_some(len(done), 'message')} of {len(ids):,} claimed for {consumer} in group {group} on {stream}."


async def _ask_retry(view: View) -> Question:
    stream, group, ids = _chosen(view)
    return Question(
        f"Retry {_some(len(ids), 'message')} now",
        f"The next free consumer of group {group} on {stream} receives them. A consumer that still handles one "
        "loses it.",
        "Retry now",
        len(ids),
        (Option("idle", "Only if idle for at least", "1m", "skips messages that are being handled"),),
    )


async def _retry(view: View) -> str:
    stream, group, ids = _chosen(view)
    done = await view.inspector.pending.retry(stream, group, ids, min_idle_ms=view.milliseconds("idle"))
    return f"{_some(len(done), 'message')} of {len(ids):,} due now in group {group} on {stream}."


async def _ask_dead_letter(view: View) -> Question:
    stream, group, ids = _chosen(view)
    found = await view.inspector.streams.info(stream, memory=False)
    if found.kind not in {StreamKind.STREAM, StreamKind.QUEUE}:
        raise Refused(400, f"Messages of {stream!r} cannot be dead-lettered by hand, because it holds {found.kind}.")
    is_queue = found.kind is StreamKind.QUEUE
    usual = QueueKeys(stream).dead_letter if is_queue else StreamKeys(stream).default_dead_letters()
    target = found.dead_letters_stream or usual
    return Question(
        f"Dead-letter {_some(len(ids), 'message')}",
        f"They are removed from group {group} on {stream} and can be redriven later.",
        "Dead-letter",
        len(ids),
        (
            Option("dead_letters", "Dead-letter stream", target, is_needed=True),
            Option("note", "Reason", "by an operator"),
        ),
        is_destructive=True,
    )


async def _dead_letter(view: View) -> str:
    stream, group, ids = _chosen(view)
    target, note = view.needed("dead_letters"), view.text("note", "by an operator")
    done = await view.inspector.pending.dead_letter(stream, group, ids, dead_letters=target, note=note)
    return f"{_some(len(done), 'message')} of {len(ids):,} moved from {stream} to {target}."


# --- dead letters ---------------------------------------------------------------------------------


async def _counted(view: View, stream: str) -> tuple[int, bool, tuple[tuple[str, str], ...]]:
    """Return how many dead letters match, whether that is all of them, and what excludes those that arrive later."""
    letters = view.inspector.dead_letters
    matching = await letters.as_of_now(stream, view.dead_letters())
    count, is_all = await letters.count(stream, matching)
    return count, is_all, () if matching.until_ms is None else (("until", str(matching.until_ms)),)


async def _ask_redrive(view: View) -> Question:
    stream = view.needed("stream")
    count, is_all, fixed = await _counted(view, stream)
    return Question(
        f"Redrive {'' if is_all else 'more than '}{_some(count, 'dead letter')}",
        f"They return from {stream} to where they came from, oldest first, and are handled again. Those already "
        "redriven three times stay.",
        "Redrive",
        count,
        (
            Option("cap", "At most", str(min(max(count, 1), _USUAL_CAP))),
            Option("rate", "Per second", "", "empty: as fast as possible"),
            Option("to", "To another stream", "", "empty: where they came from"),
        ),
        fixed=fixed,
    )


async def _redrive(view: View) -> str:
    stream, cap, rate = (
        view.needed("stream"),
        view.number("cap", _USUAL_CAP, _MAX_AT_ONCE),
        view.number("rate", 0, 10_000),
    )
    report = await view.inspector.dead_letters.redrive(
        stream,
        view.dead_letters(),
        to=view.text("to") or None,
        limit=min(cap, rate * _LONGEST_S) if rate else cap,
        per_second=rate or None,
    )
    refused = (
        f" {_some(report.refused, 'dead letter')} not redriven: redriven too often, or without a payload."
        if report.refused
        else ""
    )
    rest = "" if report.is_complete else " More match: redrive again."
    return f"{_some(report.redriven, 'dead letter')} of {stream} redriven.{refused}{rest}"


async def _ask_redrive_edited(view: View) -> Question:
    stream, record_id = view.needed("stream"), view.needed("id")
    return Question(
        "Redrive with this payload",
        f"Dead letter {record_id} of {stream} is redriven with the changed payload.",
        "Redrive",
        1,
    )


async def _redrive_edited(view: View) -> str:
    stream, record_id, text = view.needed("stream"), view.needed("id"), view.text("value")
    letter = await view.inspector.dead_letters.show(stream, record_id)
    if letter.payload.form == "text":
        value: object = text.replace("\r\n", "\n")
    else:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Refused(400, f"The payload is not JSON: {error}.") from error
    new_id = await view.inspector.dead_letters.redrive_edited(stream, record_id, value, to=view.text("to") or None)
    return f"Dead letter {record_id} of {stream} redriven with a changed payload as {new_id}."


async def _ask_purge(view: View) -> Question:
    stream = view.needed("stream")
    count, is_all, fixed = await _counted(view, stream)
    return Question(
        f"Delete {'' if is_all else 'more than '}{_some(count, 'dead letter')}",
        f"They are permanently deleted from {stream}, with their payloads. This cannot be undone.",
        "Delete",
        count,
        (Option("cap", "At most", str(min(max(count, 1), _USUAL_CAP))),),
        is_destructive=True,
        fixed=fixed,
    )


async def _purge(view: View) -> str:
    stream, cap = view.needed("stream"), view.number("cap", _USUAL_CAP, _MAX_AT_ONCE)
    gone = await view.inspector.dead_letters.purge(stream, view.dead_letters(), limit=cap)
    return f"{_some(gone, 'dead letter')} of {stream} deleted."


# --- tasks, balancer, retention -------------------------------------------------------------------


async def _ask_cancel(view: View) -> Question:
    queue, task_id = view.needed("queue"), view.needed("id")
    return Question(
        "Cancel 1 task",
        f"Task {task_id} of {queue} will not run. If it is already running, it is not interrupted.",
        "Cancel task",
        1,
        is_destructive=True,
    )


async def _cancel(view: View) -> str:
    queue, task_id = view.needed("queue"), view.needed("id")
    outcome = await view.inspector.tasks.cancel(queue, task_id)
    said = {"cancelled": "is cancelled", "running": "is already running and was not interrupted"}
    return f"Task {task_id} of {queue} {said.get(outcome, 'has already ended')}."


async def _ask_run_schedule(view: View) -> Question:
    queue, name = view.needed("queue"), view.needed("name")
    return Question(
        f"Run schedule {name} now",
        f"Its task is added to {queue} now; its next scheduled time does not change.",
        "Run now",
        1,
    )


async def _run_schedule(view: View) -> str:
    queue, name = view.needed("queue"), view.needed("name")
    return f"Schedule {name} of {queue} added task {await view.inspector.schedules.run(queue, name)}."


async def _ask_pause_schedule(view: View) -> Question:
    queue, name = view.needed("queue"), view.needed("name")
    return Question(
        f"Pause schedule {name}",
        f"Workers of {queue} skip its times until it is resumed. Tasks already queued still run.",
        "Pause",
        1,
    )


async def _pause_schedule(view: View) -> str:
    queue, name = view.needed("queue"), view.needed("name")
    is_new = await view.inspector.schedules.pause(queue, name)
    return f"Schedule {name} of {queue} {'is' if is_new else 'was already'} paused."


async def _ask_resume_schedule(view: View) -> Question:
    queue, name = view.needed("queue"), view.needed("name")
    return Question(
        f"Resume schedule {name}",
        f"It runs again from its next time on {queue}; missed times are not made up.",
        "Resume",
        1,
    )


async def _resume_schedule(view: View) -> str:
    queue, name = view.needed("queue"), view.needed("name")
    is_new = await view.inspector.schedules.resume(queue, name)
    return f"Schedule {name} of {queue} {'is resumed' if is_new else 'was not paused'}."


async def _ask_release(view: View) -> Question:
    service, stream = view.needed("service"), view.needed("data_stream")
    return Question(
        "Release 1 data stream",
        f"{stream} of {service} is taken from its owner, which is notified; another consumer takes it over.",
        "Release",
        1,
        is_destructive=True,
    )


async def _release(view: View) -> str:
    service, stream = view.needed("service"), view.needed("data_stream")
    owner = await view.inspector.services.release(service, stream)
    return f"Data stream {stream} of {service} released by {owner}."


async def _ask_trim(view: View) -> Question:
    stream = view.needed("stream")
    report = await view.inspector.retention.trim(stream, RetentionPolicy(), dry_run=True)
    return Question(
        f"Trim {'' if report.is_exact else 'at least '}{report.entries:,} finished entries",
        report.note
        or (
            f"Entries of {stream} that every group has finished are deleted. Entries that a group, a Spark query "
            "or an archive still needs stay."
        ),
        "Trim",
        report.entries,
        is_destructive=True,
    )


async def _trim(view: View) -> str:
    stream = view.needed("stream")
    report = await view.inspector.retention.trim(stream, RetentionPolicy())
    return f"{report.entries:,} finished entries of {stream} trimmed."


ACTIONS = {
    "claim": Action(_ask_claim, _claim),
    "retry": Action(_ask_retry, _retry),
    "dead-letter": Action(_ask_dead_letter, _dead_letter),
    "redrive": Action(_ask_redrive, _redrive),
    "redrive-edited": Action(_ask_redrive_edited, _redrive_edited),
    "purge": Action(_ask_purge, _purge),
    "cancel": Action(_ask_cancel, _cancel),
    "run-schedule": Action(_ask_run_schedule, _run_schedule),
    "pause-schedule": Action(_ask_pause_schedule, _pause_schedule),
    "resume-schedule": Action(_ask_resume_schedule, _resume_schedule),
    "release": Action(_ask_release, _release),
    "trim": Action(_ask_trim, _trim),
}
