"""The scenarios: which processes, which server, which faults, and how the end is judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.parquet
import redis

from campaign import faults, hostile, state
from campaign.checker import State, Verdict
from campaign.journal import Journal, lines
from campaign.recovery import Bounds
from campaign.servers import ReplicatedCluster, missing_faketime, missing_java, server_with_a_clock
from campaign.stage import Stage
from penstock.redis.embedded import EmbeddedServer
from penstock.testing import ServerMissing
from penstock.testing.servers import NEWEST
from tests.helpers.missing import usual_server
from tests.redis.sentinels import SentinelGroup

_POISON = 4  # messages of a scenario that kill every worker which handles them
_LATER = 0.1  # the share of messages whose first run asks for its retry seconds later
_OWNERS_SWEEP_S = 5.0  # how often a balancer looks for streams without an owner, by default
Play = Callable[[Stage], Verdict]


@dataclass(frozen=True)
class Scenario:
    """One part of Penstock under some faults; `weight` is its share of the messages, `time` that of the minutes."""

    name: str
    about: str
    play: Play
    weight: float = 1.0
    time: float = 1.0
    missing: Callable[[], str] = str
    """Returns what this machine lacks and how to get it, or nothing."""


class Missing(Exception):
    """This machine lacks what a scenario needs; the text says how to get it."""


def _server(**settings: object) -> EmbeddedServer:
    try:
        return usual_server().server(**settings)
    except ServerMissing as error:
        raise Missing(str(error)) from error


def _hold(stage: Stage, sweep: float, group: str = "workers") -> None:
    """Have the stage ask who holds what; `sweep` is how often a worker looks for dead ones, in leases."""
    stage.bounds = Bounds(stage.lease_s, sweep * stage.lease_s)
    stage.holding = lambda child: state.held_by(stage.raw, stage.stream, group, child.pid)


def _activities(stage: Stage, part: str, asyncs: int = 2, syncs: int = 2, **job: object) -> None:
    for half in ["async"] * asyncs + ["sync"] * syncs:
        stage.worker(part, half, **job)


def _judge_stream(stage: Stage, group: str = "workers", dead: str = "") -> Verdict:
    stream, letters = stage.stream, dead or f"{stage.stream}_dlq"
    stage.drain(lambda: state.is_quiet(stage.raw, stream, group))
    return stage.verdict(lambda: state.of_stream(stage.raw, stream, group, letters))


# --- streams ----------------------------------------------------------------------------------------


def streams(stage: Stage) -> Verdict:
    stage.lease_s = 3.0
    stage.serve(_server())
    stage.publish("streams", "async", "sync", poison=_POISON / stage.messages, later=_LATER)
    _activities(stage, "streams", max_deliveries=5)
    _hold(stage, 1 / 2)
    stage.play([faults.kill, faults.freeze, faults.nap, faults.term])
    return _judge_stream(stage)


def links(stage: Stage) -> Verdict:
    stage.serve(_server(), through_proxy=True)
    stage.publish("streams", "async", "sync")
    _activities(stage, "streams")
    stage.play(
        [faults.lost_reply, faults.lost_reply, faults.half_reply, faults.reset, faults.mute, faults.delay], (0.1, 0.6)
    )
    return _judge_stream(stage)


def server(stage: Stage) -> Verdict:
    stage.extra["data"] = stage.folder / "data"
    # With `everysec` a server that waits for its fsync answers before it has written, and SIGKILL takes that along.
    fsync, kind = ("everysec", NEWEST) if stage.durability else ("no", usual_server())
    options = {"appendfsync": fsync, "auto-aof-rewrite-percentage": "0", "logfile": str(stage.folder / "server.log")}
    program = faults.survives_a_full_disk(kind.binary(), stage.folder)
    started = EmbeddedServer(program, directory=stage.extra["data"], options=options)
    stage.serve(started)
    stage.publish("streams", "async", "sync")
    _activities(stage, "streams")
    chosen = [faults.server_kill, faults.server_kill, faults.script_flush, faults.client_pause, faults.max_memory]
    stage.play([*chosen, faults.full_disk], (0.5, 2.0))
    stage.raw.config_set("maxmemory", 0)
    return _judge_stream(stage)


def flushed(stage: Stage) -> Verdict:
    stage.serve(_server())
    stage.publish("streams", "async", "sync")
    _activities(stage, "streams")
    stage.play([faults.flush_all], (3.0, 6.0))
    return _judge_stream(stage)


def starved(stage: Stage) -> Verdict:
    stage.lease_s = 10.0  # the default
    stage.serve(_server())
    stage.publish("streams", "async", "sync")
    _activities(stage, "streams")
    stage.play([faults.starve], (1.0, 3.0))
    return _judge_stream(stage)


def clock(stage: Stage) -> Verdict:
    stage.extra["clock"] = stage.folder / "clock"
    stage.serve(stage.resources.enter_context(server_with_a_clock(stage.extra["clock"])))
    stage.publish("streams", "async", "sync")
    _activities(stage, "streams")
    _hold(stage, 1 / 2)
    stage.play([faults.clock_jump, faults.kill], (2.0, 4.0))
    # What failed while the clock was an hour ahead is due in an hour: have that hour pass.
    began = time.time()
    stage.extra["clock"].write_text("+3700")
    stage.note_outage("clock_jump", began, lasting_s=stage.lease_s)
    return _judge_stream(stage)


# --- Sentinel, cluster ------------------------------------------------------------------------------


def sentinel(stage: Stage) -> Verdict:
    if stage.durability == "local":
        raise Missing("its servers have no append-only file")
    group = stage.resources.enter_context(SentinelGroup(stage.folder, sentinels=3, replicas=2))
    stage.extra["sentinels"], stage.url = group, group.url
    stage.look_through(lambda: redis.Redis(unix_socket_path=group.master().unix_socket, protocol=2))
    stage.publish("streams", "async", "sync", durability="replicated", budget_s=60.0)
    _activities(stage, "streams")
    stage.play([faults.fail_over], (2.0, 4.0))
    return _judge_stream(stage)


def cluster(stage: Stage) -> Verdict:
    options = {"appendonly": "yes"} if stage.durability == "local" else None
    nodes = stage.resources.enter_context(ReplicatedCluster(options))
    stage.extra["cluster"], stage.url, stage.stream = nodes, nodes.url, "{orders}"
    client = stage.resources.enter_context(nodes.client())
    stage.look_through(lambda: client)
    stage.publish("streams", "async", "sync", durability="replicated", budget_s=60.0)
    _activities(stage, "streams")
    stage.play([faults.slot_migration, faults.slot_migration, faults.cluster_kill], (1.0, 3.0))
    return _judge_stream(stage)


# --- queue, tasks, schedules, balancer --------------------------------------------------------------


def queue(stage: Stage) -> Verdict:
    stage.serve(_server(), through_proxy=True)
    stage.publish("queue", "sync", "sync", "sync", "sync", poison=_POISON / stage.messages)
    _activities(stage, "queue", asyncs=3, syncs=3, max_deliveries=5)
    _hold(stage, 1 / 10, "queue")
    stage.play(
        [faults.kill, faults.freeze, faults.nap, faults.term, faults.lost_reply, faults.half_reply, faults.reset]
    )
    return _judge_stream(stage, "queue", f"{stage.stream}::dlq")


def tasks(stage: Stage) -> Verdict:
    stage.serve(_server(), through_proxy=True)
    stage.publish("tasks", "async", "async", poison=_POISON / stage.messages, later=_LATER)
    for _ in range(3):
        stage.worker("tasks", results=str(stage.folder / "results"), max_deliveries=4)
    _hold(stage, 1 / 4)
    stage.holding = lambda child: state.tasks_held_by(stage.raw, stage.stream, child.pid)
    stage.play(
        [faults.kill, faults.freeze, faults.nap, faults.term, faults.lost_reply, faults.half_reply, faults.reset]
    )

    def is_quiet() -> bool:
        lanes = state.lanes(stage.raw, stage.stream)
        waiting = stage.raw.hlen(f"{{{stage.stream}}}:bodies")
        return not waiting and all(state.is_quiet(stage.raw, lane, stage.stream) for lane in lanes)

    def found() -> State:
        held = state.of_tasks(stage.raw, stage.stream)
        held.saved = state.saved_results(stage.folder / "results")
        return held

    stage.drain(is_quiet)
    return stage.verdict(found)


def cron(stage: Stage) -> Verdict:
    """Schedules of a minute, so many that each tick is a load; the schedulers are killed all the time."""
    stage.serve(_server())
    schedules = max(10, min(500, stage.messages))
    for _ in range(4):
        stage.worker("cron", schedules=schedules)
    began = time.time()
    stage.play_for(max(75.0, stage.seconds), [faults.kill, faults.term, faults.freeze], (0.3, 1.5))
    end = time.time()
    stage.drain(
        lambda: all(state.is_quiet(stage.raw, lane, stage.stream) for lane in state.lanes(stage.raw, stage.stream))
    )
    # Ticks that the schedulers must have seen: they were there some seconds before, and after.
    minutes = [
        minute * 60 for minute in range(int(began // 60), int(end // 60) + 1) if began + 10 < minute * 60 < end - 5
    ]
    moments = [time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(minute)) for minute in minutes]
    due = {f"cron.s{number}.{moment}" for moment in moments for number in range(schedules)}
    journal = Journal(stage.folder / "producer-cron.journal")
    for tick in sorted(due):
        journal.note("confirmed", tick)

    def found() -> State:
        held = state.of_tasks(stage.raw, stage.stream)
        held.queued &= due  # the next tick is in the queue already
        held.is_steady = False
        return held

    return stage.verdict(found)


def balancer(stage: Stage) -> Verdict:
    stage.lease_s = 2.0  # the lock of an owner
    stage.stream = "svc"
    stage.serve(_server(), through_proxy=True)
    stage.publish("balancer", "async", "async", sessions=100)
    for _ in range(4):
        stage.worker("balancer")
    stage.bounds = Bounds(stage.lease_s, _OWNERS_SWEEP_S)
    stage.holding = lambda child: state.sessions_held_by(stage.raw, stage.stream, child.job["id"])
    stage.play([faults.kill, faults.freeze, faults.term, faults.reset, faults.lost_reply])
    stage.drain(lambda: state.are_sessions_quiet(stage.raw, stage.stream))
    return stage.verdict(lambda: state.of_sessions(stage.raw, stage.stream))


def spark(stage: Stage) -> Verdict:
    """A pipeline whose driver is killed: its table must hold every row once, whatever was repeated."""
    stage.lease_s, table = 30.0, stage.folder / "table"  # how long a driver may take to come back
    stage.serve(_server(port=0))
    stage.url = stage.server.url if stage.server else ""
    stage.seconds = max(120.0, stage.seconds)
    stage.publish("streams", "async")
    stage.worker("pipeline", module="campaign.pipeline", table=str(table))
    seen = 0

    def rows() -> list[int]:
        is_there = any(table.glob("batch=*/*.parquet"))
        return list(pyarrow.parquet.read_table(table)["n"].to_pylist()) if is_there else []

    def strike(stage: Stage) -> None:
        """Kill a driver that has written something: one that only starts is not worth it."""
        nonlocal seen
        if len(rows()) > seen:
            seen = len(rows())
            stage.chance.choice([faults.kill, faults.kill, faults.term])(stage)

    stage.play_for(stage.seconds, [strike], (1.0, 5.0))
    stage.finish_publishing()
    confirmed = sum(line.what == "confirmed" for line in lines(stage.folder, "producer"))
    stage.drain(lambda: len(rows()) >= confirmed)
    journal = Journal(stage.folder / "worker-table.journal")
    for n in rows():
        journal.note("begin", n)
        journal.note("end", n)
    return stage.verdict(lambda: State(is_steady=False))


def hostile_entries(stage: Stage) -> Verdict:
    stage.serve(_server())
    return hostile.play(stage)


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("streams", "consumers killed, frozen, stopped, poisoned", streams, 3.0, 1.5),
        Scenario("links", "consumers and producers behind a proxy that loses, cuts, resets, mutes, delays", links, 2.0),
        Scenario("server", "the server killed, at its memory limit, out of disk, paused, without scripts", server, 2.0),
        Scenario("flushed", "FLUSHALL under load", flushed, 1.0, 0.5),
        Scenario("starved", "three busy processes a core", starved, 1.0, 0.5),
        Scenario("clock", "the server's clock jumps", clock, 1.0, 0.5, missing=missing_faketime),
        Scenario("sentinel", "the master killed or frozen until another is promoted, and back", sentinel, 0.5, 1.5),
        Scenario("cluster", "nodes killed, the slot of the stream on the move", cluster, 0.5, 1.5),
        Scenario("queue", "a queue with deduplication, its workers and links broken", queue, 1.5),
        Scenario("tasks", "tasks with results in files, their workers and links broken", tasks, 1.0),
        Scenario("cron", "schedulers killed around their ticks", cron, 0.1, 1.3),
        Scenario("balancer", "owners of a hundred streams killed, frozen, stopped", balancer, 1.0),
        Scenario("spark", "a pipeline whose driver is killed", spark, 0.3, 1.5, missing=missing_java),
        Scenario("hostile", "entries that no honest producer writes, for every reader and tool", hostile_entries, 1.1),
    )
}
