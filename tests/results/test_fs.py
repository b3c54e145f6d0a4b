"""Results as files: where they lie, and what survives."""

from __future__ import annotations

import errno
import gzip
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BackendRefused, BackendUnavailable, ConfigurationError
from penstock.results.fs import FSBackend
from penstock.results.fs_store import claim_path
from penstock.task import Result, decode_result, encode
from tests.helpers.aio import join, outcomes, start
from tests.helpers.processes import running

FINISHED = datetime(2025, 6, 1, 12, tzinfo=UTC)


def result_of(task_id: str = "t1", kind: str = "resize", **more: object) -> Result:
    return Result(**{"task_id": task_id, "kind": kind, "finished_at": FINISHED, **more})


def shown(root: Path) -> list[str]:
    """What somebody sees who lists the folders: no hidden names."""
    return sorted(
        p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and "/." not in f"/{p.relative_to(root)}"
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
async def backend(root: Path) -> AsyncIterator[FSBackend]:
    async with FSBackend(root) as backend:
        yield backend


async def test_a_result_is_a_file_in_the_folder_of_its_day(backend: FSBackend, root: Path) -> None:
    await backend.save(result_of(data={"x": 1}))
    assert shown(root) == ["2025-06-01/resize-t1.msgpack"]
    assert decode_result((root / "2025-06-01/resize-t1.msgpack").read_bytes()) == result_of(data={"x": 1})
    assert list((root / ".incoming").iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "of_folders", "of_files"), [(None, 0o700, 0o600), (0o755, 0o700, 0o600), (0o770, 0o770, 0o660)]
)
async def test_results_are_for_their_owner_or_the_group_that_shares_the_folder(
    tmp_path: Path, mode: int | None, of_folders: int, of_files: int
) -> None:
    root = tmp_path / "results"
    if mode is not None:
        root.mkdir()
        root.chmod(mode)
    before = os.umask(0)
    try:
        await FSBackend(root).save(result_of())
    finally:
        os.umask(before)
    made = [path for path in root.rglob("*") if not path.is_symlink() and path.name != ".lock"]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {of_folders}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {of_files}
    assert root.stat().st_mode & 0o777 == (mode or 0o700)


async def test_files_may_be_packed_and_read_by_a_back_end_that_packs_none(backend: FSBackend, root: Path) -> None:
    async with FSBackend(root, compress=True) as packing:
        await packing.save(result_of(data="x" * 10_000))
        assert await packing.save(result_of(data="x" * 10_000)) is True
    [name] = shown(root)
    assert name == "2025-06-01/resize-t1.msgpack.gz"
    assert gzip.decompress((root / name).read_bytes()) == encode(result_of(data="x" * 10_000))
    assert await backend.get("t1") == result_of(data="x" * 10_000)
    assert await backend.save(result_of(data="x" * 10_000)) is True
    assert await backend.save(result_of(data="late")) is False


