"""What is wrong with streams, groups, consumers and services: each finding with its fix and the page about it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from penstock import ids
from penstock.errors import ClusterSlotError
from penstock.keys import QueueKeys, StreamKeys, TaskKeys, check_same_slot
from penstock.keys.stream_names import task_stream
from penstock.ops.model import (
    MAX_CONSUMERS,
    BalancedStream,
    Consumer,
    ConsumerState,
    DeadLetterStreamInfo,
    Finding,
    GroupInfo,
    GroupKind,
    RetentionInfo,
    Severity,
    StreamInfo,
    StreamKind,
)
from penstock.shown import command_line
from penstock.tasks.lanes import DEFAULT, Lane
from penstock.units import count, duration

_STUCK_S = 300.0  # age of an unread entry in a group that no consumer reads
_PINNED_S, _PINNED_ENTRIES = 86_400.0, 10_000
_DAYS_AHEAD = 1.0  # of an id, before which it may be a clock that is wrong
_DEAD_CONSUMERS = 100  # of one group: names of pods that are gone
_MANY_DEAD_LETTERS, _OLD_DEAD_LETTERS_S = 100_000, 30 * 86_400.0  # the usual limits
_CLUSTER = "how-to/cluster-sentinel-tls.md"
_RETENTION = "how-to/retention-and-full-streams.md"


def hash_tags(streams: Sequence[StreamInfo]) -> list[Finding]:
    """Return the streams whose dead letters a cluster keeps elsewhere, so that no script can move one there."""
    found = []
    for stream in streams:
        # Task queues and services choose the slot of their dead letters themselves.
        usual = {
            StreamKind.STREAM: StreamKeys(stream.name).default_dead_letters(),
            StreamKind.QUEUE: QueueKeys(stream.name).dead_letter,
        }
        if stream.kind in usual and stream.groups:
            try:
                check_same_slot(stream.name, usual[stream.kind], "dlq_stream")
            except ClusterSlotError:
                found.append(
                    Finding(
                        "hash-tags", Severity.WARNING, f"stream {stream.name}",
                        "has no hash tag: its dead letters are in another slot, so nothing can be dead-lettered",
                        f"rename it to '{{{stream.name}}}', or give its dead letters the same hash tag",
                        _CLUSTER,
                    )
                )  # fmt: skip
    return found


def short_locks(service: str, owned: Sequence[BalancedStream], failover_ms: int) -> list[Finding]:
    """Return whether the locks of a service run out before a failover is over."""
    left = [stream.lock_ms for stream in owned if stream.lock_ms is not None]
    if not left or max(left) >= failover_ms:
        return []
    return [
        Finding(
            "leases", Severity.WARNING, f"service {service}",
            f"its locks last {max(left)} ms, but a failover takes {failover_ms} ms: all streams change owners",
            "raise lease_ms, or lower cluster-node-timeout (with Sentinel, down-after-milliseconds)",
            "how-to/balancer.md",
        )
    ]  # fmt: skip


def pinned(info: RetentionInfo) -> list[Finding]:
    """Report groups that are dead or far behind and keep a stream from being trimmed."""
    found = []
    for pin in info.pins:
        is_old = pin.is_lowest and pin.age_s > _PINNED_S and info.length > _PINNED_ENTRIES
        if (pin.is_dead and pin.is_lowest and pin.age_s > _STUCK_S) or is_old:
            why = "all its consumers are dead" if pin.is_dead else f"it is {duration(pin.age_s)} behind"
            is_reader = pin.kind is not GroupKind.CONSUMERS  # by ids: what it has not read is trimmed with its group
            fix = "run its archive or Spark query" if is_reader else "start its consumers"
            # The group of a queue or a service holds its waiting messages: never suggest deleting it.
            if info.kind not in {StreamKind.QUEUE, StreamKind.TASKS, StreamKind.SERVICE}:
                fix += "; only if it is retired, " if is_reader else ", or, if it is not needed, "
                fix += command_line("group delete", info.stream, pin.group)
            found.append(
                Finding(
                    "pinned", Severity.WARNING, f"stream {info.stream}, group {pin.group}",
                    f"keeps {_some(info.length - info.finished, 'entry', 'entries')} from being trimmed: {why}",
                    fix, _RETENTION,
                )
            )  # fmt: skip
    return found


def without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out `pinned` findings of groups for which an error already says that no consumer works on them."""
    about_groups = {"dead-consumers", "no-consumer", "unknown-kind"}
    reported = {each.where for each in findings if each.severity is Severity.ERROR and each.check in about_groups}
    return [finding for finding in findings if finding.check != "pinned" or finding.where not in reported]


