"""The faults: each breaks one thing on a stage, notes it, and sees that it is mended."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis

from campaign.stage import Stage
from penstock.redis.embedded import EmbeddedServer

Fault = Callable[[Stage], None]
_COMMANDS = ("EVALSHA", "EVALSHA", "XREADGROUP", "XPENDING", "XACK")
_BURNERS_PER_CORE = 3
_BURN = """import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
while True: pass
"""

# --- processes --------------------------------------------------------------------------------------


def kill(stage: Stage) -> None:
    """SIGKILL a worker."""
    for child in stage.chance.sample(stage.live(), min(1, len(stage.live()))):
        began = time.time()
        child.end(signal.SIGKILL)
        child.wait()
        stage.note("kill", child.name, began, time.time(), explains="all")
        stage.note_held(child)


def freeze(stage: Stage) -> None:
    """SIGSTOP a worker for longer than its lease; the last one that runs is spared."""
    _freeze(stage, "freeze", stage.chance.uniform(1.3, 1.8))


def nap(stage: Stage) -> None:
    """SIGSTOP a worker for less than half of its lease: it may not lose anything."""
    _freeze(stage, "nap", stage.chance.uniform(0.1, 0.4))


def _freeze(stage: Stage, kind: str, leases: float) -> None:
    if len(stage.live()) < 2:
        return
    child, began = stage.chance.choice(stage.live()), time.time()
    child.freeze()
    if kind == "freeze":
        stage.note_held(child)

    def thaw() -> None:
        child.thaw()
        stage.note_outage(kind, began, child.name)

    stage.later(leases * stage.lease_s, thaw)


def term(stage: Stage) -> None:
    """SIGTERM a worker: it finishes or hands back what it has."""
    for child in stage.chance.sample(stage.live(), min(1, len(stage.live()))):
        child.end(signal.SIGTERM)
        stage.note("term", child.name, explains="unended")


# --- links ------------------------------------------------------------------------------------------


def lost_reply(stage: Stage) -> None:
    """Lose the reply to a command that the server has executed."""
    assert stage.proxy is not None
    ending = stage.chance.choice(["close", "reset", "black_hole"])
    armed = stage.proxy.drop_reply(stage.chance.choice(_COMMANDS), stage.chance.randrange(1, 20), ending=ending)
    stage.armed.append(("lost_reply", armed))


def half_reply(stage: Stage) -> None:
    """Cut a reply in the middle."""
    assert stage.proxy is not None
    armed = stage.proxy.cut_reply(stage.chance.choice(_COMMANDS), stage.chance.randrange(1, 20))
    stage.armed.append(("half_reply", armed))


def reset(stage: Stage) -> None:
    """Reset every connection."""
    assert stage.proxy is not None
    stage.proxy.reset_all()
    stage.note("reset")


def mute(stage: Stage) -> None:
    """Swallow every byte for a while, as a dead router does."""
    assert stage.proxy is not None
    stage.proxy.black_hole()
    before, ended = stage.extra.get("mute", (0.0, 0.0))
    now = time.time()
    began = before if now < ended else now  # whoever was cut off the last time may still be
    time.sleep(stage.chance.uniform(0.1, 0.15 * stage.lease_s))
    stage.proxy.heal()
    # Whoever asked or connected meanwhile finds out when its time-out is over, and may need two.
    stage.extra["mute"] = began, time.time() + 2 * stage.socket_timeout_s
    stage.note_outage("mute", began, lasting_s=2 * stage.socket_timeout_s)


def delay(stage: Stage) -> None:
    """Hold every reply back for up to a second, for some seconds."""
    assert stage.proxy is not None
    proxy = stage.proxy
    proxy.delay_replies(stage.chance.uniform(0.05, 0.8 * stage.socket_timeout_s))
    time.sleep(stage.chance.uniform(0.5, 2.0))
    proxy.delay_replies(0)
    stage.note("delay")


# --- the server -------------------------------------------------------------------------------------


def server_kill(stage: Stage) -> None:
    """SIGKILL the server, which has an append-only file, and start it again."""
    assert stage.server is not None
    began = time.time()
    stage.server.kill()
    time.sleep(stage.chance.uniform(0.05, 0.1 * stage.lease_s))
    stage.server.start()
    stage.note_outage("server_kill", began)


def script_flush(stage: Stage) -> None:
    """Have the server forget its scripts."""
    stage.raw.script_flush()
    stage.note("script_flush")


def client_pause(stage: Stage) -> None:
    """Have the server answer nobody for less than half of a lease."""
    ms = int(stage.chance.uniform(50, 400 * stage.lease_s))
    began = time.time()
    stage.raw.execute_command("CLIENT", "PAUSE", ms, stage.chance.choice(["WRITE", "ALL"]))
    stage.note("client_pause", "*", began, began + ms / 1000)


def max_memory(stage: Stage) -> None:
    """Have the server at its memory limit for a second or two: publishing is refused, everything else goes on."""
    stage.raw.config_set("maxmemory", max(1, int(stage.raw.info("memory")["used_memory"]) - 1))

    def lift() -> None:
        stage.raw.config_set("maxmemory", 0)

    stage.later(stage.chance.uniform(0.5, 2.0), lift)
    stage.note("max_memory")


def full_disk(stage: Stage) -> None:
    """Let no file of the server grow for a second: it refuses writes until there is room."""
    assert stage.server is not None
    pid, began = stage.server.pid, time.time()
    size = max(path.stat().st_size for path in Path(stage.extra["data"]).rglob("*") if path.is_file())
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    time.sleep(stage.chance.uniform(0.5, 0.25 * stage.lease_s))
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    stage.note_outage("full_disk", began)


def survives_a_full_disk(server_program: Path, folder: Path) -> Path:
    """Return a program that starts the server so that a file which may not grow is an error and not its death."""
    script = folder / "server"
    script.write_text(f'#!/bin/sh\ntrap "" XFSZ\nexec "{server_program}" "$@"\n')
    script.chmod(0o755)
    return script


def flush_all(stage: Stage) -> None:
    """Delete everything that the server has."""
    began = time.time()
    stage.raw.flushall()
    stage.note("flushall", "*", began, time.time(), "all")  # what the group had finished is forgotten as well


def clock_jump(stage: Stage) -> None:
    """Set the server's clock an hour ahead or a minute back, and right again after some seconds."""
    clock, began = stage.extra["clock"], time.time()
    clock.write_text(stage.chance.choice(["+3600", "-60"]))

    def back() -> None:
        clock.write_text("+0")
        stage.note("clock_jump", "*", began, time.time(), "all")

    stage.later(stage.chance.uniform(1.0, 3.0), back)