async def test_a_packed_file_unpacks_to_so_much_and_no_more(
    backend: FSBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.results.fs_store._MAX_UNPACKED", 1_000)
    async with FSBackend(root, compress=True) as packing:
        with pytest.raises(BackendRefused, match="use compress=False"):
            await packing.save(result_of("t2", data="x" * 1_000))
        await packing.save(result_of(data="x"))
    file = root / "2025-06-01/resize-t1.msgpack.gz"
    file.write_bytes(gzip.compress(encode(result_of(data="x" * 1_000))))
    assert await backend.get("t1") is None
    file.write_bytes(gzip.compress(encode(result_of(data="x")))[:-1])
    assert await backend.get("t1") is None
    file.write_bytes(gzip.compress(encode(result_of(data="x"))))
    assert await backend.get("t1") == result_of(data="x")


async def test_kinds_are_written_so_that_they_can_be_read_back(backend: FSBackend, root: Path) -> None:
    await backend.save_many([result_of("a-1", kind="../e t-c"), result_of("b", kind=".x")])
    assert shown(root) == ["2025-06-01/=2E.=2Fe=20t--c-a-1.msgpack", "2025-06-01/=2Ex-b.msgpack"]


@pytest.mark.parametrize("bad", [b"", b"\x00garbage", b"\x1f\x8b\x08broken", encode(result_of("other"))])
async def test_torn_and_foreign_files_are_skipped_with_a_warning(
    backend: FSBackend, root: Path, caplog: pytest.LogCaptureFixture, bad: bytes
) -> None:
    await backend.save(result_of("good"))
    day = root / "2025-06-01"
    (day / "resize-torn.msgpack").write_bytes(bad)
    (day / "notes.txt").write_text("mine")
    (day / "resize-folder.msgpack").mkdir()
    (root / "2025-06-02").write_text("a file where a day should be")
    with caplog.at_level(logging.WARNING):
        assert [result.task_id async for result in backend.iter()] == ["good"]
    for name in ("resize-torn.msgpack", "notes.txt", "resize-folder.msgpack", "2025-06-02"):
        assert name in caplog.text


@pytest.mark.parametrize("what", ["link", "endless link", "pipe"])
async def test_only_plain_files_are_read(backend: FSBackend, root: Path, tmp_path: Path, what: str) -> None:
    await backend.save(result_of("good"))
    path = root / "2025-06-01/resize-t1.msgpack"
    if what == "pipe":
        os.mkfifo(path)
    else:
        (tmp_path / "elsewhere").write_bytes(encode(result_of(data="forged")))
        path.symlink_to("/dev/zero" if what == "endless link" else tmp_path / "elsewhere")
    claim(root, "t1", "2025-06-01/resize.msgpack")
    assert await backend.get("t1") is None
    assert [result.task_id async for result in backend.iter()] == ["good"]
    assert await backend.save(result_of(data="real")) is True
    assert await backend.get("t1") == result_of(data="real")


@pytest.mark.parametrize("name", [".incoming", "2025-06-01", ".ids", ".ids/x{bucket}", ".ids/.lock"])
async def test_nothing_is_written_or_deleted_behind_a_link(root: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("not yours")
    os.utime(elsewhere / "precious", (0, 0))
    place = root / name.replace("x{bucket}", claim_path(root, "t1").parent.name)
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere / "lock" if name == ".ids/.lock" else elsewhere)
    async with FSBackend(root) as backend:
        if name == ".ids/.lock":
            claim(root, "t1", "2025-06-01/resize.msgpack")
            (root / "2025-06-01").mkdir()
            (root / "2025-06-01/resize-t1.msgpack").write_bytes(b"torn")
        with pytest.raises(BackendRefused, match="symbolic link"):
            await backend.save(result_of())
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]


async def test_a_folder_among_what_was_left_behind_stops_nobody(root: Path) -> None:
    (root / ".incoming" / "odd").mkdir(parents=True)
    os.utime(root / ".incoming" / "odd", (0, 0))
    async with FSBackend(root) as backend:
        assert await backend.save(result_of()) is True


