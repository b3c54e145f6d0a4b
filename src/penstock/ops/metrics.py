"""Prometheus metrics of everything on a server, from the last sample: a scrape asks nothing of Redis.

`queue_pending_total`, `queue_pending_idle_max_seconds`, `queue_ack_total` and `queue_dead_total` are names that
dashboards of task queues know; all others begin with `penstock_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock import ids
from penstock.errors import ConfigurationError
from penstock.keys import TaskKeys
from penstock.ops.model import GroupInfo, GroupLag, Overview, ReaderPosition, StreamInfo, StreamKind, TaskQueueInfo
from penstock.ops.sampler import Sampler
from penstock.ops.streams import dead_letters_of

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover
    raise ConfigurationError("metrics need prometheus-client: pip install 'penstock[metrics]'") from error

# What has labels of its own; the others share `other`.
MAX_STREAMS, MAX_GROUPS, MAX_QUEUES, MAX_KINDS = 1_000, 2_000, 100, 200
OTHER = "other"
_STREAM, _GROUP, _READER = ["stream"], ["stream", "group"], ["stream", "reader", "kind"]

Rows = Iterable[tuple[Sequence[str], float]]  # values of the labels, and the number
Combine = Callable[[Iterable[float]], float]  # the numbers of those that share a label


class InspectorCollector(Collector):
    """What the last sample of a Sampler saw: streams, groups, queues, tasks, Spark queries, services, servers."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def collect(self) -> Iterable[Any]:
        """Yield the metrics; `penstock_up` is 0 while there are none, because Redis does not answer."""
        last, found = self._sampler.samples[-1:], self._sampler.overview
        is_up = bool(last) and not last[0].error and found is not None
        yield GaugeMetricFamily("penstock_up", "1 if Redis answered at the last sample, else 0.", value=is_up)
        if found is None or not is_up:
            return
        yield GaugeMetricFamily(
            "penstock_sample_time_seconds", "Unix time of the last sample.", value=found.at_ms / 1000
        )
        yield from _stream_metrics(found.streams)
        yield from _group_metrics(found.streams, self._sampler.lags())
        yield from _queue_metrics(found.streams)
        yield from _task_metrics(found.task_queues, found.streams)
        yield from _reader_metrics(self._sampler.positions())
        yield from _service_metrics(found)
        yield from _server_metrics(found)


def _gauges(
    name: str, text: str, labels: Sequence[str], rows: Rows, most: int = MAX_GROUPS, combine: Combine = sum
) -> Any:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in _bounded(rows, most, combine):
        family.add_metric(values, number)
    return family


def _counters(name: str, text: str, labels: Sequence[str], rows: Rows, most: int = MAX_GROUPS) -> Any:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in _bounded(rows, most):
        family.add_metric(values, number)
    return family


def _bounded(rows: Rows, most: int, combine: Combine = sum) -> list[tuple[Sequence[str], float]]:
    # Clients choose the names: Prometheus should not get a label for each, and would drop all but the first of those
    # that look the same because they are not UTF-8.
    found: dict[tuple[str, ...], list[float]] = {}
    for labels, number in rows:
        shared = tuple(labels) if tuple(labels) in found or len(found) < most else (OTHER,) * len(labels)
        found.setdefault(shared, []).append(number)
    return [(list(labels), combine(numbers)) for labels, numbers in found.items()]


