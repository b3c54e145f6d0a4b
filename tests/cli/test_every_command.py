"""What holds for every command: with a server that is away, a name that nobody knows, bad input, and in a pipe.

A new command is found in the tree, and the first test fails until it has its line in CASES.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.spark.runtime.link import Retries
from penstock.sync import (
    ConsumerConfig,
    RedisMessageQueue,
    StreamBalancer,
    StreamClient,
    StreamConsumer,
    StreamProducer,
)
from penstock.sync.tasks import RedisTaskQueue, Result, Task
from tests.helpers.commands import TREE as ROOT
from tests.helpers.commands import call, run
from tests.helpers.processes import running
from tools.cli_reference import leaves

pytestmark = pytest.mark.usefixtures("default_server")
DEAD = "redis://127.0.0.1:1/0"
ONE_ERROR = re.compile(r"penstock: .+\n")
Words = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """How a command is called: `good` on the server of these tests, `unknown` with a name that nobody knows.

    What is None does not make sense for the command. `reads` says that it has --json and no other effect.
    """

    good: Words | None = ()
    unknown: Words | None = None
    bad: Words = ("--nonsense",)
    reads: bool = False
    needs_server: bool = True
    has_url: bool = False  # and may need a server, which other tests take away
    waits: bool = False  # for a server that is away
    note: str = ""


CASES: dict[str, Case] = {
    "stream ls": Case(reads=True, unknown=("nosuch",)),
    "stream info": Case(("orders",), ("nosuch",), reads=True),
    "stream peek": Case(("orders",), ("nosuch",), ("orders", "--since", "noon"), reads=True),
    "stream tail": Case(("orders", "--no-follow"), ("nosuch", "--no-follow"), ("orders", "-n", "-1"), reads=True),
    "stream publish": Case(("orders", '{"n": 1}'), bad=("orders", "{")),
    "stream trim": Case(("orders", "--yes"), ("nosuch",), ("orders", "--max-age", "soon")),
    "group ls": Case(reads=True, unknown=("nosuch",)),
    "group lag": Case(reads=True, unknown=("orders", "nosuch"), bad=("orders", "--over", "soon")),
    "group seek": Case(("orders", "shop", "end", "-y"), ("orders", "nosuch", "end", "-y"), ("orders", "shop", "noon")),
    "group delete": Case(("orders", "idle", "-y"), ("orders", "nosuch", "-y"), ("orders",)),
    "pending ls": Case(("orders", "shop"), ("orders", "nosuch"), ("orders", "shop", "--idle", "1"), reads=True),
    "pending claim": Case(("orders", "shop", "me", "-y"), ("orders", "nosuch", "me"), ("orders", "shop")),
    "pending retry": Case(("orders", "shop", "-y"), ("orders", "nosuch"), ("orders",)),
    "dlq ls": Case(unknown=("--queue", "nosuch"), bad=("--since", "noon"), reads=True),
    "dlq show": Case(("{letter}",), ("nosuch",), (), reads=True),
    "dlq redrive": Case(("--yes",), ("nosuch", "--yes"), ("--rate", "0")),
    "dlq edit": Case(("{letter}", "--payload", '{"n": 2}', "-y"), ("nosuch",), ("{letter}", "--payload", "{")),
    "dlq export": Case(unknown=("--queue", "nosuch"), bad=("--format", "parquet")),
    "dlq purge": Case(("--yes",), ("nosuch", "--yes"), ("--limit", "0")),
    "queue ls": Case(reads=True),
    "queue stats": Case(("mails",), ("nosuch",), (), reads=True),
    "queue peek": Case(("mails",), ("nosuch",), ("mails", "--state", "eaten"), reads=True),
    "queue purge": Case(("mails", "--yes"), ("nosuch", "--yes"), ("mails", "--state", "eaten")),
    "queue import": Case(("old",), ("nosuch",), ()),
    "queue list": Case(reads=True, unknown=("--queue", "nosuch")),
    "task ls": Case(reads=True, unknown=("--queue", "nosuch"), bad=("--state", "eaten")),
    "task status": Case(("{task}",), ("nosuch",), (), reads=True),
    "task send": Case(("render",), bad=("render", "[1]")),
    "task result": Case(("finished",), ("nosuch",), (), reads=True),
    "task wait": Case(("finished",), ("nosuch", "--timeout", "1ms"), ("nosuch", "--timeout", "soon"), reads=True),
    "task cancel": Case(("{task}",), ("nosuch",), ()),
    "schedule ls": Case(reads=True, unknown=("--queue", "nosuch")),
    "schedule pause": Case(("nightly",), ("nosuch",), ()),
    "schedule resume": Case(("nightly",), ("nosuch",), ()),
    "schedule run": Case(("nightly",), ("nosuch",), ()),
    "balance ls": Case(reads=True, unknown=("nosuch",)),
    "balance release": Case(None, ("nosuch", "stream", "-y"), ("svc",), note="it needs an owner: below"),
    "worker": Case(("tests.cli.jobs:handlers", "--burst"), bad=("nosuch:handlers",)),
    "consume": Case(
        ("tests.cli.jobs:ship", "--stream", "orders", "--group", "shop", "--burst"),
        bad=("tests.cli.jobs:nosuch", "--stream", "orders", "--group", "shop"),
    ),
    "workers": Case(reads=True, unknown=("--stream", "nosuch"), bad=("--state", "eaten")),
    "retention": Case(reads=True, unknown=("nosuch",)),
    "health": Case(reads=True, unknown=("--stream", "nosuch"), bad=("--max-lag", "-1")),
    "doctor": Case(reads=True),
    "acl": Case(("--role", "worker", "--stream", "orders"), bad=("--role", "emperor"), reads=True),
    "top": Case(("--every", "10ms", "--samples", "1"), ("--stream", "nosuch"), ("--every", "soon"), reads=True),
    "exporter": Case(
        None, ("--stream", "nosuch", "--port", "0"), ("--port", "99999"),
        note="it runs until it is stopped: test_worker_command.py",
    ),
    "dashboard": Case(None, bad=("--port", "99999"), waits=True, note="tests/dashboard/test_command.py"),
    "bench": Case(("--for", "20ms", "--messages", "300"), bad=("--messages", "0"), reads=True),
    "config show": Case(reads=True, bad=("--set", "nonsense"), needs_server=False, has_url=True),
    "config check": Case(bad=("--set", "a.b=c"), needs_server=False, has_url=True, reads=True),
    "config schema": Case(needs_server=False),
    "demo": Case(None, bad=("--messages", "1"), needs_server=False, note="tests/acceptance/test_demo.py"),
    "pipeline run": Case(None, bad=("nosuch.toml",), needs_server=False, has_url=True, note="tests/spark/pipeline/test_cli.py"),
    "pipeline validate": Case(None, bad=("nosuch.toml",), needs_server=False, has_url=True, note="likewise"),
    "pipeline status": Case(None, bad=("nosuch.toml",), needs_server=False, has_url=True, note="likewise"),
    "pipeline preview": Case(None, bad=("nosuch.toml",), needs_server=False, has_url=True, note="likewise"),
    "pipeline reset": Case(
        None, bad=("nosuch.toml", "--from", "earliest"), needs_server=False, has_url=True, note="likewise"
    ),
    "pipeline schema": Case(needs_server=False),
    "archive run": Case(None, bad=("--archive", "{place}", "--stream", "orders", "--every", "soon"), note="tests/spark"),
    "archive status": Case(None, ("--archive", "{place}"), (), needs_server=False, note="tests/spark/archive/test_cli.py"),
    "archive verify": Case(None, ("--archive", "{place}"), (), needs_server=False, note="likewise"),
    "archive compact": Case(None, ("--archive", "{place}"), (), needs_server=False, note="likewise"),
    "archive import": Case(
        None, ("--source", "{place}", "--archive", "{place}"), ("--archive", "{place}"), needs_server=False,
        note="tests/spark/archive/test_old_format.py",
    ),
    "replay": Case(
        None, ("--into", "b", "--dead-letters", "--stream", "nosuch"), ("--into", "b"), note="tests/spark/archive/test_cli.py"
    ),
    "reprocess": Case(
        None,
        ("--handler", "tests.cli.jobs:ship", "--dead-letters", "--stream", "nosuch"),
        ("--stream", "a"),
        note="tests/spark/reprocess",
    ),
    "report": Case(None, ("--stream", "nosuch"), ("--stream", "orders", "--since", "noon"), note="tests/spark/report"),
}  # fmt: skip
# The names that users of other queues know: the same functions.
ALIASES = {
    "queue dlq list": "dlq ls",
    "queue dlq inspect": "dlq show",
    "queue dlq retry": "dlq redrive",
    "queue dlq export": "dlq export",
    "queue dlq purge": "dlq purge",
}
NOT_YET_EVERYWHERE = {"dashboard"}  # needs an extra
# They run until they are stopped, have formats of their own, or print JSON alone.
WITHOUT_JSON = {"worker", "consume", "dashboard", "exporter", "dlq export", "config schema", "pipeline schema"}
TREE = {" ".join(path): command for path, command in leaves(ROOT)}
NAMES = [name for name in CASES if name in TREE]


def test_every_command_has_its_case() -> None:
    assert TREE.keys() - ALIASES.keys() - NOT_YET_EVERYWHERE == CASES.keys() - NOT_YET_EVERYWHERE
    assert ALIASES.keys() <= TREE.keys()


@pytest.mark.parametrize("name", TREE)
def test_options_are_spelled_alike_everywhere(name: str) -> None:
    options = {each.name: each for each in TREE[name].params if each.param_type_name == "option"}
    shorts = {short for each in options.values() for short in each.opts if len(short) == 2}
    meant = {short: each.name for each in options.values() for short in each.opts if len(short) == 2}
    assert {"-v": "verbose", "-q": "quiet"}.items() <= meant.items()
    for short, long in {"-y": "yes", "-c": "concurrency", "-p": "processes", "-o": "output", "-n": "limit"}.items():
        assert meant.get(short, long) == long
    assert shorts <= {"-v", "-q", "-y", "-c", "-p", "-o", "-n"}
    case = CASES.get(ALIASES.get(name, name), Case())
    assert ("url" in options) == (case.needs_server or case.has_url)
    assert ("as_json" in options) == (name.replace("queue dlq", "dlq") not in WITHOUT_JSON)
    for option in options.values():
        assert not re.search(r"_(ms|s|seconds)$", option.name), "durations have their unit in the value"
    if "url" in options:
        assert options["url"].envvar == "PENSTOCK_URL"


@pytest.fixture
def names(redis_url: str, raw: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A server with something of everything; what `{letter}`, `{task}` and `{place}` stand for."""
    monkeypatch.setenv("PENSTOCK_URL", redis_url)
    monkeypatch.delenv("PENSTOCK_CONFIG", raising=False)

    def ship(message: Any) -> None:
        raise ValueError("no address")

    with StreamClient.from_url(redis_url) as client:
        producer = StreamProducer(client, "orders", "shop")
        producer.ensure_group()
        producer.push_many([{"n": 1}, {"n": 2}])
        config = ConsumerConfig(group="shop", max_deliveries=1, block_ms=10)
        consumer = StreamConsumer(client, "orders", config, message_handler=ship)
        consumer.run_once()
        consumer.close()
        raw.xgroup_create("orders", "idle", "$")
        RedisMessageQueue("mails", client=client).publish({"to": "ada"})
    with RedisTaskQueue(redis_url) as queue:
        queue.enqueue(Task(kind="render", id="finished"))
        queue.pop()
        queue.finish_many([Result(task_id="finished", kind="render", data={"pages": 3})])
        task_id = queue.enqueue(Task(kind="render"))
        queue.enqueue(Task(kind="render", id="cron.nightly.1"), delay=86_400)
    raw.lpush("old::pending", "a message")
    letter = raw.xrange("orders_dlq")[0][0].decode()
    return {"letter": letter, "task": task_id, "place": str(tmp_path / "nowhere")}


