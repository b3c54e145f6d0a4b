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

from penstock.spark.runtime.retry import Retries
from penstock.sync import ConsumerConfig, RedisMessageQueue, StreamClient, StreamConsumer, StreamProducer
from penstock.sync.tasks import RedisTaskQueue, Task
from tests.helpers.commands import TREE as ROOT
from tests.helpers.commands import call, run
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
    waits: bool = False  # for a server that is away
    note: str = ""


CASES: dict[str, Case] = {
    "stream ls": Case(reads=True),
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
    "task result": Case(None, ("nosuch",), ()),
    "task wait": Case(None, ("nosuch", "--timeout", "1ms"), ("nosuch", "--timeout", "soon")),
    "task cancel": Case(("{task}",), ("nosuch",), ()),
    "schedule ls": Case(reads=True, unknown=("--queue", "nosuch")),
    "schedule pause": Case(("nightly",), ("nosuch",), ()),
    "schedule resume": Case(("nightly",), ("nosuch",), ()),
    "schedule run": Case(("nightly",), ("nosuch",), ()),
    "balance ls": Case(reads=True, unknown=("nosuch",)),
    "balance release": Case(None, ("nosuch", "stream", "-y"), ("svc",)),
    "worker": Case(("tests.cli.jobs:handlers", "--burst"), bad=("nosuch:handlers",)),
    "consume": Case(
        ("tests.cli.jobs:ship", "--stream", "orders", "--group", "shop", "--burst"),
        bad=("tests.cli.jobs:nosuch", "--stream", "orders", "--group", "shop"),
    ),
    "workers": Case(reads=True, bad=("--state", "eaten")),
    "retention": Case(reads=True, unknown=("nosuch",)),
    "health": Case(reads=True, bad=("--max-lag", "-1")),
    "doctor": Case(reads=True),
    "acl": Case(("--role", "worker", "--stream", "orders"), bad=("--role", "emperor"), reads=True),
    "top": Case(("--every", "10ms", "-n", "1"), bad=("--every", "soon"), reads=True),
    "exporter": Case(None, bad=("--port", "99999"), note="it runs until it is stopped: test_worker_command.py"),
    "dashboard": Case(None, bad=("--port", "99999"), waits=True, note="tests/dashboard"),
    "bench": Case(("--for", "20ms", "--messages", "300"), bad=("--messages", "0"), reads=True),
    "config show": Case(reads=True, bad=("--set", "nonsense"), needs_server=False),
    "config check": Case(bad=("--set", "a.b=c"), needs_server=False, reads=True),
    "config schema": Case(needs_server=False),
    "demo": Case(None, bad=("--messages", "1"), needs_server=False, note="tests/acceptance/test_demo.py"),
    "pipeline run": Case(None, bad=("nosuch.toml",), needs_server=False, note="tests/spark/pipeline/test_cli.py"),
    "pipeline validate": Case(None, bad=("nosuch.toml",), needs_server=False, note="likewise"),
    "pipeline status": Case(None, bad=("nosuch.toml",), needs_server=False, note="likewise"),
    "pipeline preview": Case(None, bad=("nosuch.toml",), needs_server=False, note="likewise"),
    "pipeline reset": Case(None, bad=("nosuch.toml", "--from", "earliest"), needs_server=False, note="likewise"),
    "pipeline schema": Case(needs_server=False),
    "archive run": Case(None, bad=("--archive", "{place}", "--stream", "orders", "--every", "soon"), note="tests/spark"),
    "archive status": Case(None, ("--archive", "{place}"), (), needs_server=False, note="tests/spark/archive/test_cli.py"),
    "archive verify": Case(None, ("--archive", "{place}"), (), needs_server=False, note="likewise"),
    "archive compact": Case(None, ("--archive", "{place}"), (), needs_server=False, note="likewise"),
    "archive import": Case(
        None, ("--from", "{place}", "--archive", "{place}"), ("--archive", "{place}"), needs_server=False,
        note="tests/spark/archive/test_old_format.py",
    ),
    "replay": Case(None, ("--into", "b", "--dead-letters", "--stream", "nosuch"), ("--into", "b"), note="likewise"),
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
    for short, long in {"-y": "yes", "-c": "concurrency", "-p": "processes", "-o": "output"}.items():
        assert meant.get(short, long) == long
    assert shorts <= {"-v", "-q", "-y", "-c", "-p", "-o", "-n"}
    case = CASES.get(ALIASES.get(name, name), Case())
    assert ("url" in options) == (case.needs_server or (name.startswith("config") and name != "config schema"))
    assert not case.reads or "as_json" in options
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
        task_id = queue.enqueue(Task(kind="render"))
        queue.enqueue(Task(kind="render", id="cron.nightly.1"), delay=86_400)
    raw.lpush("old::pending", "a message")
    letter = raw.xrange("orders_dlq")[0][0].decode()
    return {"letter": letter, "task": task_id, "place": str(tmp_path / "nowhere")}


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
    # The commands of Spark retry for a minute first: tests/spark/runtime/test_retry.py.
    retries = Retries.__init__
    monkeypatch.setattr(Retries, "__init__", lambda self, _: retries(self, 0.0))
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
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        with StreamClient.from_url(raw_url) as client:
            producer = StreamProducer(client, "orders")
            while process.poll() is None:  # each line that it writes may be the one that finds the pipe closed
                producer.push({"n": 0})
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()


def test_quiet_and_verbose(names: dict[str, str]) -> None:
    assert run("group", "ls", "mails").stderr == "there is no group\n"
    assert run("group", "ls", "mails", "-q").stderr == ""
    assert run("group", "ls", "nosuch", "-q").stderr.startswith("penstock: ")


def test_a_question_is_asked_before_something_is_destroyed(names: dict[str, str], raw: redis.Redis) -> None:
    assert run("group", "delete", "orders", "idle", text="n\n").exit_code == 1
    assert len(raw.xinfo_groups("orders")) == 2
    assert run("group", "delete", "orders", "idle", text="y\n").exit_code == 0
    assert len(raw.xinfo_groups("orders")) == 1


# --- fuzz -------------------------------------------------------------------------------------------

LONG_RUNNING = {"worker", "consume", "exporter", "dashboard", "demo", "top", "stream tail", "bench"}
_NEEDS_JAVA = {"archive run", "pipeline run", "pipeline validate", "pipeline preview", "reprocess", "report", "replay"}
_WORDS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "orders", "shop", "orders_dlq", "mails", "penstock", "nosuch", "*", "[", "-", "--", "0", "-1", "1e309", "nan",
            "2h", "2026-11-15", "99999-99999", "0-0", "$", ">", "{", "{}", "[]", "null", '"', "\x1b[2J", "\ud800", "\x00",
            "[red]x[/blue]", "../..", "redis://", "unix:///nowhere", "a" * 5_000, "\u202e", "1" * 400,
        ]
    ),
)  # fmt: skip


@st.composite
def calls(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from([each for each in TREE if each not in LONG_RUNNING | _NEEDS_JAVA]))
    words = name.split()
    for parameter in TREE[name].params:
        if parameter.param_type_name == "argument":
            words += draw(st.lists(_WORDS, min_size=int(parameter.required), max_size=1 if parameter.nargs == 1 else 3))
        elif (
            parameter.name not in {"help", "url", "output", "config", "wait", "timeout", "over"}
            and draw(st.integers(0, 3)) == 0
        ):
            words.append(draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts])))
            if not parameter.is_flag:
                words.append(draw(_WORDS))
    return words


@settings(
    max_examples=400,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(words=calls())
def test_no_argument_leads_to_a_stack_trace(names: dict[str, str], words: list[str]) -> None:
    result = call(*words, text="n\n")
    assert result.exit_code in {0, 1, 2, 3}, (words, result.output)
    assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
    assert "\x1b[2J" not in result.stdout