def consumer_findings(streams: Sequence[StreamInfo], consumers: Sequence[Consumer]) -> list[Finding]:
    """Report groups in which dead consumers hold messages that no consumer recovers, or pile up."""
    groups = {(info.name, each.name): each for info in streams for each in info.groups}
    by_group: dict[tuple[str, str], list[Consumer]] = {}
    for consumer in consumers:
        by_group.setdefault((consumer.stream, consumer.group), []).append(consumer)
    found = []
    for (stream, group), members in by_group.items():
        dead = [each for each in members if each.state is ConsumerState.DEAD]
        holding = [each for each in dead if each.pending and each.idle_ms > 1000 * _STUCK_S]
        where, held = f"stream {stream}, group {group}", sum(each.pending for each in holding)
        if holding and not _wait_for_retry(held, groups.get((stream, group))):
            found.append(
                Finding(
                    "dead-consumers", Severity.ERROR, where,
                    f"{_some(held, 'message')} of {_some(len(holding), 'dead consumer')}: no consumer recovers them",
                    "start a consumer of the group", "explanation/leases-and-fencing.md",
                )
            )  # fmt: skip
        if len(dead) > _DEAD_CONSUMERS:
            found.append(_many_consumers(where, len(dead), "dead consumers"))
    return found + [
        _many_consumers(f"stream {info.name}, group {each.name}", each.consumers, "consumers")
        for info in streams
        for each in info.groups
        if each.consumers > MAX_CONSUMERS
    ]


def _some(number: int, noun: str, plural: str = "") -> str:
    return f"{count(number)} {noun if number == 1 else plural or f'{noun}s'}"


def _wait_for_retry(held: int, group: GroupInfo | None) -> bool:
    # What waits for its next run stays with the consumer that failed, alive or not, until it is due.
    return group is not None and held <= group.retries_waiting and group.oldest_pending_idle_ms <= 1000 * _STUCK_S


def _many_consumers(where: str, count: int, what: str) -> Finding:
    return Finding(
        "dead-consumers", Severity.WARNING, where,
        f"{count} {what}: names of processes that no longer run slow down XINFO",
        "Penstock removes its own after consumer_ttl_ms; remove others with XGROUP DELCONSUMER",
        "reference/consumer-config.md",
    )  # fmt: skip


def many_groups(streams: Sequence[StreamInfo]) -> list[Finding]:
    """Return streams with more groups than are looked at: nothing is known about the others."""
    return [
        Finding(
            "many-groups", Severity.WARNING, f"stream {each.name}",
            f"{len(each.groups)} of {each.groups_count} groups were examined",
            f"list all with {command_line('group ls', each.name)}, and delete those that no consumer uses", _RETENTION,
        )
        for each in streams
        if each.groups_count > len(each.groups)
    ]  # fmt: skip


def foreign_ids(streams: Sequence[StreamInfo], now_ms: int) -> list[Finding]:
    """Report streams with an id from the future: the server continues from there."""
    found = []
    for each in streams:
        last_ms = ids.parse(each.last_generated_id)[0] if each.last_generated_id else 0
        days = (last_ms - now_ms) / 86_400_000
        if days < _DAYS_AHEAD:
            continue
        is_closed = ids.after(each.last_generated_id) == each.last_generated_id
        what = "takes no more entries: its last id is the greatest that there is"
        if not is_closed:
            what = f"its last id is {days:,.0f} days ahead, and so are all that follow: their ages are unknown"
        found.append(
            Finding(
                "foreign-ids", Severity.ERROR if is_closed else Severity.WARNING, f"stream {each.name}", what,
                "find out who chooses ids; delete the entries from there on, set the stream back with XSETID, and each "
                f"group with {command_line('group seek', each.name, 'GROUP')}",
                _RETENTION,
            )
        )  # fmt: skip
    return found