async def test_a_torn_file_gives_way_to_the_first_valid_result(
    backend: FSBackend, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await backend.save(result_of(data="once"))
    path = root / "2025-06-01/resize-t1.msgpack"
    path.write_bytes(path.read_bytes()[:-3])
    assert await backend.get("t1") is None
    assert await backend.save(result_of(data="again")) is True
    assert await backend.save(result_of(data="late")) is False
    assert await backend.get("t1") == result_of(data="again")
    assert [result.data async for result in backend.iter("resize")] == ["again"]
    assert "did not hold a valid result; renamed it to" in caplog.text


async def test_a_result_that_cannot_be_read_is_not_taken_for_a_torn_one(
    backend: FSBackend, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await backend.save(result_of(data="first"))

    def fail(_path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("penstock.results.fs_store._content", fail)
        with pytest.raises(BackendUnavailable, match="cannot save results"):
            await backend.save(result_of(data="late"))
        with pytest.raises(BackendUnavailable, match="cannot read results"):
            await backend.get("t1")
        assert [result.task_id async for result in backend.iter()] == []
        assert "which cannot be read" in caplog.text
    assert shown(root) == ["2025-06-01/resize-t1.msgpack"]
    assert await backend.get("t1") == result_of(data="first")


async def test_get_reads_one_link_and_one_file_however_many_days_there_are(
    backend: FSBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [FINISHED.replace(month=1 + number % 12, day=1 + number // 12) for number in range(120)]
    await backend.save_many([result_of(f"t{number}", finished_at=day) for number, day in enumerate(days)])
    calls: list[str] = []
    sys_calls = {"readlink": os.readlink, "scandir": os.scandir, "listdir": os.listdir}
    for name, function in sys_calls.items():
        monkeypatch.setattr(os, name, lambda *a, name=name, function=function: calls.append(name) or function(*a))
    assert await backend.get("t77") == result_of("t77", finished_at=days[77])
    assert calls == ["readlink"]


async def test_a_day_that_was_removed_is_gone_and_its_ids_are_free_again(backend: FSBackend, root: Path) -> None:
    await backend.save(result_of(data="old"))
    shutil.rmtree(root / "2025-06-01")
    assert await backend.get("t1") is None
    async with FSBackend(root) as another:
        assert await another.save(result_of(data="new")) is True
    assert await backend.get("t1") == result_of(data="new")


async def test_what_a_killed_process_left_behind_is_removed_after_a_day(root: Path) -> None:
    (root / ".incoming").mkdir(parents=True)
    for name, age_s in (("old", 2 * 86_400), ("young", 60)):
        path = root / ".incoming" / name
        path.write_bytes(b"half")
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)
    async with FSBackend(root) as backend:
        await backend.save(result_of())
        assert [path.name for path in (root / ".incoming").iterdir()] == ["young"]
        assert [result.task_id async for result in backend.iter()] == ["t1"]


def claim(root: Path, task_id: str, text: str) -> None:
    claim_path(root, task_id).parent.mkdir(parents=True, exist_ok=True)
    claim_path(root, task_id).symlink_to(text)


async def test_a_claim_whose_writer_died_is_taken_over(backend: FSBackend, root: Path) -> None:
    """The writer died between claiming the id and writing, on another day and with packing."""
    claim(root, "t1", "2025-05-31/resize.msgpack.gz")
    assert await backend.get("t1") is None
    assert await backend.save(result_of(data="second")) is True
    assert await backend.save(result_of(data="third")) is False
    assert shown(root) == ["2025-05-31/resize-t1.msgpack.gz"]
    assert await backend.get("t1") == result_of(data="second")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("2025-05-31/other.msgpack", "an id belongs to one kind"), ("/etc/passwd", "was not written by Penstock")],
)
async def test_a_claim_that_does_not_fit_is_told(backend: FSBackend, root: Path, text: str, reason: str) -> None:
    claim(root, "t1", text)
    assert await backend.get("t1") is None
    with pytest.raises(BackendRefused, match=reason):
        await backend.save(result_of())
    claim_path(root, "t1").unlink()
    assert await backend.save(result_of()) is True


async def test_files_are_on_the_disk_before_they_have_their_name(
    backend: FSBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    for name in ("fsync", "link", "symlink"):
        function = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, f=function, **k: events.append(name) or f(*a, **k))
    await backend.save(result_of("0192f0c1aabb7ccc8dddeeeeffff0000"))
    events.clear()
    await backend.save(result_of("0192f0c1aabb7ccc8dddeeeeffff0001"))
    assert events == ["symlink", "fsync", "link", "fsync", "fsync"]


async def test_a_large_batch_is_synced_at_once(backend: FSBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: events.append("fsync") or fsync(fd))
    await backend.save_many([result_of(f"0192f0c1aabb7ccc8dddeeeeffff{number:04x}") for number in range(1_000)])
    assert len(events) <= 8 or sys.platform != "linux"


# --- faults ---------------------------------------------------------------------------------------


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel takes no more than so many bytes a file, and then says EFBIG: a real short write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old_handler)


async def test_a_file_that_the_kernel_cuts_short_is_never_seen(backend: FSBackend, root: Path) -> None:
    await backend.save(result_of("before"))
    large = result_of("large", data="x" * 100_000)
    with largest_file(4_096), pytest.raises(BackendRefused, match="File too large"):
        await backend.save_many([result_of("small"), large])
    assert await backend.get("large") is None
    assert [result.task_id async for result in backend.iter()] == ["before"]
    assert list((root / ".incoming").iterdir()) == []
    assert await backend.save_many([result_of("small"), large]) == [True, True]
    assert await backend.get("large") == large


@pytest.mark.parametrize("call", ["write", "fsync", "link", "symlink", "open"])
async def test_a_full_disk_is_told_and_the_next_try_succeeds(
    backend: FSBackend, root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Every system call in turn says ENOSPC, after writing half of the bytes where it writes."""
    await backend.save(result_of("before"))
    real = getattr(os, call)

    def full(*args: object, **options: object) -> object:
        if call == "open" and ".incoming" not in str(args[0]):
            return real(*args, **options)
        if call == "write":
            real(args[0], bytes(args[1])[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(BackendUnavailable, match=rf"cannot save results under {root}.*No space left"):
            await backend.save(result_of(data="x" * 1_000))
        assert await backend.get("t1") is None
    assert [result.task_id async for result in backend.iter()] == ["before"]
    assert await backend.save(result_of(data="x" * 1_000)) is True
    assert await backend.get("t1") == result_of(data="x" * 1_000)
    assert list((root / ".incoming").iterdir()) == []


async def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with FSBackend(tmp_path / "file") as backend:
        with pytest.raises(BackendRefused, match=r"Not a directory|File exists"):
            await backend.save(result_of())
    with pytest.raises(ConfigurationError, match="compress"):
        FSBackend(tmp_path, compress="yes")


_WRITER = textwrap.dedent("""
    import sys
    from datetime import UTC, datetime, timedelta
    from penstock.sync.results import FSBackend, Result
    root, seed = sys.argv[1], int(sys.argv[2])
    backend = FSBackend(root, compress=bool(seed % 2))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(10_000):
        day = datetime(2025, 6, 1, 23, 59, tzinfo=UTC) + timedelta(minutes=(number + seed) % 3)
        result = Result(task_id=f"t{number}", kind="resize", data=[seed, "x" * 2000], finished_at=day)
        print(number, int(backend.save(result)), flush=True)
""")


async def test_processes_that_race_and_are_killed_leave_one_whole_result_per_id(root: Path) -> None:
    def race(writers: list[Any]) -> list[dict[int, int]]:
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        said: list[dict[int, int]] = []
        for turn, writer in enumerate(writers):
            lines = []
            while len(lines) < 40 * (turn + 1) and (line := writer.stdout.readline()):
                lines.append(line)
            writer.kill()
            lines += [
                line for line in writer.communicate()[0].splitlines() if line.count(" ") == 1 and line[-1] in "01"
            ]
            said.append({int(line.split()[0]): int(line.split()[1]) for line in lines})
        return said

    words = [sys.executable, "-c", _WRITER, str(root)]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as started:  # it kills them where the race does not end: the thread waits for what they say
        writers = [started.enter_context(running([*words, str(seed)], **options)) for seed in range(3)]
        said = await join(start(_in_thread, race, writers), timeout_s=90)
    async with FSBackend(root) as backend:
        found = {result.task_id: result async for result in backend.iter()}
        assert len(found) >= 40
        assert len(shown(root)) == len(found)
        for number in range(len(found)):
            winners = [seed for seed, outcomes_ in enumerate(said) if outcomes_.get(number) == 1]
            result = await backend.get(f"t{number}")
            assert len(winners) <= 1
            if winners:
                assert result is not None
                assert result.data[0] == winners[0]
                assert found[f"t{number}"] == result


async def _in_thread(function, *args):
    import asyncio  # sync:

    return await asyncio.to_thread(function, *args)  # sync: return function(*args)


async def test_many_callers_at_once_share_the_store(backend: FSBackend) -> None:
    saves = [start(backend.save, result_of(f"t{number % 20}", data=number)) for number in range(60)]
    assert sum(await outcomes(saves)) == 20
