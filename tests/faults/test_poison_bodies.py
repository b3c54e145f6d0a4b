"""Entries that no handler can be given: dead, with the reason, and the memory stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.checker import body
from tests.faults.conftest import STREAM, Scene

pytestmark = pytest.mark.usefixtures("default_server")

MIB = 1 << 20
CORPUS: dict[str, dict[bytes, bytes]] = {
    "no JSON": {b"data": b"{not json"},
    "cut off": {b"data": b'{"n": 1, "pad'},
    "empty": {b"data": b""},
    "not UTF-8": {b"data": b'{"n": "\xff\xfe"}'},
    "binary": {b"data": bytes(range(256))},
    "nested too deeply": {b"data": b"[" * 200_000 + b"]" * 200_000},
    "nested objects": {b"data": b'{"a":' * 100_000 + b"1" + b"}" * 100_000},
    "larger than allowed": {b"data": b'"' + b"x" * (3 * MIB) + b'"'},
    "a number as long as a book": {b"data": b"9" * 500_000},
    "no payload": {b"something": b"else"},
    "another content type": {b"data": b"\x81\xa1n\x01", b"content_type": b"application/msgpack"},
    "a pickle": {b"data": b"\x80\x04\x95.", b"content_type": b"application/x-pickle"},
    "expiry that is no number": {b"data": b'{"n":1}', b"expires_at": b"tomorrow"},
}


def _memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


@pytest.mark.parametrize("style", ["message", "batch"])
def test_bodies_that_cannot_be_read_are_dead_with_the_reason_and_their_neighbours_live(
    style: str, half: str, scene: Scene
) -> None:
    good = scene.publish(body(0))
    bad = {scene.raw.xadd(STREAM, fields).decode(): name for name, fields in CORPUS.items()}
    good += scene.publish(*(body(n) for n in range(1, 20)))
    worker = scene.worker(half, style=style)
    worker.wait_for("done", count=20)
    scene.wait_until_quiet()

    found = scene.checker.check_conserved([*good, *bad])
    assert set(found.dead) == set(bad)
    assert set(found.dead.values()) == {"decode_error"}
    assert {line["id"] for line in worker.said("began")} == set(good)
    for _, record in scene.raw.xrange(f"{STREAM}_dlq"):
        original = CORPUS[bad[record[b"dlq_id"].decode()]]
        assert {key: record[key] for key in original} == original, "the bytes are kept as they were"
        assert record[b"dlq_error"], "and what was wrong with them"
        assert len(record[b"dlq_error_text"]) < 5_000
    scene.checker.check_quiet()


def test_bad_bodies_by_the_hundred_leave_the_memory_flat(half: str, scene: Scene) -> None:
    scene.publish(body(0))
    worker = scene.worker(half, config={"batch_size": 10})
    worker.wait_for("done")
    before = _memory_mib(worker.pid)
    for _ in range(20):
        for fields in CORPUS.values():
            scene.raw.xadd(STREAM, fields)
    scene.wait_until_quiet()

    assert _memory_mib(worker.pid) - before < 150, "about ten times the largest batch"
    assert scene.raw.xlen(f"{STREAM}_dlq") == 20 * len(CORPUS)


def test_what_expired_before_it_was_handled_is_dead_as_such(half: str, scene: Scene) -> None:
    fields = {"data": json.dumps(body(1)), "expires_at": "1000"}
    entry_id = scene.raw.xadd(STREAM, fields).decode()
    worker = scene.worker(half)
    worker.wait_for("event", name="dead_lettered", id=entry_id, reason="expired")
    scene.wait_until_quiet()

    assert not worker.said("began")
    scene.checker.check_quiet()