def starve(stage: Stage) -> None:
    """Have busy processes compete for every core for some seconds."""
    if stage.extra.get("burners"):
        return
    count = _BURNERS_PER_CORE * (os.cpu_count() or 2)
    burners = [
        subprocess.Popen([sys.executable, "-c", _BURN], stdin=subprocess.PIPE, start_new_session=True)
        for _ in range(count)
    ]
    stage.extra["burners"] = burners
    began = time.time()

    def end() -> None:
        for burner in burners:
            burner.kill()
            burner.wait()
            assert burner.stdin is not None
            burner.stdin.close()
        stage.extra["burners"] = []
        stage.note("starve", "*", began, time.time())

    stage.later(stage.chance.uniform(4.0, 8.0), end)


# --- Sentinel ---------------------------------------------------------------------------------------


def fail_over(stage: Stage) -> None:
    """Kill or freeze the master until the Sentinels have another; then have the old one come back."""
    group = stage.extra["sentinels"]
    master: EmbeddedServer = group.master()
    began, is_kill = time.time(), stage.chance.random() < 0.5
    if is_kill:
        master.kill()
    else:
        os.kill(master.pid, signal.SIGSTOP)
    _wait_until(stage, lambda: group.master() is not master)
    _wait_until(stage, lambda: _has_replica(group.master()))
    served = time.time()  # the failover is over: a write can be confirmed as replicated
    if is_kill:
        master.start()
    else:
        time.sleep(1.0)
        os.kill(master.pid, signal.SIGCONT)
    _wait_until(stage, lambda: _follows_another(master))
    # Acknowledgements that had not reached the new master are undone.
    stage.note("failover_kill" if is_kill else "failover_freeze", "*", began, time.time(), "all", served)


def _has_replica(server: EmbeddedServer) -> bool:
    with contextlib.suppress(redis.RedisError), redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        told = client.info("replication")
        return any(told[f"slave{number}"]["state"] == "online" for number in range(told["connected_slaves"]))
    return False


def _follows_another(old: EmbeddedServer) -> bool:
    with contextlib.suppress(redis.RedisError), redis.Redis(unix_socket_path=old.unix_socket, protocol=2) as client:
        return bool(client.info("replication").get("master_link_status") == "up")
    return False


# --- cluster ----------------------------------------------------------------------------------------


def cluster_kill(stage: Stage) -> None:
    """Kill the node that has the stream until a replica takes over; then have it come back."""
    cluster, began = stage.extra["cluster"], time.time()
    victim = cluster.owner(stage.stream)
    victim.kill()
    _wait_until(stage, lambda: cluster.owner(stage.stream) not in {victim, None})
    restored = time.time()
    victim.start()
    _wait_until(stage, lambda: _follows_another(victim))
    stage.note("cluster_kill", "*", began, time.time(), "all", restored)


def slot_migration(stage: Stage) -> None:
    """Move the slot of the stream to another node, key by key."""
    began = time.time()
    stage.extra["cluster"].migrate(stage.stream, stage.chance)
    stage.note("slot_migration", "*", began, time.time())


def _wait_until(stage: Stage, condition: Callable[[], bool], timeout_s: float = 40.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            stage.crashes.append("the servers of the campaign did not recover: this says nothing about Penstock")
            return
        stage.tick()
        time.sleep(0.05)
