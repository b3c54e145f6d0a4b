"""An archive of the format before Delta tables is copied once, whole, and without being changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import ConfigurationError
from penstock.spark.archive import ArchiveConflict, ArchiveDamaged, ArchiveRun, import_archive, status, verify
from penstock.spark.archive.state import stored
from penstock.spark.archive.table import load_state
from tests.helpers.json_names import check
from tests.spark.archive.streams import Stream, archive, archived, opened


@pytest.fixture
def stream() -> Stream:
    made = Stream("or/ders")
    made.add(60, every_ms=3_600_000)
    return made


@pytest.fixture
def old(tmp_path: Path, stream: Stream) -> Path:
    """Four commits as they were: three batches, with a loss before the last, and a compaction of the first two."""
    root = tmp_path / "old"
    files = [old_file(root, stream, *pair) for pair in ((0, 10), (10, 20), (25, 60), (0, 20))]
    commit(root, 1, [old_range(stream, 0, 10)], [files[0]])
    commit(root, 2, [old_range(stream, 10, 20)], [files[1]])
    commit(root, 3, [old_range(stream, 25, 60, lost=5)], [files[2]])
    commit(root, 4, [], [files[3]], [files[0]["path"], files[1]["path"]])
    return root


def old_file(root: Path, stream: Stream, start: int, stop: int) -> dict[str, Any]:
    first, last = stream.entries[start][0], stream.entries[stop - 1][0]
    path = f"stream=or%2Fders/date=2023-11-15/{first}_{last}.parquet"
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_batches([stored(batch) for batch in stream.rows(start, stop)]), file)
    content = file.read_bytes()
    return {
        "path": path, "stream": stream.name, "date": "2023-11-15", "first": first, "last": last, "rows": stop - start,
        "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "row_sum": "",
    }  # fmt: skip


def old_range(stream: Stream, start: int, stop: int, lost: int = 0) -> dict[str, Any]:
    after, upto = stream.position(start), stream.position(stop)
    return {
        "stream": stream.name, "after": after.id, "upto": upto.id, "rows": stop - start, "after_n": start,
        "upto_n": stop, "lost": lost,
    }  # fmt: skip


def commit(root: Path, seq: int, ranges: list[Any], add: list[Any], remove: list[str] | None = None) -> None:
    body = {"v": 1, "seq": seq, "kind": "append", "time_ms": 0, "ranges": ranges, "add": add, "remove": remove or []}
    body |= {"note": {}, "prev": ""}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    file = root / "_manifest" / f"{seq:012d}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**body, "check": hashlib.sha256(text.encode()).hexdigest()}))


def test_everything_is_copied_and_archiving_continues_behind_it(old: Path, tmp_path: Path, stream: Stream) -> None:
    before = {file: file.stat().st_mtime_ns for file in old.rglob("*")}
    new = tmp_path / "new"
    words = ["archive", "import", "--source", str(old), "--archive", str(new)]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout) == (
        0,
        "copied 55 entries; run `penstock archive verify` to check them\n",
    ), result.output
    assert archived(new, "or/ders") == [*stream.entries[:20], *stream.entries[25:]]
    assert [(each.rows, each.lost) for each in load_state(new).ranges["or/ders"]] == [(20, 0), (35, 5)]
    report = verify(new, rows=True)
    assert report.is_sound, report.findings
    assert len(report.known_losses) == 1
    again = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert again == {"copied": 0}
    check("archive import", [again])
    stream.add(10, every_ms=3_600_000)
    archive(opened(new), stream, 60, 70)
    assert status(new)[0].rows == 65
    assert {file: file.stat().st_mtime_ns for file in old.rglob("*")} == before


def test_what_cannot_be_copied_is_refused_and_nothing_of_the_stream_is_there(
    old: Path, tmp_path: Path, stream: Stream
) -> None:
    with pytest.raises(ConfigurationError, match="must differ from"):
        import_archive(old, old)
    with pytest.raises(ConfigurationError, match="archive import"):
        ArchiveRun(old, "or/ders", {"url": "redis://localhost"}).check()
    file = next(file for file in old.glob("stream=*/date=*/*") if stream.entries[25][0] in file.name)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    with pytest.raises(ArchiveDamaged, match="its checksum does not match"):
        import_archive(old, tmp_path / "new")
    assert not load_state(tmp_path / "new").ranges
    file.write_bytes(content)
    manifest = old / "_manifest" / "000000000002.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"rows": 10', '"rows": 11'))
    with pytest.raises(ArchiveDamaged, match="was changed"):
        import_archive(old, tmp_path / "new")
    manifest.write_text(text)
    for name, start, stop in (("other", 0, 30), ("late", 50, 60)):  # Redis may have been trimmed before the run began
        archive(opened(tmp_path / name), stream, start, stop)
        with pytest.raises(ArchiveConflict, match="is already in the new archive, but without the ids after"):
            import_archive(old, tmp_path / name)
    import_archive(old, tmp_path / "new")
    assert verify(tmp_path / "new", rows=True).is_sound
