"""The pages: what each of them shows. Every page is also JSON, of the same values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from penstock import ids
from penstock.dashboard.view import View
from penstock.errors import NotFound
from penstock.keys import QueueKeys
from penstock.ops import ConsumerState, StreamInfo, StreamKind, TaskState
from penstock.ops.condition import condition_of
from penstock.ops.model import MAX_CONSUMERS, Page
from penstock.queue.model import GROUP

Values = dict[str, Any]
_ROWS = 50
_OVERVIEW_ROWS = 100
_WORK = {StreamKind.STREAM, StreamKind.QUEUE, StreamKind.TASKS, StreamKind.SERVICE}
_STATES = (TaskState.QUEUED, TaskState.RUNNING, TaskState.WAITING, TaskState.SCHEDULED, TaskState.DONE)
_MAPPED = 500  # data streams of one service that the map of its owners shows


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """One address; `label` and `key` are those of the navigation, of pages that are in it."""

    path: str
    title: str
    template: str
    load: Callable[[View], Awaitable[Values]]
    section: str
    label: str = ""
    key: str = ""
    begins_section: bool = False
    is_live: bool = True

    @property
    def json_path(self) -> str:
        """The address of the same values as JSON."""
        return f"{self.path if self.path != '/' else '/overview'}.json"


# --- overview -------------------------------------------------------------------------------------


async def overview(view: View) -> Values:
    """Return everything at once, as of the last sample: a page sends no command."""
    found = view.live.overview
    if found is None:
        found = await view.inspector.overview()
    conditions = view.live.sampler.conditions() or [(each, condition_of(each, ())) for each in found.streams]
    work = [pair for pair in conditions if pair[0].kind in _WORK]
    work.sort(key=lambda pair: (not pair[1].is_bad, -_urgency(pair[0]), pair[0].name))
    rows = []
    for stream, condition in islice(work, _OVERVIEW_ROWS):
        points = view.live.sampler.points(stream.name)
        last = points[-1] if points else None
        rows.append(
            {
                "stream": stream,
                "in_per_s": last.in_per_s if last else None,
                "out_per_s": last.out_per_s if last and stream.groups else None,
                "lags": [point.lag for point in points],
                "state": condition,
            }
        )
    hidden = max(0, len(work) - len(rows))
    return {"at": ids.moment(found.at_ms), "totals": found.totals, "rows": rows, "hidden_streams": hidden}


def _urgency(stream: StreamInfo) -> int:
    return (stream.lag.count if stream.lag else 0) + stream.pending + stream.dead_letters


# --- streams --------------------------------------------------------------------------------------


async def streams(view: View) -> Values:
    """Return the streams, by name."""
    match, kind = view.text("match"), view.choice("kind", list(StreamKind))
    pattern = match if any(char in match for char in "*?[") else f"*{match}*"  # a plain word is looked for anywhere
    page = await view.inspector.streams.page(
        pattern, StreamKind(kind) if kind else None, limit=_ROWS, cursor=view.cursor()
    )
    return {"match": match, "kind": kind, "kinds": list(StreamKind), "page": page}


async def stream(view: View) -> Values:
    """Return one stream: its numbers, groups and entries."""
    name = view.needed("name")
    order, show = view.choice("order", ("oldest",)), view.choice("show", ("raw",))
    found, cursor = await view.inspector.streams.info(name), view.cursor("groups_cursor")
    groups = Page(found.groups)
    if cursor or found.groups_count > len(found.groups):
        groups = await view.inspector.groups.page(name, cursor=cursor)
    page = await view.inspector.streams.entries(
        name,
        start=view.position("from", "-"),
        end=view.position("to", "+"),
        newest_first=order != "oldest",
        text=view.text("text"),
        limit=view.number("limit", 20, 200),
        cursor=view.id_cursor(),
    )
    filters = {key: view.text(key) for key in ("name", "from", "to", "text", "order", "show", "limit")}
    return {
        "title": name, "stream": found, "groups": groups, "page": page, "filters": filters, "start": filters["from"],
        "end": filters["to"], "text": filters["text"], "order": order, "show": show,
    }  # fmt: skip


async def entry(view: View) -> Values:
    """Return one entry, decoded and raw."""
    found = await view.inspector.streams.entry(view.needed("stream"), view.needed("id"), max_value_bytes=200_000)
    return {"title": found.id, "entry": found}


async def group(view: View) -> Values:
    """Return one group: its lag, consumers and pending messages."""
    stream_name, name = view.needed("stream"), view.needed("group")
    found = await view.inspector.groups.info(stream_name, name)
    consumers = await view.inspector.groups.consumers(
        stream_name, name, limit=_ROWS, cursor=view.cursor("consumers_cursor")
    )
    pending = await view.inspector.pending.page(
        stream_name,
        name,
        consumer=view.text("consumer") or None,
        min_idle_ms=view.milliseconds("idle"),
        limit=_ROWS,
        cursor=view.id_cursor(),
    )
    try:
        rates = view.live.sampler.lag(stream_name, name)
    except NotFound:  # it is younger than the last sample
        rates = None
    filters = {key: view.text(key) for key in ("stream", "group", "consumer", "idle")}
    return {
        "title": name, "group": found, "rates": rates, "consumers": consumers, "pending": pending,
        "is_unlisted": found.consumers > MAX_CONSUMERS,
        "filters": filters, "consumer": filters["consumer"], "idle": filters["idle"],
    }  # fmt: skip


# --- dead letters ---------------------------------------------------------------------------------

_LETTER_FILTERS = ("reason", "error", "kind", "fingerprint", "source", "since", "until", "text")


async def dead_letters(view: View) -> Values:
    """Return the streams of dead letters; of the chosen one its letters by cause, and those that match."""
    name = view.text("stream")
    found = await view.inspector.dead_letters.streams(limit=_ROWS, cursor="" if name else view.cursor())
    filters = {key: view.text(key) for key in _LETTER_FILTERS}
    values: Values = {
        "streams": found.items, "streams_cursor": found.cursor, "filters": filters, "stream": "", "failures": None,
        "page": None,
    }  # fmt: skip
    if not name and len(found.items) == 1 and not found.cursor and not view.cursor():
        name = found.items[0].stream
    if not name:
        return values
    chosen = await view.inspector.dead_letters.resolve(name)
    matching = view.dead_letters()
    return {
        **values,
        "title": f"Dead letters of {chosen}",
        "stream": chosen,
        "failures": await view.live.failures(chosen, matching, (*filters.values(), *sorted(view.all("id")))),
        "page": await view.inspector.dead_letters.page(chosen, matching, limit=_ROWS, cursor=view.id_cursor()),
    }


async def dead_letter(view: View) -> Values:
    """Return one dead letter, with its traceback and its payload as it can be edited."""
    found = await view.inspector.dead_letters.show(view.needed("stream"), view.needed("id"), max_value_bytes=200_000)
    value, is_editable = found.editable, found.is_editable
    if isinstance(value, str) and not value.replace("\n", "").replace("\t", "").isprintable():
        is_editable = False  # a browser would send back something else
    return {"title": found.id, "letter": found, "is_editable": is_editable, "editable": value if is_editable else None}


# --- queues and tasks -----------------------------------------------------------------------------


async def queues(view: View) -> Values:
    """Return the message queues."""
    found = await view.inspector.queues.all()
    return {"queues": [{"queue": each, "streams": _queue_streams(each.name)} for each in found], "group": GROUP}


def _queue_streams(name: str) -> dict[str, str]:
    keys = QueueKeys(name)
    return {"completed": keys.completed, "failed": keys.failed, "dead_letters": keys.dead_letter}


async def tasks(view: View) -> Values:
    """Return the task queues; of the chosen one its tasks in a state, and its schedules."""
    found = await view.inspector.tasks.all()
    name = view.text("queue") or (found[0].name if found else "")
    state = view.choice("state", _STATES) or TaskState.QUEUED
    filters = {"queue": name, "state": str(state), "kind": view.text("kind")}
    values: Values = {"queues": found, "filters": filters, "states": _STATES, "chosen": None}
    if not name:
        return values
    page = await view.inspector.tasks.tasks(
        name, TaskState(state), kind=view.text("kind") or None, limit=_ROWS, cursor=view.cursor()
    )
    return {
        **values,
        "chosen": await view.inspector.tasks.info(name),
        "page": page,
        "schedules": await view.inspector.schedules.of(name),
    }


async def task(view: View) -> Values:
    """Return one task, with its result."""
    found = await view.inspector.tasks.status(view.needed("queue"), view.needed("id"))
    if found.state is TaskState.UNKNOWN:
        raise NotFound(f"Queue {found.queue!r} has no task {found.id!r}: it never existed, or its result has expired.")
    return {"title": found.id, "task": found}


# --- who works ------------------------------------------------------------------------------------


async def workers(view: View) -> Values:
    """Return the consumers of all groups, by name, with the leases that they hold."""
    state = view.choice("state", list(ConsumerState))
    page = await view.inspector.workers.page(
        state=ConsumerState(state) if state else None, limit=_ROWS, cursor=view.cursor()
    )
    groups = [group for stream in (view.live.overview.streams if view.live.overview else ()) for group in stream.groups]
    unlisted = [group for group in groups if group.consumers > MAX_CONSUMERS]
    return {"page": page, "state": state, "states": list(ConsumerState), "unlisted": unlisted}


async def balancer(view: View) -> Values:
    """Return the balanced services; of the chosen one who owns what."""
    found = await view.inspector.services.all()
    name, owner = view.text("service") or (found[0].name if found else ""), view.text("owner")
    values: Values = {"services": found, "service": None, "owner": owner, "by_owner": {}, "page": None}
    if not name:
        return values
    page = await view.inspector.services.streams(name, owner=owner or None, limit=_MAPPED, cursor=view.id_cursor())
    by_owner: dict[str, list[Any]] = {}
    for each in page.items:
        by_owner.setdefault(each.owner, []).append(each)
    service = await view.inspector.services.info(name)
    return {**values, "service": service, "page": page, "by_owner": dict(sorted(by_owner.items()))}


async def spark(view: View) -> Values:
    """Return how far Spark queries, pipelines and archives have come, and their last batches."""
    positions = view.live.sampler.positions() if view.live.overview else await view.inspector.groups.positions()
    commits = [(each, commit) for each in positions for commit in each.commits]
    commits.sort(key=lambda pair: -pair[1].at_ms)
    batches = [
        {"reader": each.group, "stream": each.stream, "commit": commit} for each, commit in islice(commits, _ROWS)
    ]
    return {"positions": positions, "batches": batches}


# --- memory, server, history ----------------------------------------------------------------------


async def retention(view: View) -> Values:
    """Return who pins the memory of each stream, and what could go."""
    page = await view.inspector.retention.page(limit=_ROWS, cursor=view.cursor())
    return {"page": page, "reclaimable": sum(each.reclaimable_bytes or 0 for each in page.items)}


async def server(view: View) -> Values:
    """Return the servers, and what the doctor finds."""
    return {"servers": await view.inspector.servers.all(), "findings": await view.inspector.doctor()}


async def audit(view: View) -> Values:
    """Return what operators have done."""
    records, cursor = await view.audit.page(view.id_cursor(), _ROWS)
    return {"records": records, "cursor": cursor}


PAGES = (
    DashboardPage("/", "Overview", "overview.html", overview, "/", "Overview", "o"),
    DashboardPage("/streams", "Streams", "streams.html", streams, "/streams", "Streams", "s"),
    DashboardPage("/stream", "Stream", "stream.html", stream, "/streams"),
    DashboardPage("/entry", "Entry", "entry.html", entry, "/streams", is_live=False),
    DashboardPage("/group", "Group", "group.html", group, "/streams"),
    DashboardPage(
        "/dead-letters", "Dead letters", "dead_letters.html", dead_letters, "/dead-letters", "Dead letters", "d"
    ),
    DashboardPage("/dead-letter", "Dead letter", "dead_letter.html", dead_letter, "/dead-letters", is_live=False),
    DashboardPage("/queues", "Queues", "queues.html", queues, "/queues", "Queues", "q", begins_section=True),
    DashboardPage("/tasks", "Tasks", "tasks.html", tasks, "/tasks", "Tasks", "t"),
    DashboardPage("/task", "Task", "task.html", task, "/tasks"),
    DashboardPage("/workers", "Workers", "workers.html", workers, "/workers", "Workers", "w"),
    DashboardPage("/balancer", "Balancer", "balancer.html", balancer, "/balancer", "Balancer", "b"),
    DashboardPage("/spark", "Spark and archives", "spark.html", spark, "/spark", "Spark", "k"),
    DashboardPage(
        "/retention", "Retention", "retention.html", retention, "/retention", "Retention", "r", begins_section=True
    ),
    DashboardPage("/server", "Server", "server.html", server, "/server", "Server", "h", is_live=False),
    DashboardPage("/audit", "Audit", "audit.html", audit, "/audit", "Audit", "a"),
)