def _stream_metrics(streams: Sequence[StreamInfo]) -> Iterable[Any]:
    yield GaugeMetricFamily("penstock_streams", "Streams on the server.", value=len(streams))
    yield _gauges(
        "penstock_stream_length", "Entries of a stream.", [*_STREAM, "kind"],
        (([each.name, each.kind.value], each.length) for each in streams), MAX_STREAMS,
    )  # fmt: skip
    yield _counters(
        "penstock_stream_added_total", "Entries added since the stream was created.", _STREAM,
        (([each.name], each.entries_added) for each in streams if each.entries_added is not None), MAX_STREAMS,
    )  # fmt: skip
    yield _gauges(
        "penstock_stream_groups_unlisted", "Groups of a stream beyond the first 64, which have no metrics.", _STREAM,
        (([each.name], more) for each in streams if (more := each.groups_count - len(each.groups)) > 0), MAX_STREAMS,
    )  # fmt: skip
    yield _gauges(
        "penstock_dead_letters", "Dead letters.", ["stream", "owner"],
        (([name, owner], count) for name, (owner, count) in dead_letters_of(streams).items()), MAX_STREAMS,
    )  # fmt: skip


def _group_metrics(streams: Sequence[StreamInfo], lags: Sequence[GroupLag]) -> Iterable[Any]:
    def of_lags(name: str, text: str, number: Callable[[GroupLag], float | None], combine: Combine = sum) -> Any:
        numbers = ((each, number(each)) for each in lags)
        rows = (([each.stream, each.group], found) for each, found in numbers if found is not None)
        return _gauges(name, text, _GROUP, rows, combine=combine)

    def of_groups(name: str, text: str, number: Callable[[GroupInfo], float], combine: Combine = sum) -> Any:
        rows = (([group.stream, group.name], number(group)) for stream in streams for group in stream.groups)
        return _gauges(name, text, _GROUP, rows, combine=combine)

    yield of_lags("penstock_group_lag", "Entries not yet delivered to the group.", lambda each: each.count)
    yield of_lags(
        "penstock_group_lag_is_exact",
        "1 if the lag is exact, 0 if it is an upper bound.",
        lambda each: float(each.is_exact),
        min,
    )
    yield of_lags(
        "penstock_group_oldest_unread_seconds", "Age of the oldest unread entry.", lambda each: each.age_s, max
    )
    yield of_lags("penstock_group_in_per_second", "Entries added per second.", lambda each: each.in_per_s)
    yield of_lags("penstock_group_out_per_second", "Entries delivered per second.", lambda each: each.out_per_s)
    yield of_lags(
        "penstock_group_drain_seconds",
        "Estimated seconds until the group has caught up; +Inf = never at the current rates.",
        _drain_s,
        max,
    )
    yield of_groups("penstock_group_pending", "Messages held by consumers (pending).", lambda each: each.pending)
    yield of_groups(
        "penstock_group_retries_waiting", "Failed messages waiting to be retried.", lambda each: each.retries_waiting
    )
    yield of_groups(
        "penstock_group_oldest_pending_idle_seconds", "Seconds since the oldest pending message was renewed or due.",
        lambda each: each.oldest_pending_idle_ms / 1000, max,
    )  # fmt: skip
    yield of_groups("penstock_group_consumers", "Consumers, including dead ones.", lambda each: each.consumers)


def _drain_s(lag: GroupLag) -> float | None:
    if lag.in_per_s is None:
        return None
    return float("inf") if lag.drain_s is None else lag.drain_s


def _queue_metrics(streams: Sequence[StreamInfo]) -> Iterable[Any]:
    rows = (
        ([each.name, state], number)
        for each in streams
        if each.kind is StreamKind.QUEUE
        for state, number in _messages(each).items()
    )
    yield _gauges("penstock_queue_messages", "Messages of message queues by state.", ["queue", "state"], rows)


def _messages(queue: StreamInfo) -> dict[str, int]:
    retrying = sum(group.retries_waiting for group in queue.groups)
    return {
        "pending": queue.lag.count if queue.lag else queue.length,
        "processing": max(0, queue.pending - retrying),
        "retrying": retrying,
        "dead": queue.dead_letters,
    }


