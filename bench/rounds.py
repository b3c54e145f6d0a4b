"""Runs the measurements: rounds interleaved over the peers, a fresh server each, disturbed or failed ones once more."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis

from bench import progress
from bench.child import ChildFailed
from bench.environments import EnvironmentUnavailable, interpreter
from bench.figures import Figures, Sample, Samples
from bench.measurements import drain, latency, memory, pel, publish
from bench.measurements.subject import Subject
from bench.plan import Plan
from bench.roster import PEERS, Peer, at_commit
from bench.server import Server, ServerFailed
from bench.window import wait_for_quiet

Measurement = Callable[[Subject, Server, Plan], Figures]

MEASUREMENTS: dict[str, Measurement] = {
    "publish-one": publish.one_by_one,
    "publish-50": publish.fifty_callers,
    "publish-bulk": publish.bulk,
    "drain-batch": drain.drain,
    "drain-each": drain.drain,
    "latency": latency.latency,
    "pel": pel.pel,
    "queue-publish": publish.one_by_one,
    "queue-consume": drain.drain,
    "queue-latency": latency.latency,
    "queue-memory": memory.in_flight,
}


def find_subjects(names: list[str], against: str | None = None) -> tuple[list[Subject], dict[str, str]]:
    """Returns the peers that can run here, and for each that cannot, why; Penstock also as it was at a commit."""
    peers = list[Peer]()
    for peer in (PEERS[name] for name in names):
        peers.append(peer)
        if against and peer.name.startswith("penstock"):
            peers.append(at_commit(peer, against))
    subjects, absent = [], {}
    for peer in peers:
        try:
            subjects.append(Subject(peer, interpreter(peer.environment)))
        except EnvironmentUnavailable as error:
            absent[peer.name] = str(error)
    return subjects, absent


def schedule(subjects: list[Subject], tests: list[str], rounds: int) -> list[tuple[int, str, Subject]]:
    """Returns the order of a run: the peers of one test follow each other, forwards and backwards in turns, so that
    drift hits all of them alike."""
    return [
        (number, test, subject)
        for number in range(rounds)
        for test in tests
        for subject in (subjects if number % 2 == 0 else reversed(subjects))
        if test in subject.peer.tests
    ]


def run(subjects: list[Subject], tests: list[str], plan: Plan) -> Samples:
    """Measures everything and shows progress."""
    samples = Samples()
    steps = schedule(subjects, tests, plan.rounds)
    for position, (number, test, subject) in enumerate(steps, start=1):
        started_at = time.monotonic()
        sample = _better_of_two(number, test, subject, plan)
        samples.add(sample)
        progress.show(position, len(steps), sample, time.monotonic() - started_at)
    return samples


def _better_of_two(number: int, test: str, subject: Subject, plan: Plan) -> Sample:
    first = _measure(number, test, subject, plan)
    if not first.is_noisy and not first.error:
        return first
    second = _measure(number, test, subject, plan)
    return min(first, second, key=lambda sample: (bool(sample.error), sample.noise))


def _measure(number: int, test: str, subject: Subject, plan: Plan) -> Sample:
    wait_for_quiet()
    try:
        with Server() as server:
            figures = MEASUREMENTS[test](subject, server, plan)
    except (ChildFailed, ServerFailed, pel.HolderRobbed, redis.RedisError, OSError) as error:
        # One peer's failure must not end the run.
        return Sample(number, test, subject.peer.name, error=f"{type(error).__name__}: {error}")
    return Sample(number, test, subject.peer.name, figures)
