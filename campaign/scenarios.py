"""The scenarios: which processes, which server, which faults, and how the end is judged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

from campaign import faults, state
from campaign.checker import Verdict
from campaign.stage import Stage
from penstock.redis.embedded import EmbeddedServer
from penstock.testing import ServerMissing
from tests.helpers.missing import usual_server

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


def _crew(stage: Stage, part: str, asyncs: int = 2, syncs: int = 2, **job: object) -> None:
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
    stage.publish("streams", "async", "sync", poison=0.0003)
    _crew(stage, "streams", max_deliveries=5)
    stage.play([faults.kill, faults.freeze, faults.nap, faults.term])
    return _judge_stream(stage)


def links(stage: Stage) -> Verdict:
    stage.serve(_server(), through_proxy=True)
    stage.publish("streams", "async", "sync")
    _crew(stage, "streams")
    stage.play(
        [faults.lost_reply, faults.lost_reply, faults.half_reply, faults.reset, faults.mute, faults.delay], (0.1, 0.6)
    )
    return _judge_stream(stage)


def server(stage: Stage) -> Verdict:
    program = usual_server().binary()
    stage.extra["data"] = stage.folder / "data"
    started = EmbeddedServer(
        faults.survives_a_full_disk(program, stage.folder), directory=stage.extra["data"],
        options={"auto-aof-rewrite-percentage": "0"},
    )  # fmt: skip
    stage.serve(started)
    stage.publish("streams", "async", "sync")
    _crew(stage, "streams")
    chosen = [faults.server_kill, faults.server_kill, faults.script_flush, faults.client_pause, faults.max_memory]
    stage.play([*chosen, faults.full_disk] if shutil.which("sh") else list(chosen), (0.5, 2.0))
    stage.raw.config_set("maxmemory", 0)
    return _judge_stream(stage)


def flushed(stage: Stage) -> Verdict:
    stage.serve(_server())
    stage.publish("streams", "async", "sync")
    _crew(stage, "streams")
    stage.play([faults.flush_all], (3.0, 6.0))
    return _judge_stream(stage)


def starved(stage: Stage) -> Verdict:
    stage.lease_s = 10.0  # the default
    stage.serve(_server())
    stage.publish("streams", "async", "sync")
    _crew(stage, "streams")
    stage.play([faults.starve], (1.0, 3.0))
    return _judge_stream(stage)


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("streams", "consumers killed, frozen, stopped, poisoned", streams, 3.0, 1.5),
        Scenario("links", "consumers and producers behind a proxy that loses, cuts, resets, mutes, delays", links, 2.0),
        Scenario("server", "the server killed, at its memory limit, out of disk, paused, without scripts", server, 2.0),
        Scenario("flushed", "FLUSHALL under load", flushed, 1.0, 0.5),
        Scenario("starved", "three busy processes a core", starved, 1.0, 0.5),
    )
}
