"""A batch is archived once, whole, and whatever happens in between."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from penstock import ids
from penstock.errors import DataLost
from penstock.spark.archive import ArchiveConflict, ArchiveDamaged, compact, verify
from penstock.spark.archive.cold_log import ColdLog
from penstock.spark.archive.file_writer import ArchiveTask, Copied
from penstock.spark.archive.state import READ_SCHEMA, safe_name
from penstock.spark.archive.table import load_state
from penstock.spark.runtime.errors import is_transient_failure
from penstock.spark.source.offsets import BatchRange, IdRange, Offsets, Position
from penstock.spark.source.rows import RowBuilder
from tests.spark.archive.streams import START_MS, Crash, Stream, archive, archived, files_of, opened


@pytest.fixture
def stream() -> Stream:
    made = Stream()
    made.add(60)
    return made


def test_the_archive_holds_the_entries_as_they_were(tmp_path: Path, stream: Stream) -> None:
    archiver = opened(tmp_path)
    archive(archiver, stream, 0, 25)
    archive(archiver, stream, 25, 60, cuts=[30, 41])
    assert archived(tmp_path) == stream.entries
    assert [each.rows for each in archiver.state.ranges["orders"]] == [60]  # without a hole between them
    assert load_state(tmp_path) == archiver.state
    assert [entry.rows for entry in archiver.state.files_of("orders")] == [25, 5, 11, 19]


def test_a_file_ends_with_the_day_and_at_its_greatest_size(tmp_path: Path) -> None:
    stream = Stream()
    stream.add(30, every_ms=6_000_000)  # 14.4 a day
    archive(opened(tmp_path), stream, 0, 30)
    files = files_of(tmp_path)
    assert [(entry.day, entry.rows) for entry in files] == [("2023-11-15", 15), ("2023-11-16", 14), ("2023-11-17", 1)]
    assert all((tmp_path / entry.path).is_file() for entry in files)
    name = f"{stream.entries[0][0]}_{stream.entries[14][0]}_{files[0].sha256}_"
    assert files[0].path.startswith(f"stream=orders/day=2023-11-15/{name}")
    small = Stream("small")
    small.add(20)
    archive(opened(tmp_path, max_file_rows=5), small, 0, 20)
    assert max(e.rows for e in files_of(tmp_path, "small")) <= 7  # and a batch of rows
    assert archived(tmp_path, "small") == small.entries


def test_killed_at_any_step_and_restarted_every_entry_is_archived_once(tmp_path: Path, stream: Stream) -> None:
    steps: list[str] = []
    for number in range(20):
        root = tmp_path / str(number)
        archive(opened(root), stream, 0, 20)
        seen: list[str] = []

        def crash(name: str, seen: list[str] = seen, at: int = number) -> None:
            seen.append(name)
            if len(seen) > at:
                raise Crash(name)

        try:
            archive(opened(root, crash), stream, 20, 60, cuts=[33])
        except Crash:
            pass
        else:
            steps = seen
            break
        assert archived(root) in (stream.entries[:20], stream.entries), seen
        again = opened(root)
        archive(again, stream, 20, 60, cuts=[33])
        assert archived(root) == stream.entries
        assert archive(again, stream, 20, 60, cuts=[33]) is None  # it is known, and not written again
        assert verify(root, rows=True).is_sound, seen  # and nothing is left of the killed run
        assert not list((root / "_staging").iterdir())
    assert steps == ["written", "checked", "placed", "placed", "committed"]


def test_a_batch_that_overlaps_what_is_archived_adds_what_is_new(tmp_path: Path, stream: Stream) -> None:
    archive(opened(tmp_path), stream, 0, 30)
    archive(opened(tmp_path), stream, 10, 50)  # as after a checkpoint was brought back from a backup
    archive(opened(tmp_path), stream, 10, 20)
    assert archived(tmp_path) == stream.entries[:50]


def test_a_gap_is_an_error_or_is_recorded(tmp_path: Path, stream: Stream) -> None:
    archive(opened(tmp_path), stream, 0, 20)
    with pytest.raises(DataLost, match=r"10 entries between .* were never archived"):
        archive(opened(tmp_path), stream, 30, 60)
    assert archived(tmp_path) == stream.entries[:20]
    careless = opened(tmp_path, fail_on_data_loss=False)
    archive(careless, stream, 30, 60)
    assert [each.lost for each in careless.state.ranges["orders"]] == [0, 10]


def test_ids_that_nobody_got_are_no_gap(tmp_path: Path, stream: Stream) -> None:
    archiver = opened(tmp_path)
    archive(archiver, stream, 0, 20)
    later = BatchRange(stream.position(60), Position(stream.entries[20][0].replace("-", "-0"), 20))
    archiver.archive(Offsets({"orders": later}), lambda task: task.write(stream.rows(21, 60)))
    assert [(each.lost, each.rows) for each in archiver.state.ranges["orders"]] == [(0, 59)]


def test_a_stream_that_was_created_anew_with_old_ids_is_refused(tmp_path: Path, stream: Stream) -> None:
    archive(opened(tmp_path), stream, 0, 60)
    anew = BatchRange(Position(stream.entries[30][0], 3), Position("0-0", 0))
    with pytest.raises(ArchiveConflict, match="created again"):
        opened(tmp_path).archive(Offsets({"orders": anew}), lambda _: pytest.fail("nothing may be written"))


def test_of_two_archivers_one_commits(tmp_path: Path, stream: Stream) -> None:
    first, second = opened(tmp_path), opened(tmp_path)

    def meanwhile(name: str) -> None:
        if name == "checked":
            archive(first, stream, 0, 40)

    second.step = meanwhile
    with pytest.raises(ArchiveConflict, match="another run") as caught:
        archive(second, stream, 0, 60)
    # Restarted, it would take the other run's batches for its own, and that run would end.
    assert not is_transient_failure("".join(traceback.format_exception(caught.value)))
    assert archived(tmp_path) == stream.entries[:40]


def test_one_that_is_refused_has_not_touched_the_files_of_the_other(tmp_path: Path, stream: Stream) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    second.step = lambda name: archive(first, stream, 0, 60) if name == "checked" else None
    # Meanwhile an entry was deleted: the same ids at both ends, and other bytes.
    batch = [*stream.rows(0, 20), *stream.rows(21, 60)]
    with pytest.raises(ArchiveConflict, match="another run"):
        second.archive(Offsets({"orders": stream.progress(0, 60)}), lambda task: task.write(batch))
    assert archived(tmp_path) == stream.entries
    report = verify(tmp_path, rows=True)
    assert report.is_sound, report.findings


def test_what_a_killed_run_left_gives_way_to_what_is_there_now(tmp_path: Path, stream: Stream) -> None:
    def crash(name: str) -> None:
        if name == "placed":
            raise Crash

    with pytest.raises(Crash):
        archive(opened(tmp_path, crash), stream, 0, 60)
    batch = [*stream.rows(0, 20), *stream.rows(21, 60)]
    opened(tmp_path).archive(Offsets({"orders": stream.progress(0, 60)}), lambda task: task.write(batch))
    assert archived(tmp_path) == [*stream.entries[:20], *stream.entries[21:]]
    report = verify(tmp_path, rows=True)
    assert report.is_sound, report.findings


def test_ids_are_any_numbers_that_the_server_takes(tmp_path: Path) -> None:
    numbers = ["0-1", "5-18446744073709551615", f"{START_MS}000-0", f"{START_MS}000000-7"]
    numbers += ["9223372036854775808-0", "18446744073709551615-18446744073709551615"]
    stream = Stream(entries=[(entry_id, {"data": b"x"}) for entry_id in numbers])
    archive(opened(tmp_path), stream, 0, 6)
    assert archived(tmp_path) == stream.entries
    dates = [entry.day for entry in files_of(tmp_path)]
    assert dates == ["1970-01-01", "9999-12-31"]
    pages = ColdLog.of(str(tmp_path)).pages("orders", numbers[2], numbers[5])
    assert [entry_id.decode() for page in pages for entry_id, _ in page] == numbers[3:]
    assert verify(tmp_path, rows=True).is_sound


def test_a_stream_that_was_created_anew_with_new_ids_is_a_loss_of_unknown_size(tmp_path: Path, stream: Stream) -> None:
    careless = opened(tmp_path, fail_on_data_loss=False)
    archive(careless, stream, 0, 20)
    anew = BatchRange(Position(stream.entries[59][0], 10), Position(ids.before(stream.entries[50][0]), 0))
    careless.archive(Offsets({"orders": anew}), lambda task: task.write(stream.rows(50, 60)))
    assert [each.lost for each in careless.state.ranges["orders"]] == [0, None]
    report = verify(tmp_path)
    assert (report.is_sound, len(report.known_losses)) == (True, 1)


def test_a_log_that_was_changed_is_not_believed(tmp_path: Path, stream: Stream) -> None:
    archiver = opened(tmp_path)
    for start in range(0, 60, 20):
        archive(archiver, stream, start, start + 20)
    file = tmp_path / "_delta_log" / f"{2:020d}.json"
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"rows":20', b'"rows":21', 1))
    assert not verify(tmp_path).is_sound
    file.write_bytes(content.replace(b'"upto":"', b'"upto":"x', 1))
    with pytest.raises(ArchiveDamaged, match="not a range of ids"):
        load_state(tmp_path)
    file.write_bytes(content.replace(b'"commitInfo"', b'"commitInfo', 1))
    with pytest.raises(ArchiveDamaged, match="archive verify"):
        load_state(tmp_path)
    file.unlink()
    with pytest.raises(ArchiveDamaged, match="archive verify"):
        load_state(tmp_path)


@pytest.mark.parametrize(
    ("kept", "found"),  # rows of a file across a gap count where it begins
    [
        ([(20, 30), (50, 60)], [((0, 30), 40, 0), ((50, 60), 0, 20)]),
        ([(45, 60)], [((0, 20), 20, 0), ((45, 60), 15, 25)]),
        ([(20, 35)], [((0, 35), 35, 0), ((60, 60), 0, 25)]),
        ([], [((0, 20), 20, 0), ((60, 60), 0, 40)]),
        ([(20, 25), (33, 50), (55, 60)], [((0, 25), 47, 0), ((33, 50), 0, None), ((55, 60), 0, None)]),
    ],
    ids=["in the middle", "at the start", "at the end", "of all", "twice"],
)
def test_what_is_trimmed_while_a_batch_is_read_is_recorded_as_lost(
    tmp_path: Path, stream: Stream, kept: list[tuple[int, int]], found: list[tuple[tuple[int, int], int, int | None]]
) -> None:
    archive(opened(tmp_path), stream, 0, 20)
    bounds = [20, *(n for each in kept for n in each), 60]
    # As several tasks would say it: of a gap across two pieces each says its part.
    halves = [(low, (low + high) // 2, high) for low, high in zip(bounds[::2], bounds[1::2], strict=True) if low < high]
    pairs = [pair for low, middle, high in halves for pair in ((middle, high), (low, middle))]
    lost = [IdRange("orders", stream.position(low).id, stream.position(high).id) for low, high in pairs]
    offsets = Offsets({"orders": stream.progress(20, 60)})

    def write(task: ArchiveTask) -> list[Copied]:
        rows = [batch for low, high in kept for batch in stream.rows(low, high)]
        return [*task.write(rows), *lost]

    archiver = opened(tmp_path, fail_on_data_loss=False)
    assert archiver.archive(offsets, write) == sum(high - low for low, high in kept)
    told = [((each.after, each.upto), each.rows, each.lost) for each in load_state(tmp_path).ranges["orders"]]
    positions = [stream.position(n).id for n in range(61)]
    assert told == [((positions[low], positions[high]), rows, lost) for (low, high), rows, lost in found]
    assert archived(tmp_path) == [*stream.entries[:20], *(e for low, high in kept for e in stream.entries[low:high])]
    assert opened(tmp_path, fail_on_data_loss=False).archive(offsets, write) is None  # all of it is known
    stream.add(10)
    archive(archiver, stream, 60, 70)
    [*_, last] = load_state(tmp_path).ranges["orders"]
    assert (last.upto, last.rows) == (stream.position(70).id, found[-1][1] + 10)
    # A checkpoint that is a batch behind names the end of the one before, which may be where a loss ends.
    assert opened(tmp_path, fail_on_data_loss=False).archive(offsets, write) is None
    compact(tmp_path)
    report = verify(tmp_path, rows=True)
    assert report.is_sound, report.findings
    assert len(report.known_losses) == len(found) - 1


def test_a_stream_that_was_created_anew_is_refused_also_where_a_loss_ends(tmp_path: Path, stream: Stream) -> None:
    archiver = opened(tmp_path, fail_on_data_loss=False)
    trimmed = IdRange("orders", stream.position(10).id, stream.position(20).id)
    archiver.archive(
        Offsets({"orders": stream.progress(0, 20)}), lambda task: [*task.write(stream.rows(0, 10)), trimmed]
    )
    archive(archiver, stream, 20, 60)
    assert archive(archiver, stream, 0, 20) is None
    anew = BatchRange(Position(stream.position(20).id, 3), Position("0-0", 0))
    with pytest.raises(ArchiveConflict, match="created again"):
        archiver.archive(Offsets({"orders": anew}), lambda _: pytest.fail("nothing may be written"))


def test_names_of_streams_become_safe_and_stay_different() -> None:
    names = ["orders", "a/b", "a%2Fb", "..", ".", "x" * 300, "x" * 301, "{tag}:ä", "a=b"]
    made = [safe_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert not any("/" in name or name.startswith(".") or len(name) > 200 for name in made)


def test_names_of_fields_come_back_as_they_were(tmp_path: Path) -> None:
    fields = [b"\xff", b"1", b"\\xff", b"2", b"twice", b"3", b"twice", b"4", b"data", b"5"]
    entry_id = f"{START_MS}-0"
    batch = RowBuilder(READ_SCHEMA).build([("orders", [(entry_id.encode(), fields)])])
    progress = BatchRange(Position(entry_id, 1), Position(ids.ZERO, 0), ())
    opened(tmp_path).archive(Offsets({"orders": progress}), lambda task: task.write([batch]))
    [page] = ColdLog.of(str(tmp_path)).pages("orders", ids.ZERO, entry_id)
    assert page == [(entry_id.encode(), [b"data", b"5", b"\xff", b"1", b"\\xff", b"2", b"twice", b"4"])]
