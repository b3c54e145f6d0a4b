"""Entry of `python -m bench.tasks`: measures in rounds and prints figures and targets."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace

from bench.command_count import CommandCount
from bench.environments import OWN, ROOT, EnvironmentUnavailable, Interpreter, interpreter
from bench.report import table
from bench.server import Server
from bench.tasks.roster import PEERS, Peer
from bench.window import Window, wait_for_quiet

_LIMIT_S = 180.0
_POLL_S = 0.01
TIMES_FASTER, COMMANDS = 10.0, 0.5


@contextlib.contextmanager
def process(
    peer: Peer, python: Interpreter, server: Server, role: str, count: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process of a peer in a session of its own, and ends that."""
    environment = {
        **os.environ, **python.environment(),
        "BENCH_PORT": str(server.port), "BENCH_COUNT": str(count), "BENCH_ROLE": role,
    }  # fmt: skip
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(
            [python.path, "-m", f"bench.tasks.peers.{peer.name}"],
            cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
            if started.wait() not in {0, -signal.SIGKILL}:
                log.seek(0)
                print(log.read().decode(errors="replace")[-2_000:])


def fill(peer: Peer, python: Interpreter, server: Server, count: int) -> None:
    """Adds so many tasks."""
    with process(peer, python, server, "fill", count) as filling:
        filling.wait(_LIMIT_S)


def work_off(peer: Peer, python: Interpreter, server: Server, count: int) -> dict[str, float]:
    """Lets one worker process do all tasks; times from the first that is finished to the last."""
    with process(peer, python, server, "work", count) as working:
        give_up_at = time.monotonic() + _LIMIT_S
        while (before := peer.unfinished(server.client)) >= count:
            if working.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"{peer.name} did not begin")
            time.sleep(_POLL_S)
        window, started_at = Window(server.pid, working.pid), time.monotonic()
        while (left := peer.unfinished(server.client)) > 0 and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        wall_s = time.monotonic() - started_at
        done = before - left
        figures = window.close(max(1, done))
        stored = peer.results(server.client)
    if left or stored < count:
        raise RuntimeError(f"{peer.name} left {left} tasks and stored {stored} of {count} results")
    return {"rate": done / wall_s, "tasks": count, **figures}


def commands(peer: Peer, python: Interpreter, count: int) -> dict[str, float]:
    """Counts the commands for a task that clients send, and those that the server executes, scripts included."""
    with Server() as server:
        fill(peer, python, server, count)
        with CommandCount(server) as counted, process(peer, python, server, "work", count):
            give_up_at = time.monotonic() + _LIMIT_S
            while peer.unfinished(server.client) > 0 and time.monotonic() < give_up_at:
                time.sleep(0.5)
            counted.stop()
    looks = 2  # per poll of the driver at most, one every half second: nothing beside a thousand tasks
    return {"sent": counted.sent / count, "executed": max(0, counted.executed - looks) / count}


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(peer.name for peer in PEERS))
    parser.add_argument("--against", metavar="COMMIT", help="measure Penstock of that commit in turns with that of now")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    chosen: dict[str, tuple[Peer, Interpreter]] = {}
    wanted = {peer.name: peer for peer in PEERS if peer.name in arguments.peers.split(",")}
    if arguments.against:
        then = replace(PEERS[0], environment=f"{OWN}@{arguments.against}")
        wanted[f"penstock@{arguments.against}"] = then
    for name, peer in wanted.items():
        try:
            chosen[name] = (peer, interpreter(peer.environment))
        except EnvironmentUnavailable as error:
            print(f"{name} is absent: {error}")
    rates: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for number in range(arguments.rounds):
        for name, (peer, python) in sorted(chosen.items(), reverse=number % 2 == 1):
            count = int(arguments.tasks * peer.share)
            with Server() as server:
                fill(peer, python, server, count)
                wait_for_quiet()
                try:
                    rates[name].append(work_off(peer, python, server, count))
                    print(f"round {number + 1}: {name} {rates[name][-1]['rate']:,.0f}/s", flush=True)
                except RuntimeError as error:
                    print(f"round {number + 1}: {error}", flush=True)
    counts = {
        name: commands(peer, python, int(arguments.tasks * peer.share)) for name, (peer, python) in chosen.items()
    }
    if then_rates := rates.pop(f"penstock@{arguments.against}", None):
        pairs = zip(rates["penstock"], then_rates, strict=True)
        ratios = sorted(now["rate"] / then["rate"] for now, then in pairs)
        spread = f"{ratios[0]:.2f} - {ratios[-1]:.2f}"
        print(f"now over {arguments.against}: {statistics.median(ratios):.3f} ({spread}, {len(ratios)} rounds)")
    return report(rates, counts, arguments.strict)


def report(rates: dict[str, list[dict[str, float]]], counts: dict[str, dict[str, float]], strict: bool) -> int:
    """Prints the figures and whether the targets are met."""
    medians = {name: statistics.median(row["rate"] for row in rows) for name, rows in rates.items() if rows}
    rows = [
        [
            name,
            f"{rate:,.0f}",
            f"{statistics.median(row['peer_cpu_us'] for row in rates[name]):.1f}",
            f"{statistics.median(row['server_cpu_us'] for row in rates[name]):.1f}",
            f"{counts[name]['sent']:.3f}",
            f"{counts[name]['executed']:.2f}",
        ]
        for name, rate in medians.items()
    ]
    headings = [
        "peer",
        "tasks/s",
        "worker CPU us",
        "Redis CPU us",
        "commands sent a task",
        "executed, scripts included",
    ]
    print(table(headings, rows))
    if "penstock" not in medians:
        return 1
    fastest = max((rate for name, rate in medians.items() if name != "penstock"), default=0.0)
    is_met = counts["penstock"]["sent"] <= COMMANDS
    print(f"commands a task: {counts['penstock']['sent']:.4f}, at most {COMMANDS}: {'met' if is_met else 'MISSED'}")
    if fastest:
        times = medians["penstock"] / fastest
        is_met = is_met and times >= TIMES_FASTER
        print(f"times the fastest peer: {times:.1f}, at least {TIMES_FASTER:g}: {'met' if is_met else 'MISSED'}")
    return 1 if strict and not is_met else 0


if __name__ == "__main__":
    raise SystemExit(main())