_retries = Retries.__init__


def _without_retries(self: Retries, _: float) -> None:
    # The commands of Spark retry for a minute first: tests/spark/runtime/test_retry.py.
    _retries(self, 0.0)


def filled(words: Words, names: dict[str, str]) -> list[str]:
    return [names[word[1:-1]] if word[:1] == "{" and word[1:-1] in names else word for word in words]


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].needs_server and not CASES[name].waits])
def test_without_a_server_it_ends_with_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    words = case.good if case.good is not None else case.unknown
    if words is None:
        words = ()
    if name == "archive run":
        words = ("--archive", "{place}", "--stream", "orders")
    monkeypatch.setattr(Retries, "__init__", _without_retries)
    monkeypatch.setenv("COLUMNS", "200")
    result = run(*name.split(), *filled(words, {"letter": "1-0", "task": "t", "place": str(tmp_path)}), "--url", DEAD)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("penstock: ")
    assert "127.0.0.1:1" in last


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].unknown is not None])
def test_a_name_that_nobody_knows_ends_with_3(name: str, names: dict[str, str]) -> None:
    result = run(*name.split(), *filled(CASES[name].unknown or (), names))
    assert result.exit_code == 3, result.output
    assert result.stdout == "" or name in {"dlq redrive", "dlq purge"}
    assert ONE_ERROR.fullmatch(result.stderr) or name in {"task result", "task wait"}


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_ends_with_2_and_changes_nothing(name: str, names: dict[str, str], raw: redis.Redis) -> None:
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    for bad in (CASES[name].bad, ("--nonsense",)):
        result = run(*name.split(), *filled(bad, names))
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].good is not None and name != "worker"])
def test_in_a_pipe_lines_are_whole_and_plain(name: str, names: dict[str, str]) -> None:
    case = CASES[name]
    result = run(*name.split(), *filled(case.good or (), names))
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    if case.reads:
        result = run(*name.split(), *filled(case.good or (), names), "--json")
        assert result.exit_code == 0, result.output
        assert all(isinstance(json.loads(line), dict) for line in result.stdout.splitlines())


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_released_stream_is_one_line_in_a_pipe(redis_url: str, names: dict[str, str], option: Words) -> None:
    with StreamClient.from_url(redis_url) as client, (balancer := StreamBalancer(client, "svc", id="owner")) as notices:
        balancer.add_stream("session-1")
        assert next(notices).payload.data_stream_name == "session-1"
        assert run("balance", "ls", "svc", "--json").exit_code == 0
        result = run("balance", "release", "svc", "session-1", "--yes", *option)
    assert result.exit_code == 0, result.output
    [line] = result.stdout.splitlines()
    assert "\x1b" not in line
    assert "session-1" in line
    assert not option or json.loads(line)["owner"].endswith("owner")


