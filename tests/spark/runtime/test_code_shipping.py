"""Penstock's code, unpacked by a Python that lacks it; without Spark."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle

from penstock.settings import ResultBackendSettings
from penstock.spark.archive.file_writer import ArchiveTask
from penstock.spark.archive.run import Copying
from penstock.spark.format.data_source import RedisStreamsSource
from penstock.spark.lake.files import Location
from penstock.spark.pipeline.dead_letters import DeadLetterConfig
from penstock.spark.pipeline.handling import HandlerTask
from penstock.spark.pipeline.plan import Intake
from penstock.spark.pipeline.sink_options import Results
from penstock.spark.pipeline.sinks.results import SaveTask
from penstock.spark.pipeline.steps import Handler
from penstock.spark.reprocess.task import PurgeTask, ReprocessTask, Work
from penstock.spark.runtime import code_shipping
from penstock.spark.runtime.link import Link
from penstock.spark.source.options import SourceOptions
from tests.spark.bare_python import bare_python

# As Spark does it: one process makes the source and its reader and pickles that, another one reads with it.
_PLAN = """
import sys
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructType
kind = cloudpickle.loads(sys.stdin.buffer.read())
source = kind({"url": "redis://localhost:1", "streams": "orders"})
reader = source.reader(StructType().add("id", StringType()))
sys.stdout.buffer.write(cloudpickle.dumps(reader))
"""
_READ = """
import sys
from pyspark import cloudpickle
reader = cloudpickle.loads(sys.stdin.buffer.read())
import penstock
print(type(reader).__name__, penstock.__file__)
"""
_UNPICKLE = """
import pickle, sys
print(*(type(pickle.loads(pickled)).__name__ for pickled in pickle.load(sys.stdin.buffer)))
"""
_LACK = "import penstock"
# A worker that has run the same handler with the Penstock of its machine, before a job comes with another one.
_HANDLE = """
import pickle, sys
sys.path[:0] = {places}
import shop.handlers, shop.prices, penstock.spark.pipeline.handling
before = shop.prices
task = pickle.loads(sys.stdin.buffer.read())
import penstock
from penstock.model import StreamMessage
from penstock.spark.pipeline.steps import imported
from penstock.spark.pipeline.caller import Caller
caller = Caller(imported("handler", task.step.handler), 3, has_output=False)
failed = caller.handle([StreamMessage(id="1-0", data=1, attempts=1, delivery_count=1)]).failed["1-0"]
import shop.prices
print(penstock.__file__, failed.reason.value, failed.attempts, shop.prices is before)
"""
_MODULES = {
    "__init__": "",
    "errors": "from penstock.errors import FatalError\nclass Cancelled(FatalError): pass",
    "reasons": "from shop.errors import Cancelled as reason",
    "handlers": "from shop import reasons\ndef score(messages): raise reasons.reason('cancelled')",
    "prices": "",
}


@pytest.fixture(autouse=True)
def by_reference_again() -> Iterator[None]:
    yield
    code_shipping.leave()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., bytes]:
    """Runs a script in a Python without Penstock, whose temporary files are the test's own."""
    program = bare_python(tmp_path)

    def run(script: str, given: bytes = b"") -> bytes:
        environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": ""}
        done = subprocess.run([program, "-c", script], input=given, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    return run


def test_the_python_of_these_tests_lacks_penstock(run: Callable[..., bytes]) -> None:
    with pytest.raises(AssertionError, match="ModuleNotFoundError: No module named 'penstock'"):
        run(_LACK)


def test_what_is_pickled_brings_its_code_along_from_process_to_process(
    run: Callable[..., bytes], tmp_path: Path
) -> None:
    reader = run(_PLAN, cloudpickle.dumps(code_shipping.shipped(RedisStreamsSource)))
    name, place = run(_READ, reader).decode().split()
    assert name == "BatchReader"
    assert place.startswith(f"{tmp_path}/penstock-{os.getuid()}-")


def test_files_that_a_cleaner_took_are_put_back(run: Callable[..., bytes], tmp_path: Path) -> None:
    pickled = cloudpickle.dumps(code_shipping.shipped(RedisStreamsSource))
    run(_PLAN, pickled)
    (home,) = tmp_path.glob("penstock-*")
    for file in home.rglob("*.py"):
        file.unlink()
    run(_PLAN, pickled)


def test_a_directory_of_somebody_else_is_refused(run: Callable[..., bytes], tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a directory of somebody else")
    pickled = cloudpickle.dumps(code_shipping.shipped(RedisStreamsSource))
    run(_PLAN, pickled)
    (home,) = tmp_path.glob("penstock-*")
    os.chown(home, 12345, -1)
    with pytest.raises(AssertionError, match=r"PermissionError: .* belongs to another user"):
        run(_PLAN, pickled)


def test_the_archive_is_the_same_for_the_same_code_and_holds_what_executors_need() -> None:
    first = code_shipping.packed()
    code_shipping.packed.cache_clear()
    assert code_shipping.packed() == first
    names = zipfile.ZipFile(io.BytesIO(first)).namelist()
    assert {
        "penstock/__init__.py",
        "penstock/spark/format/data_source.py",
        "penstock/redis/lua/streams/publish.lua",
    } <= set(names)
    assert not [name for name in names if name.startswith(("penstock/cli", "penstock/testing"))]


def tasks() -> list[object]:
    """Returns one of each kind that Spark pickles beside sources and sinks."""
    link = Link("redis://localhost:1")
    dead_letters = DeadLetterConfig(link, "shop", "/checkpoint")
    options = SourceOptions.parse({"url": "redis://localhost:1", "streams": "orders"})
    work = Work("shop:score", ResultBackendSettings())
    return [
        HandlerTask(Handler("shop:score"), dead_letters, "json", None),
        Intake(dead_letters, ("n",)),
        SaveTask(Results("n", "order")),
        ReprocessTask(work, False, None),
        PurgeTask(link, "orders_dlq", ResultBackendSettings(), "again"),
        Copying(ArchiveTask(Location("/cold"), "_staging/batch-1", (), 1), options),
    ]


def test_tasks_bring_the_code_along_as_sources_do(run: Callable[..., bytes]) -> None:
    code_shipping.carry(code_shipping.packed())
    made = tasks()
    pickled = pickle.dumps([cloudpickle.dumps(task) for task in made])
    assert run(_UNPICKLE, pickled).decode().split() == [type(task).__name__ for task in made]


def test_a_handler_that_a_worker_knows_already_fails_with_the_errors_of_the_penstock_that_arrives(
    run: Callable[..., bytes], tmp_path: Path
) -> None:
    (tmp_path / "shop").mkdir()
    for name, text in _MODULES.items():
        (tmp_path / "shop" / f"{name}.py").write_text(text)
    code_shipping.carry(code_shipping.packed())
    task = HandlerTask(Handler("shop.handlers:score"), DeadLetterConfig(Link("redis://x"), "shop", "/c"), "json", None)
    places = [str(tmp_path), str(Path(code_shipping.__file__).parents[3])]
    place, *told = run(_HANDLE.format(places=places), cloudpickle.dumps(task)).decode().split()
    assert place.startswith(f"{tmp_path}/penstock-{os.getuid()}-")
    assert told == ["fatal", "1", "True"]  # what has nothing to do with Penstock is not imported again


def test_nothing_is_brought_along_after_leaving() -> None:
    for made in (RedisStreamsSource({}), *tasks()):
        code_shipping.carry(code_shipping.packed())
        assert len(cloudpickle.dumps(made)) > 100_000
        code_shipping.leave()
        assert len(cloudpickle.dumps(made)) < 2_000
