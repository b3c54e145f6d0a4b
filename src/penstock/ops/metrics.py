"""Prometheus metrics of everything on a server, from the last sample: a scrape asks nothing of Redis.

`queue_pending_total`, `queue_pending_idle_max_seconds`, `queue_ack_total` and `queue_dead_total` are names that
dashboards of task queues know; all others begin with `penstock_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.errors import ConfigurationError
from penstock.ops.model import GroupLag, Overview, StreamInfo, StreamKind, TaskQueueInfo
from penstock.ops.sampler import Sampler

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover
    raise ConfigurationError("metrics need prometheus-client: pip install 'penstock[metrics]'") from error

MOST_STREAMS, MOST_GROUPS, MOST_KINDS = 1_000, 2_000, 200  # that have labels of their own; the others share `other`
OTHER = "other"
_STREAM, _GROUP = ["stream"], ["stream", "group"]


class InspectorCollector(Collector):
    """What the last sample of a Sampler saw: streams, groups, task queues, balanced services, dead letters, servers."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def collect(self) -> Iterable[Any]:
        """Yield the metrics; `penstock_up` is 0 while there are none, because Redis does not answer."""
        last, found = self._sampler.samples[-1:], self._sampler.overview
        is_up = bool(last) and not last[0].error and found is not None
        yield GaugeMetricFamily("penstock_up", "Whether Redis answered when it was last sampled.", value=is_up)
        if found is None or not is_up:
            return
        yield GaugeMetricFamily("penstock_sample_time_seconds", "When it was sampled.", value=found.at_ms / 1000)
        yield from _stream_metrics(found.streams)
        yield from _group_metrics(found.streams, self._sampler.lags())
        yield from _task_metrics(found.task_queues, found.streams)
        yield from _service_metrics(found)
        yield from _server_metrics(found)


Rows = Iterable[tuple[Sequence[str], float]]  # values of the labels, and the number


def _gauges(name: str, text: str, labels: Sequence[str], rows: Rows, most: int = MOST_GROUPS) -> Any:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in _bounded(rows, most):
        family.add_metric(values, number)
    return family


def _bounded(rows: Rows, most: int) -> Rows:
    # Names are whatever somebody wrote: a label for each would be more than a Prometheus wants.
    everything = list(rows)
    if len(everything) <= most:
        return everything
    others = [OTHER] * len(everything[0][0])
    return [*everything[:most], (others, sum(number for _, number in everything[most:]))]


def _stream_metrics(streams: Sequence[StreamInfo]) -> Iterable[Any]:
    yield GaugeMetricFamily("penstock_streams", "Streams on the server.", value=len(streams))
    yield _gauges(
        "penstock_stream_length", "Entries of a stream.", [*_STREAM, "kind"],
        (([each.name, each.kind.value], each.length) for each in streams), MOST_STREAMS,
    )  # fmt: skip
    added = CounterMetricFamily("penstock_stream_added_total", "Entries that were ever added.", labels=_STREAM)
    for each in streams[:MOST_STREAMS]:
        if each.entries_added is not None:
            added.add_metric([each.name], each.entries_added)
    yield added
    yield _gauges(
        "penstock_dead_letters", "Dead letters.", ["stream", "owner"],
        (([each.name, each.owner], each.length) for each in streams if each.kind is StreamKind.DEAD_LETTERS),
        MOST_STREAMS,
    )  # fmt: skip


