"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import dataclasses

from bench import report, results, rounds, server_binary
from bench.environments import ROOT
from bench.figures import Samples
from bench.plan import FULL, QUICK, Plan
from bench.roster import DEFAULT_PEERS, PEERS, QUEUE_PEERS, STREAM_TESTS, TESTS
from bench.server import Server
from bench.targets import TARGETS, Verdict, judge


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark and returns the exit code: 1 only with --strict, and only for a target that is missed."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{peer.name:20} {', '.join(peer.tests)}: {peer.note}" for peer in PEERS.values()))
        return 0
    try:
        with Server() as server:
            version = server.version()
    except server_binary.NoServerProgram as error:
        print(error)
        return 1 if options.strict else 0
    plan = _plan(options)
    subjects, absent = rounds.find_subjects(options.peers, options.against)
    names = [subject.peer.name for subject in subjects]
    print(f"Server: {version} on loopback TCP, no persistence.")
    print("uvloop: Penstock's streams and the limit; others as they ship.")
    print(f"Peers: {', '.join(names)}. Tests: {', '.join(options.tests)}. Rounds: {plan.rounds}.")
    for name, reason in absent.items():
        print(f"Absent: {name}: {reason}")
    samples = rounds.run(subjects, options.tests, plan)
    verdicts = [judge(target, samples) for target in TARGETS if target.test in options.tests]
    _print_outcome(samples, verdicts, names)
    if options.against:
        print(f"\nNow over {options.against} (medians of the ratios inside each round; above 1 is better now)\n")
        print(report.against_table(samples, names, options.against))
    print(f"\nAll figures: {results.write(samples, verdicts, plan, version).relative_to(ROOT)}")
    return 1 if options.strict and any(verdict.is_met is False for verdict in verdicts) else 0


def _print_outcome(samples: Samples, verdicts: list[Verdict], peers: list[str]) -> None:
    print(f"\nFigures (medians over rounds)\n\n{report.figures_table(samples, peers)}")
    print(f"\nProcessor time a message, us (peer + server)\n\n{report.costs_table(samples, peers)}")
    print(f"\nTargets (medians of the ratios inside each round)\n\n{report.targets_table(verdicts)}")
    for reason, measurements in samples.failures().items():
        print(f"\nFailed: {', '.join(measurements)}: {reason}")
    noisy = sum(sample.is_noisy for sample in samples.all)
    if noisy:
        print(f"\nOther load disturbed {noisy} of {len(samples.all)} measurements: repeat before you trust a miss.")


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else FULL
    return dataclasses.replace(plan, rounds=options.rounds) if options.rounds else plan


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Penstock against its limit and its peers.")
    parser.add_argument(
        "--peers", type=_peers, default=list(DEFAULT_PEERS), help="comma list, all or queue (see --list)"
    )
    parser.add_argument("--tests", type=_tests, default=list(STREAM_TESTS), help="comma list of " + ", ".join(TESTS))
    parser.add_argument("--rounds", type=int, help="how often everything is measured (3, with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="one round of short windows: a smoke test, not a verdict")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--against", metavar="COMMIT", help="measure Penstock of that commit in turns with that of now")
    parser.add_argument("--list", action="store_true", help="list the peers and stop")
    return parser


def _peers(text: str) -> list[str]:
    groups = {"all": list(PEERS), "queue": list(QUEUE_PEERS)}
    names = groups.get(text) or text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"unknown peer {', '.join(unknown)}; known: {', '.join(PEERS)}")
    return names


def _tests(text: str) -> list[str]:
    """Accepts names of tests and their first words, such as `publish` for all three."""
    words = text.split(",")
    if unknown := [word for word in words if not any(_matches(word, test) for test in TESTS)]:
        raise argparse.ArgumentTypeError(f"unknown test {', '.join(unknown)}; known: {', '.join(TESTS)}")
    return [test for test in TESTS if any(_matches(word, test) for word in words)]


def _matches(word: str, test: str) -> bool:
    return test == word or test.startswith(word + "-")