def test_ids_and_names_are_whole_in_a_pipe(names: dict[str, str], raw: redis.Redis) -> None:
    long = "a-stream-with-a-very-long-name-" * 6
    raw.xadd(long, {"data": "x" * 500})
    words = [sys.executable, "-m", "penstock", "stream", "ls"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "40"})
    assert any(line.startswith(long) for line in done.stdout.splitlines())
    assert done.stderr == ""


def test_a_reader_that_has_enough_ends_the_command_quietly(names: dict[str, str]) -> None:
    words = f"{sys.executable} -m penstock stream tail orders | head -n 1"
    script = f"from subprocess import *; print(run({words!r}, shell=True, capture_output=True, text=True))"
    raw_url = os.environ["PENSTOCK_URL"]
    with StreamClient.from_url(raw_url) as client:
        StreamProducer(client, "orders").push_many([{"n": n} for n in range(50)])
    with running([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        with StreamClient.from_url(raw_url) as client:
            producer = StreamProducer(client, "orders")
            while process.poll() is None:  # each line that it writes may be the one that finds the pipe closed
                producer.push({"n": 0})
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()


def test_quiet_and_verbose(names: dict[str, str]) -> None:
    assert run("group", "ls", "mails").stderr == "no consumer groups\n"
    assert run("group", "ls", "mails", "-q").stderr == ""
    assert run("group", "ls", "nosuch", "-q").stderr.startswith("penstock: ")
    said = run("group", "ls", "mails", "-v").stderr.splitlines()
    assert (len(said), said[1]) == (2, "no consumer groups")
    assert said[0].endswith(f"the server is {os.environ['PENSTOCK_URL']} (--url or PENSTOCK_URL)")
    said = run("group", "ls", "mails", "-v", "--url", DEAD.replace("//", "//ada:secret@")).stderr
    assert "secret" not in said
    assert "ada" in said


def test_the_shell_completes_commands_and_options() -> None:
    for words, completed in {"penstock dlq re": {"redrive"}, "penstock stream ls --js": {"--json"}}.items():
        given = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [sys.executable, "-m", "penstock"], env={**os.environ, **given}, capture_output=True, text=True, check=True
        )
        assert set(done.stdout.split()) == completed


def test_a_question_is_asked_before_something_is_destroyed(names: dict[str, str], raw: redis.Redis) -> None:
    assert run("group", "delete", "orders", "idle", text="n\n").exit_code == 1
    assert len(raw.xinfo_groups("orders")) == 2
    assert run("group", "delete", "orders", "idle", text="y\n").exit_code == 0
    assert len(raw.xinfo_groups("orders")) == 1


# --- fuzz -------------------------------------------------------------------------------------------

WORDS = (
    "orders", "shop", "orders_dlq", "mails", "penstock", "nosuch", "*", "[", "-", "--", "0", "-1", "1e309", "nan",
    "2h", "2026-11-15", "99999-99999", "0-0", "$", ">", "{", "{}", "[]", "null", '"', "\x1b[2J", "\ud800", "\x00",
    "[red]x[/blue]", "../..", "redis://", "unix:///nowhere", "a" * 5_000, "\u202e", "1" * 400, "",
)  # fmt: skip
_PLACES = ("", "nosuch", "no/such/folder", ".", "\x00", "\ud800", "a" * 5_000)
_SPANS = ("", "0s", "1ms", "soon", "-1", "nan", "1" * 400, "\u0661s")
_ADDRESSES = (
    DEAD, "", "nonsense", "http://127.0.0.1", "redis://127.0.0.1:99999", "redis://[", "redis://127.0.0.1:1/x", "unix://",
    "unix:///nowhere", "redis://127.0.0.1:1?x=%", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/x", "\ud800",
)  # fmt: skip
# What would write somewhere, wait for long, or reach servers that are not of these tests is drawn from a list.
OPTIONS = {
    "url": _ADDRESSES, "output": _PLACES, "config": _PLACES, "archive": _PLACES, "source": _PLACES, "results": _PLACES,
    "wait": _SPANS, "timeout": _SPANS, "over": _SPANS,
}  # fmt: skip
# Some run until they are stopped: those are called for a server that is away.
_AWAY = {"exporter", "top", "bench", "archive run", "reprocess", "report", "replay"}
WITH = {"stream tail": ["--no-follow"], "task wait": ["--timeout", "1ms"], **{name: ["--url", DEAD] for name in _AWAY}}
FIRST = {
    "worker": ["tests.cli.jobs:handlers", "--burst", "--url", DEAD],
    "consume": ["tests.cli.jobs:ship", "--burst", "--url", DEAD],
}


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline", "validate", "x.toml"),
        ("pipeline", "schema"),
        ("archive", "status", "--archive", "lake"),
        ("replay", "--archive", "lake", "--stream", "a", "--into", "b"),
        ("report", "--stream", "a"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_that_needs_spark_says_what_to_install(words: Words) -> None:
    missing = "('pyspark', 'pyarrow', 'pandas', 'numpy', 'deltalake')"
    script = f"import sys; sys.modules.update(dict.fromkeys({missing})); from penstock.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ONE_ERROR.fullmatch(done.stderr)
    assert done.stderr.endswith("pip install 'penstock[spark]'\n")


_hostile = st.one_of(st.text(max_size=30), st.sampled_from(WORDS))


@st.composite
def calls(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(list(TREE)))
    words = name.split()
    is_known = name in FIRST and draw(st.booleans())
    for parameter in TREE[name].params:
        if parameter.param_type_name == "argument":
            if not is_known:
                most = 1 if parameter.nargs == 1 else 3
                words += draw(st.lists(_hostile, min_size=int(parameter.required), max_size=most))
        elif parameter.name != "help" and (parameter.required or draw(st.integers(0, 3)) == 0):
            words.append(draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts])))
            if not parameter.is_flag:
                words.append(draw(st.sampled_from(OPTIONS[parameter.name]) if parameter.name in OPTIONS else _hostile))
    return [*words, *(FIRST[name] if is_known else WITH.get(name, []))]


def start_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keeps commands from starting processes, from waiting, and from writing outside a folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(Retries, "__init__", _without_retries)
    monkeypatch.setattr("penstock.dashboard.server.DashboardServer.run", lambda _: None)
    for starts in (
        "penstock.cli.demo.command.play",
        "penstock.cli.supervisor.supervise",
        "penstock.spark.sessions.session",
    ):
        monkeypatch.setattr(starts, _not_here)
    monkeypatch.setenv("VISUAL", "false")


def ends_well(*words: str) -> None:
    """Runs a command, which must end with one of its codes and without a stack trace."""
    result = call(*words, text="n\n")
    assert result.exit_code in {0, 1, 2, 3}, (words, result.output)
    assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
    assert "\x1b[2J" not in result.stdout


def _not_here(*_: object, **__: object) -> None:
    raise PenstockError("this starts processes")


@settings(
    max_examples=200,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(words=calls())
def test_no_argument_leads_to_a_stack_trace(
    names: dict[str, str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_nothing(monkeypatch, tmp_path)
    ends_well(*words)