def without_live_consumers(streams: Sequence[StreamInfo], consumers: Sequence[Consumer]) -> list[Finding]:
    """Return groups whose messages wait while no consumer is alive; of tasks, what no worker can do.

    A group without consumers may mark how far a Spark query has come, which may run once a day: that is only mentioned.
    """
    alive = {(each.stream, each.group) for each in consumers if each.state is not ConsumerState.DEAD}
    found = []
    for stream in streams:
        for group in stream.groups:
            is_stuck = group.lag.count and group.lag.age_s > _STUCK_S and group.kind is not GroupKind.ARCHIVE
            if not is_stuck or (stream.name, group.name) in alive or group.consumers > MAX_CONSUMERS:
                continue  # consumers that are too many are not listed: nobody knows whether one is alive
            lane, check, severity = _lane_of(stream), "no-consumer", Severity.ERROR
            waited = duration(group.lag.age_s)
            wait = "waits" if group.lag.count == 1 else "wait"
            what = f"{_some(group.lag.count, 'message')} {wait}, the oldest for {waited}, and no consumer is alive"
            fix, link = "start a consumer of the group", "how-to/deploy-many-workers.md"
            if stream.kind is StreamKind.STREAM:
                if group.kind is GroupKind.POSITION:
                    severity, fix = Severity.INFO, "start its Spark query or a consumer"
                fix += f", or, if it is not needed, {command_line('group delete', stream.name, group.name)}"
            elif lane.kind is not None:
                check, link = "unknown-kind", "how-to/worker.md"
                tasks = _some(group.lag.count, "task")
                what = f"{tasks} of kind {lane.kind!r} {wait}, and no worker handles this kind"
                fix = "start a worker with a handler for this kind, or cancel the tasks"
            elif lane.requires:
                needed, link = ",".join(sorted(lane.requires)), "how-to/worker.md"
                tasks = f"{_some(group.lag.count, 'task')} that require{'s' if group.lag.count == 1 else ''}"
                what = f"{tasks} {needed} {wait}, and no worker provides {needed}"
                fix = f"start a worker with --capabilities {shlex.quote(needed)}, or cancel the tasks"
            found.append(Finding(check, severity, f"stream {stream.name}, group {group.name}", what, fix, link))
    return found


def _lane_of(stream: StreamInfo) -> Lane:
    of_tasks = task_stream(stream.name) if stream.kind is StreamKind.TASKS else None
    name = stream.name.removeprefix(TaskKeys(of_tasks[0]).stream_name()).removeprefix(".") if of_tasks else ""
    return Lane.parse(name) or DEFAULT


def unbounded_dead_letters(found: Sequence[DeadLetterStreamInfo], now_ms: int) -> list[Finding]:
    """Report dead-letter streams with many or old entries."""
    findings = []
    for each in found:
        age_s = (now_ms - ids.parse(each.first_id)[0]) / 1000 if each.first_id else 0.0
        ls = command_line("dlq ls --queue", each.stream)
        if each.count > _MANY_DEAD_LETTERS or age_s > _OLD_DEAD_LETTERS_S:
            findings.append(
                Finding(
                    "dead-letters", Severity.WARNING, f"stream {each.stream}",
                    f"{_some(each.count, 'dead letter')}, the oldest {_some(round(age_s / 86_400), 'day')} old",
                    f"inspect them with {ls}; redrive or purge them, and set dead_letter_limits",
                    "how-to/dead-letters.md",
                )
            )  # fmt: skip
    return findings
