"""The benchmark that measures Penstock of a commit beside that of now."""

from __future__ import annotations

import dataclasses

from bench import report, rounds
from bench.environments import OWN, Interpreter, interpreter
from bench.figures import Sample, Samples
from bench.measurements.subject import Subject
from bench.roster import LIMIT, PEERS, PENSTOCK, at_commit


def test_penstock_of_a_commit_follows_that_of_now_and_the_order_turns_from_round_to_round() -> None:
    peers = [PEERS[LIMIT], PEERS[PENSTOCK], at_commit(PEERS[PENSTOCK], "abc")]
    subjects = [Subject(peer, Interpreter("python")) for peer in peers]
    names = [subject.peer.name for _, _, subject in rounds.schedule(subjects, ["publish-one"], 2)]
    assert names == [LIMIT, PENSTOCK, "penstock@abc", "penstock@abc", PENSTOCK, LIMIT]


def test_the_code_of_a_commit_that_does_not_exist_makes_an_absent_peer() -> None:
    subjects, absent = rounds.find_subjects([PENSTOCK], "no-such-commit")
    assert [subject.peer.name for subject in subjects] == [PENSTOCK]
    assert list(absent) == ["penstock@no-such-commit"]


def test_this_code_is_found_before_any_that_is_installed() -> None:
    own = interpreter(OWN)
    assert own.source is not None
    assert str(own.source) in own.environment()["PYTHONPATH"]
    assert dataclasses.replace(own, source=None).environment()["PYTHONPATH"] != own.environment()["PYTHONPATH"]


def test_ratios_are_above_one_where_now_is_better() -> None:
    samples = Samples([
        Sample(0, "publish-one", "penstock", {"rate": 300.0}), Sample(0, "publish-one", "penstock@abc", {"rate": 200.0}),
        Sample(0, "latency", "penstock", {"p50_ms": 2.0}), Sample(0, "latency", "penstock@abc", {"p50_ms": 1.0}),
    ])  # fmt: skip
    table = report.against_table(samples, ["penstock", "penstock@abc"], "abc")
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    assert [row[1:3] for row in rows] == [["publish 1 by 1 /s", "1.500"], ["p50 ms", "0.500"]]
