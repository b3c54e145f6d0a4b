"""Commits to Delta tables: once by batch, with statistics that readers skip by, and without rows seen twice."""

from __future__ import annotations

import errno
import json
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from penstock.errors import ConfigurationError, PenstockError
from penstock.spark.lake import files
from penstock.spark.lake.delta import CommitConflict, DataFile, DeltaLog, LogDamaged, statistics
from penstock.spark.lake.files import Location, StoreFailed, StoreRefused, translated
from penstock.spark.runtime.errors import is_transient_failure
from tests.helpers.s3 import BUCKET, KEY, SECRET, S3Server
from tests.helpers.threads import DEADLINE_S

SCHEMA = pa.schema(
    [("day", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("name", pa.string())]
)
KEYS = {"access_key_id": KEY, "secret_access_key": SECRET}
_FILE_SCHEMA = pa.schema([field for field in SCHEMA if field.name != "day"])


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["disk", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A place for a table, on a disk and on a server that speaks S3."""
    if request.param == "disk":
        return Location.of(tmp_path / "table")
    server: S3Server = request.getfixturevalue("s3")
    server.empty()
    return Location.of(f"s3a://{BUCKET}/table", s3_options(server))


def s3_options(server: S3Server) -> dict[str, str]:
    return {
        "endpoint_url": f"http://127.0.0.1:{server.port}", "region": "us-east-1", "allow_http": "true",
        **KEYS,
    }  # fmt: skip


def written(location: Location, path: str, numbers: range, tmp_path: Path) -> DataFile:
    """Writes a file of the table; returns what is to be committed."""
    at = [datetime.fromtimestamp(1_700_000_000 + n, UTC).replace(microsecond=1) for n in numbers]
    rows = pa.table([list(numbers), at, ["x" * 40 if n else None for n in numbers]], schema=_FILE_SCHEMA)
    file = tmp_path / "file.parquet"
    pq.write_table(rows, file)
    stats, size = statistics(pq.read_metadata(file)), file.stat().st_size
    scratch = location.store.scratch(path)
    scratch.write_bytes(file.read_bytes())
    location.store.put(scratch, path)
    return DataFile(path, size, {"day": "mon%2Fday"}, len(numbers), stats)


def numbers_in(location: Location) -> list[int]:
    table = DeltaTable(location.uri, storage_options=dict(location.options))
    return sorted(table.to_pyarrow_table()["n"].to_pylist())


def test_a_batch_is_committed_once_and_files_replace_others_without_a_row_twice(
    location: Location, tmp_path: Path
) -> None:
    assert DeltaLog.open(location) is None
    log = DeltaLog.create(location, SCHEMA, ["day"])
    late = DeltaLog.open(location)
    assert late is not None
    assert log.last("query") is None
    first = written(location, "day=a b%2Fc/1.parquet", range(5), tmp_path)
    assert log.commit([first], app=("query", 7), info={"note": {"rows": 5}}) == 1
    assert log.last("query") == 7
    other = written(location, "day=a b%2Fc/2.parquet", range(5), tmp_path)
    with pytest.raises(CommitConflict):  # it has not seen that the batch is there
        late.commit([other], app=("query", 7))
    late.refresh()
    assert late.last("query") == 7
    late.commit([written(location, "day=a b%2Fc/3.parquet", range(5, 9), tmp_path)], app=("query", 8))
    assert numbers_in(location) == list(range(9))

    log.refresh()
    old = log.files()
    assert [(file.path, file.rows, file.partition) for file in sorted(old, key=lambda file: file.path)] == [
        ("day=a b%2Fc/1.parquet", 5, {"day": "mon%2Fday"}),
        ("day=a b%2Fc/3.parquet", 4, {"day": "mon%2Fday"}),
    ]
    merged = written(location, "day=a b%2Fc/4.parquet", range(9), tmp_path)
    log.commit([merged], old, app=("compaction", 1), has_new_rows=False)
    assert numbers_in(location) == list(range(9))
    again = written(location, "day=a b%2Fc/5.parquet", range(9), tmp_path)
    with pytest.raises(CommitConflict):
        late.commit([again], old, app=("compaction", 1), has_new_rows=False)  # they were replaced meanwhile
    assert numbers_in(location) == list(range(9))

    assert [info["note"] for _, info in log.infos(0) if "note" in info] == [{"rows": 5}]
    assert log.removed() == {file.path for file in old}
    log.checkpoint()
    assert log.removed() == {file.path for file in old}
    assert log.removed(older_than_s=1) == set()
    assert numbers_in(location) == list(range(9))


def test_writers_that_make_or_widen_a_table_at_the_same_moment_all_get_it(location: Location) -> None:
    wider = SCHEMA.append(pa.field("word", pa.string()))
    together = threading.Barrier(6, timeout=DEADLINE_S)

    def make(_: int) -> DeltaLog:
        together.wait()
        return DeltaLog.create(location, SCHEMA, ["day"])

    def widen(log: DeltaLog) -> None:
        together.wait()
        log.add_columns(wider)

    with ThreadPoolExecutor(6) as pool:
        logs = list(pool.map(make, range(6)))
        assert len({log.identity for log in logs}) == 1
        list(pool.map(widen, logs))
    made = DeltaLog.open(location)
    assert made is not None
    assert [field.name for field in made.table.schema().fields] == wider.names


def test_what_changes_a_table_on_a_disk_survives_a_crash_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, synced = tmp_path / "table", set[Path]()
    sync = files.sync

    def noted(path: Path) -> None:
        sync(path)
        synced.add(path)

    def lost() -> set[str]:
        """Returns the files that are new since the last call, and their folders, unless they were synced since then."""
        found = {path for path in root.rglob("*.*") if path.is_file() and not path.name.endswith(".crc")} - known
        known.update(found)
        missing = (found | {path.parent for path in found}) - synced
        synced.clear()
        return {str(path.relative_to(root)) for path in missing}

    known = set[Path]()
    monkeypatch.setattr(files, "sync", noted)
    location = Location.of(root)
    settings = {"delta.checkpointInterval": "4", "delta.enableChangeDataFeed": "true"}
    log = DeltaLog.create(location, SCHEMA, ["day"], settings)
    assert not lost()
    file = written(location, "day=mon%2Fday/1.parquet", range(3), tmp_path)
    synced.clear()  # as if another process had written it
    log.commit([file], app=("query", 1), keeps_log=False)
    assert not lost()
    log.add_columns(SCHEMA.append(pa.field("word", pa.string())))
    assert not lost()
    days = pa.array(["a b/c", "monday", "monday"])  # the log has the name of the first folder escaped
    rows = DeltaTable(root).to_pyarrow_table().set_column(0, "day", days)
    for batch in (2, 3, 4):
        log.merge(rows, ["n", "day"], is_newer="true", deleted="deleted", app=("query", batch))
        assert not lost(), batch
    assert {path.name for path in root.iterdir()} >= {"day=mon%2Fday", "_change_data"}
    assert any("checkpoint" in path.name for path in known)


def test_readers_skip_files_by_their_statistics(location: Location, tmp_path: Path) -> None:
    log = DeltaLog.create(location, SCHEMA, ["day"])
    log.commit([written(location, f"{n}.parquet", range(n, n + 10), tmp_path) for n in (0, 10, 20)])
    table = DeltaTable(location.uri, storage_options=dict(location.options))
    assert [uri.rpartition("/")[2] for uri in table.file_uris(file_pruning_predicate="n = 12")] == ["10.parquet"]
    actions = pa.table(table.get_add_actions(flatten=True)).sort_by("path").to_pylist()
    assert [row["num_records"] for row in actions] == [10, 10, 10]
    assert [(row["min.n"], row["max.n"], row["null_count.name"]) for row in actions] == [
        (0, 9, 1),
        (10, 19, 0),
        (20, 29, 0),
    ]
    low, high = actions[0]["min.at"], actions[0]["max.at"]
    first, last = (datetime.fromtimestamp(1_700_000_000 + n, UTC).replace(microsecond=1) for n in (0, 9))
    assert low <= first < last <= high
    assert (high - low).total_seconds() < 9.01
    assert actions[0]["min.name"] <= "x" * 40 <= actions[0]["max.name"]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([0, 10**18], pa.timestamp("us", tz="UTC")),  # the year 33658
        pa.array([-(10**17), 0], pa.timestamp("us")),  # before the year 1
        pa.array([0, 10**7], pa.date32()),
        pa.array([datetime(9999, 12, 31, 23, 59, 59, 999_500, UTC)], pa.timestamp("us")),  # rounded up
    ],
)
def test_a_column_with_times_that_python_has_no_values_for_has_no_bounds(times: pa.Array, tmp_path: Path) -> None:
    file = tmp_path / "file.parquet"
    pq.write_table(pa.table({"n": range(len(times)), "at": times}), file)
    found = json.loads(statistics(pq.read_metadata(file)))
    assert found["maxValues"] == {"n": len(times) - 1}
    assert found["minValues"] == {"n": 0}
    assert found["nullCount"] == {"n": 0, "at": 0}


def test_a_log_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    location = Location.of(tmp_path / "table")
    log = DeltaLog.create(location, SCHEMA, ["day"])
    log.commit([])
    log.commit([])
    (tmp_path / "table" / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(LogDamaged, match="table"):
        DeltaLog.open(location)


@pytest.mark.parametrize(
    ("uri", "options", "why"),
    [
        ("hdfs://127.0.0.1:9/table", {}, "Generic HdfsObjectStore error: IO error occurred .*: Connection refused"),
        (
            "s3://bucket/table",
            {"endpoint_url": "http://127.0.0.1:9", "region": "r", "allow_http": "true", "max_retries": "0", **KEYS},
            "Generic S3 error: .*: Connection refused",
        ),
    ],
    ids=["hdfs", "s3"],
)
def test_a_store_that_cannot_be_reached_is_one_line(uri: str, options: dict[str, str], why: str) -> None:
    location = Location.of(uri, options)
    store = location.store
    for ask in (
        lambda: DeltaLog.open(location),
        lambda: store.walk(""),
        lambda: store.read("file"),
        lambda: store.write("file", b"1"),
        lambda: store.place("file", "other"),
        lambda: store.delete("file"),
    ):
        with pytest.raises(StoreFailed, match=f"^{uri} cannot be used: {why}") as caught:
            ask()
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            OSError("Generic S3 error: Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied"),
            StoreRefused,
        ),
        (OSError("Generic GCS error: Server returned non-2xx status code: 401 Unauthorized: "), StoreRefused),
        (OSError("The operation lacked the necessary privileges to complete for path part-403"), StoreRefused),
        (OSError("Generic HdfsObjectStore error: RPC error: AccessControlException: no"), StoreRefused),
        (OSError("Unable to create dir /t: Permission denied (os error 13)"), StoreRefused),
        (OSError("Unable to create dir /t: Read-only file system (os error 30)"), StoreRefused),
        (PermissionError(errno.EACCES, "no"), StoreRefused),
        (OSError(errno.EROFS, "no"), StoreRefused),
        (OSError("Generic S3 error: Server returned non-2xx status code: 503 Slow Down: part-403"), StoreFailed),
        (OSError(errno.EIO, "no"), StoreFailed),
    ],
)
def test_only_what_a_store_refuses_for_good_ends_a_run(error: OSError, kind: type[Exception]) -> None:
    with pytest.raises(PenstockError, match="cannot be used") as caught, translated(Location("/t")):
        raise error
    assert type(caught.value) is kind
    shown = "".join(traceback.format_exception(caught.value))
    assert is_transient_failure(shown) is (kind is StoreFailed)


@pytest.mark.parametrize("uri", ["ftp://host/table", "s4://bucket/table"])
def test_a_store_that_the_library_does_not_know_is_told(uri: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{uri} cannot hold a table .Unknown scheme: .*: use a path"):
        _ = Location.of(uri).store


def test_files_are_complete_or_not_there(location: Location, tmp_path: Path) -> None:
    store = location.store
    store.write("folder/one", b"1")
    store.write("folder/one", b"11")
    assert store.read("folder/one") == b"11"
    assert b"".join(store.blocks("folder/one")) == b"11"
    store.place("folder/one", "other/two words%")
    store.place("folder/one", "other/two words%")
    assert [(file.path, file.size) for file in store.walk("other")] == [("other/two words%", 2)]
    store.delete("folder/one")
    store.delete("folder/one")
    for look in (store.read, store.info, lambda path: list(store.blocks(path))):
        with pytest.raises(FileNotFoundError):
            look("folder/one")
    store.write("other/.draft", b"")  # such as a writer to HDFS leaves that is killed
    assert [file.path for file in store.walk("other")] == ["other/two words%"]
    assert [file.path for file in store.walk("other", has_drafts=True)] == ["other/.draft", "other/two words%"]
    store.delete_folder("other")
    assert store.walk("other", has_drafts=True) == store.walk("nowhere") == []