def _group_metrics(streams: Sequence[StreamInfo], lags: Sequence[GroupLag]) -> Iterable[Any]:
    known, groups = lags, [group for stream in streams for group in stream.groups]
    by_group: dict[str, tuple[str, list[tuple[Sequence[str], float]]]] = {
        "penstock_group_lag": (
            "Entries that the group has not been handed.", [([each.stream, each.group], each.count) for each in known]
        ),
        "penstock_group_lag_is_exact": (
            "0 = the lag is a bound.", [([each.stream, each.group], float(each.is_exact)) for each in known]
        ),
        "penstock_group_oldest_unread_seconds": (
            "Age of the oldest unread entry.", [([each.stream, each.group], each.age_s) for each in known]
        ),
        "penstock_group_in_per_second": (
            "Entries added.",
            [([each.stream, each.group], each.in_per_s) for each in known if each.in_per_s is not None],
        ),
        "penstock_group_out_per_second": (
            "Entries handed out.",
            [([each.stream, each.group], each.out_per_s) for each in known if each.out_per_s is not None],
        ),
        "penstock_group_drain_seconds": (
            "Time until nothing is unread; +Inf = never at these rates.",
            [
                ([each.stream, each.group], float("inf") if each.drain_s is None else each.drain_s)
                for each in known
                if each.in_per_s is not None
            ],
        ),
        "penstock_group_pending": (
            "Messages with consumers.", [([each.stream, each.name], each.pending) for each in groups]
        ),
        "penstock_group_retries_waiting": (
            "Failed messages that wait.", [([each.stream, each.name], each.retries_waiting) for each in groups]
        ),
        "penstock_group_oldest_pending_idle_seconds": (
            "Since the oldest pending message was renewed.",
            [([each.stream, each.name], each.oldest_pending_idle_ms / 1000) for each in groups],
        ),
        "penstock_group_consumers": (
            "Consumers, dead ones included.", [([each.stream, each.name], each.consumers) for each in groups]
        ),
    }  # fmt: skip
    for name, (text, rows) in by_group.items():
        yield _gauges(name, text, _GROUP, rows)


def _task_metrics(queues: Sequence[TaskQueueInfo], streams: Sequence[StreamInfo]) -> Iterable[Any]:
    pending = GaugeMetricFamily("queue_pending_total", "Open tasks.", labels=["stream", "kind"])
    idle = GaugeMetricFamily(
        "queue_pending_idle_max_seconds", "Longest time since a task in hand was renewed.", labels=["stream"]
    )
    acked = CounterMetricFamily("queue_ack_total", "Tasks that were done.", labels=["kind", "queue"])
    dead = CounterMetricFamily("queue_dead_total", "Tasks that were given up.", labels=["kind", "queue"])
    trimmed = CounterMetricFamily(
        "penstock_dead_tasks_trimmed_total", "Dead tasks that were removed beyond their limits.", labels=["queue"]
    )
    states = GaugeMetricFamily("penstock_tasks", "Tasks by state.", labels=["queue", "state"])
    main = {stream.owner: stream.name for stream in streams if stream.kind is StreamKind.TASKS}
    main |= {
        each.owner: each.name for each in streams if each.kind is StreamKind.TASKS and each.name.endswith(".tasks")
    }
    for queue in queues:
        stream = main.get(queue.name, f"{queue.name}.tasks")
        for labels, number in _bounded(
            (([stream, kind], count) for kind, count in queue.open_by_kind.items()), MOST_KINDS
        ):
            pending.add_metric([stream, labels[1]], number)
        idle.add_metric([stream], queue.longest_idle_s)
        for family, numbers in ((acked, queue.done_by_kind), (dead, queue.dead_by_kind)):
            for labels, number in _bounded(
                (([kind, queue.name], count) for kind, count in numbers.items()), MOST_KINDS
            ):
                family.add_metric([labels[0], queue.name], number)
        trimmed.add_metric([queue.name], queue.dead_trimmed)
        for state in ("queued", "running", "waiting", "scheduled", "dead"):
            states.add_metric([queue.name, state], getattr(queue, state))
    yield from (pending, idle, acked, dead, trimmed, states)


def _service_metrics(found: Overview) -> Iterable[Any]:
    services = found.services
    yield _gauges(
        "penstock_balancer_streams", "Data streams by state.", ["service", "state"],
        (
            ([each.name, state], number)
            for each in services
            for state, number in (("handed_out", each.streams), ("new", each.waiting), ("dead", each.dead_letters))
        ),
    )  # fmt: skip
    yield _gauges(
        "penstock_balancer_peers", "Consumers of a service that are alive.", ["service"],
        (([each.name], sum(peer.alive_ms > 0 for peer in each.peers)) for each in services),
    )  # fmt: skip


def _server_metrics(found: Overview) -> Iterable[Any]:
    numbers = {
        "penstock_server_memory_bytes": ("Memory that the server uses.", "used_memory"),
        "penstock_server_max_memory_bytes": ("Its limit; 0 = none.", "max_memory"),
        "penstock_server_clients": ("Connections.", "clients"),
        "penstock_server_replicas": ("Replicas that are connected.", "replicas"),
        "penstock_server_clock_skew_seconds": ("How far its clock is ahead of the exporter's.", "clock_skew_s"),
    }
    for name, (text, attribute) in numbers.items():
        rows = (([server.address], float(getattr(server, attribute))) for server in found.servers)
        yield _gauges(name, text, ["server"], rows)