def _reader_metrics(positions: Sequence[ReaderPosition]) -> Iterable[Any]:
    """Yield the metrics of Spark queries, pipelines and archives, which read by ids and have no consumers."""
    labelled = [([each.stream, each.group, each.kind.value], each) for each in positions]
    yield _gauges(
        "penstock_reader_lag", "Entries that a Spark query, pipeline or archive has not committed.", _READER,
        ((labels, each.lag.count) for labels, each in labelled),
    )  # fmt: skip
    yield _gauges(
        "penstock_reader_oldest_unread_seconds", "Age of the oldest entry that the reader has not committed.", _READER,
        ((labels, each.lag.age_s) for labels, each in labelled), combine=max,
    )  # fmt: skip
    yield _gauges(
        "penstock_reader_position_time_seconds", "Unix time at which the last committed entry was added.", _READER,
        ((labels, ids.parse(each.position)[0] / 1000) for labels, each in labelled), combine=min,
    )  # fmt: skip


def _task_metrics(queues: Sequence[TaskQueueInfo], streams: Sequence[StreamInfo]) -> Iterable[Any]:
    main = {stream.owner: stream.name for stream in streams if stream.kind is StreamKind.TASKS}
    main |= {
        each.owner: each.name for each in streams if each.kind is StreamKind.TASKS and each.name.endswith(".tasks")
    }
    named = [(main.get(queue.name, TaskKeys(queue.name).stream_name()), queue) for queue in queues]
    yield _gauges(
        "queue_pending_total", "Open tasks.", ["stream", "kind"],
        (([stream, kind], number) for stream, queue in named for kind, number in _by_kind(queue.open_by_kind)),
    )  # fmt: skip
    yield _gauges(
        "queue_pending_idle_max_seconds", "Longest time since the lease of a running task was renewed.", _STREAM,
        (([stream], queue.longest_idle_s) for stream, queue in named), MAX_QUEUES, max,
    )  # fmt: skip
    yield _counters(
        "queue_ack_total", "Finished tasks.", ["kind", "queue"],
        (([kind, queue.name], number) for queue in queues for kind, number in _by_kind(queue.done_by_kind)),
    )  # fmt: skip
    yield _counters(
        "queue_dead_total", "Dead-lettered tasks.", ["kind", "queue"],
        (([kind, queue.name], number) for queue in queues for kind, number in _by_kind(queue.dead_by_kind)),
    )  # fmt: skip
    yield _counters(
        "penstock_dead_tasks_trimmed_total", "Dead tasks removed by dead_letter_limits.", ["queue"],
        (([queue.name], queue.dead_trimmed) for queue in queues), MAX_QUEUES,
    )  # fmt: skip
    states = ("queued", "running", "waiting", "scheduled", "dead")
    yield _gauges(
        "penstock_tasks", "Tasks by state.", ["queue", "state"],
        (([queue.name, state], getattr(queue, state)) for queue in queues for state in states),
        MAX_QUEUES * len(states),
    )  # fmt: skip


def _by_kind(numbers: Mapping[str, int]) -> Iterable[tuple[str, float]]:
    rows = _bounded((([kind], number) for kind, number in numbers.items()), MAX_KINDS)
    return ((kind, number) for [kind], number in rows)


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
        "penstock_balancer_peers", "Live consumers of the service.", ["service"],
        (([each.name], sum(peer.alive_ms > 0 for peer in each.peers)) for each in services),
    )  # fmt: skip


def _server_metrics(found: Overview) -> Iterable[Any]:
    numbers = {
        "penstock_server_memory_bytes": ("Memory used by the server.", "used_memory"),
        "penstock_server_max_memory_bytes": ("Memory limit of the server; 0 = no limit.", "max_memory"),
        "penstock_server_clients": ("Connections.", "clients"),
        "penstock_server_replicas": ("Connected replicas.", "replicas"),
        "penstock_server_clock_skew_seconds": (
            "Seconds by which the server's clock is ahead of the exporter's.",
            "clock_skew_s",
        ),
    }
    for name, (text, attribute) in numbers.items():
        rows = (([server.address], float(getattr(server, attribute))) for server in found.servers)
        yield _gauges(name, text, ["server"], rows)
