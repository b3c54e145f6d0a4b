"""`penstock stream`, `group`, `pending`, `dlq`, `queue`, `health`, `top` and `consume` on what a server holds."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import typer

from penstock.cli import queue as queue_commands
from penstock.cli import stream as stream_commands
from penstock.cli.stream import lag_text, total_lag_text
from penstock.cli.top import _table
from penstock.dashboard.presentation import environment
from penstock.errors import PermissionDenied
from penstock.model import Lag
from penstock.ops.model import Totals
from penstock.sync import ConsumerConfig, RedisMessageQueue, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.sync.ops import Inspector, Sampler
from penstock.sync.ops.pending import PendingMessages
from penstock.sync.tasks import RedisTaskQueue, Task
from tests.cli.conftest import Command
from tests.faults.waiting import eventually
from tests.helpers.commands import run
from tests.helpers.processes import running

pytestmark = pytest.mark.usefixtures("default_server")
ROOT = Path(__file__).resolve().parents[2]
Rows = Callable[..., list[Any]]
AsJson = Callable[..., Any]


@pytest.fixture
def client(redis_url: str) -> Iterator[StreamClient]:
    with StreamClient.from_url(redis_url) as client:
        yield client


def fail(message: StreamMessage) -> None:
    raise ValueError(f"order {message.data['n']} has no address")


def give_up(client: StreamClient, stream: str, count: int) -> None:
    """Leaves dead letters in the stream's dead letters."""
    StreamProducer(client, stream).push_many([{"n": n} for n in range(count)])
    config = ConsumerConfig(group="shop", max_deliveries=1, block_ms=10)
    consumer = StreamConsumer(client, stream, config, message_handler=fail)
    consumer.run_once()
    consumer.close()


def test_messages_are_published_and_looked_at(penstock: Command, as_rows: Rows, as_json: AsJson) -> None:
    first = penstock("stream", "publish", "orders", '{"n": 1}', "--key", "k", "--header", "a=b").stdout.strip()
    second, third = penstock("stream", "publish", "orders", "-", text='{"n": 2}\n\n{"n": 3}\n').stdout.split()
    assert [row["id"] for row in as_rows("stream", "peek", "orders")] == [third, second, first]
    assert [row["id"] for row in as_rows("stream", "peek", "orders", "--oldest", "-n", "1")] == [first]
    assert [row["payload"] for row in as_rows("stream", "peek", "orders", "--text", '"n":2')] == [{"n": 2}]
    assert as_rows("stream", "peek", "orders", "--until", "1h") == []
    assert [row["id"] for row in as_rows("stream", "tail", "orders", "-n", "2", "--no-follow")] == [second, third]
    row = as_json("stream", "peek", "orders", first)
    assert (row["key"], row["headers"], row["form"]) == ("k", {"a": "b"}, "json")
    assert as_json("stream", "peek", "orders", first[:-1])["id"] == first
    assert as_json("stream", "ls")["length"] == 3
    assert as_rows("stream", "ls", "--kind", "tasks") == []
    assert first in penstock("stream", "info", "orders").stdout
    assert "KiB" in penstock("stream", "info", "orders").stdout


def test_a_message_with_a_key_that_was_seen_is_not_published(
    penstock: Command, as_json: AsJson, raw: redis.Redis
) -> None:
    first = as_json("stream", "publish", "orders", "1", "--dedup-key", "once")
    assert first["is_new"] is True
    assert as_json("stream", "publish", "orders", "2", "--dedup-key", "once") == {**first, "is_new": False}
    again = penstock("stream", "publish", "orders", "2", "--dedup-key", "once")
    assert again.stdout.strip() == first["id"]
    assert "nothing was added" in again.stderr
    assert raw.xlen("orders") == 1


def test_lines_are_published_as_they_come_through_a_pipe(redis_url: str, raw: redis.Redis) -> None:
    words = ["stream", "publish", "orders", "-", "--url", redis_url]
    with running(
        [sys.executable, "-m", "penstock", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for n in range(2):
            process.stdin.write(f'{{"n": {n}}}\n')
            assert process.stdout.readline().strip() == raw.xrevrange("orders", count=1)[0][0].decode()
        process.stdin.close()
        assert process.wait(60) == 0
    assert raw.xlen("orders") == 2


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("size", [200_000, 3_000_000])
def test_tail_prints_as_many_entries_as_asked_for_however_large(as_rows: Rows, raw: redis.Redis, size: int) -> None:
    added = [raw.xadd("orders", {"data": "x" * size}).decode() for _ in range(5)]
    assert [row["id"] for row in as_rows("stream", "tail", "orders", "-n", "4", "--no-follow")] == added[1:]
    assert as_rows("stream", "tail", "orders", "-n", "0", "--no-follow") == []


def test_tail_pauses_only_when_it_has_printed_everything(
    as_rows: Rows, client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.xadd("orders", {"data": "{}"})
    added: list[str] = []

    def pause(_: float) -> None:
        if added:
            raise typer.Exit
        added.extend(StreamProducer(client, "orders").push_many(range(450)))

    monkeypatch.setattr(stream_commands, "time", SimpleNamespace(sleep=pause))
    assert [row["id"] for row in as_rows("stream", "tail", "orders", "-n", "0")] == added


def test_what_no_group_needs_is_trimmed(
    penstock: Command, as_json: AsJson, client: StreamClient, raw: redis.Redis
) -> None:
    producer = StreamProducer(client, "orders", "shop")
    producer.ensure_group()
    ids = producer.push_many([{"n": n} for n in range(5)])
    assert as_json("stream", "trim", "orders", "--dry-run")["entries"] == 0
    penstock("group", "seek", "orders", "shop", ids[2], "--yes")
    assert as_json("group", "lag", "orders", "shop")["count"] == 2
    assert as_json("stream", "trim", "orders", "--dry-run")["entries"] == 3
    assert raw.xlen("orders") == 5
    penstock("stream", "trim", "orders", code=1, text="n\n")
    assert as_json("stream", "trim", "orders", "--yes")["entries"] == 3
    assert raw.xlen("orders") == 2
    penstock("group", "seek", "orders", "shop", ids[0].partition("-")[0], "--yes")
    assert raw.xinfo_groups("orders")[0]["last-delivered-id"].decode() < ids[0], "a time is read from"
    penstock("group", "seek", "orders", "shop", "beginning", "--yes")
    assert as_json("group", "lag", "orders")["count"] == 2


def test_a_policy_bounds_what_is_trimmed(as_json: AsJson, client: StreamClient, raw: redis.Redis) -> None:
    ids = StreamProducer(client, "orders").push_many([{"n": n} for n in range(100)])
    raw.xgroup_create("orders", "shop", ids[59])
    used = as_json("retention", "orders")

    def goes(*words: str) -> int:
        return int(as_json("stream", "trim", "orders", "--dry-run", *words)["entries"])

    assert (used["finished"], goes()) == (60, 60)
    assert (goes("--max-length", "70"), goes("--max-length", "70", "--max-age", "1h")) == (30, 30)
    assert goes("--max-age", "1h") == 0
    assert goes("--max-bytes", str(used["memory_bytes"] * 3 // 4)) == 25
    assert goes("--archived-only") == 0
    raw.xgroup_create("orders", "penstock-archive", ids[39])
    assert goes("--archived-only") == 40
    assert goes("--archived-only", "--max-length", "90") == 10
    assert raw.xlen("orders") == 100


def test_pending_messages_change_hands_by_the_beginning_of_their_ids(
    penstock: Command, as_rows: Rows, as_json: AsJson, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.xgroup_create("orders", "shop", mkstream=True)
    for number in (1, 2, 33):
        raw.xadd("orders", {"data": "{}"}, id=f"{number}-1")
    raw.xreadgroup("shop", "dead-worker", {"orders": ">"})
    assert [row["id"] for row in as_rows("pending", "ls", "orders", "shop")] == ["1-1", "2-1", "33-1"]
    assert as_rows("pending", "ls", "orders", "shop", "--idle", "1h") == []
    assert as_json("pending", "claim", "orders", "shop", "heir", "3", "--yes")["ids"] == ["33-1"]
    assert [row["id"] for row in as_rows("pending", "ls", "orders", "shop", "--consumer", "heir")] == ["33-1"]
    counted: list[Any] = []
    page = PendingMessages.page

    def noted(self: PendingMessages, *args: Any, **options: Any) -> Any:
        counted.extend((found := page(self, *args, **options)).items)
        return found

    monkeypatch.setattr(PendingMessages, "page", noted)
    assert as_json("pending", "retry", "orders", "shop", "1-1", "--dry-run")["ids"] == ["1-1"]
    assert [each.id for each in counted] == ["1-1"], "the others are not read"
    assert as_json("pending", "retry", "orders", "shop", "1-1", "--yes")["ids"] == ["1-1"]
    penstock("pending", "claim", "orders", "shop", "heir", "7", "--yes", code=3)


@pytest.mark.parametrize("words", [("dlq", "ls"), ("queue", "dlq", "list")])
def test_dead_letters_of_all_kinds_are_in_one_list(
    as_rows: Rows, client: StreamClient, raw: redis.Redis, dead_letter: Callable[..., Task], words: tuple[str, ...]
) -> None:
    give_up(client, "orders", 2)
    queue = RedisMessageQueue("mails", client=client, max_delivery_count=1)
    queue.publish({"to": "ada"})
    with pytest.raises(ValueError, match="bounced"), queue.process_message():
        raise ValueError("bounced")
    task = dead_letter(n=1)
    raw.xadd("{svc-input}_dlq", {"lbs-input": '{"DataStreamName": "session"}', "dlq_reason": "fatal"})
    found = as_rows(*words)
    assert {row["stream"] for row in found} == {"orders_dlq", "mails::dlq", "penstock.dead", "{svc-input}_dlq"}
    assert [row["stream"] for row in as_rows(*words, "--queue", "svc")] == ["{svc-input}_dlq"]
    assert [row["payload"] for row in as_rows(*words, "--queue", "orders")] == [{"n": 0}, {"n": 1}]
    assert [row["task_id"] for row in as_rows(*words, "--queue", "penstock")] == [task.id]
    causes = as_rows(*words, "--causes")
    assert [row["count"] for row in causes] == [2, 1, 1, 1]
    assert len(as_rows(*words, "--cause", causes[0]["fingerprint"])) == 2


def test_dead_letters_of_a_stream_are_shown_edited_and_redriven(
    penstock: Command, as_rows: Rows, as_json: AsJson, client: StreamClient, raw: redis.Redis
) -> None:
    give_up(client, "orders", 3)
    first, second, _ = [row["id"] for row in as_rows("dlq", "ls")]
    shown = penstock("dlq", "show", first).stdout
    assert "ValueError" in shown
    assert "order 0 has no address" in shown
    assert as_json("dlq", "edit", first, "--payload", '{"n": 7}', "--yes")["id"] == first
    assert json.loads(raw.xrevrange("orders", count=1)[0][1][b"data"]) == {"n": 7}
    assert as_json("dlq", "redrive", second)["redriven"] == 1
    assert as_json("dlq", "redrive", "--queue", "orders", "--dry-run")["redriven"] == 1
    assert as_json("dlq", "purge", "--queue", "orders", "--dry-run")["purged"] == 1
    assert as_json("dlq", "purge", "--queue", "orders", "--yes")["purged"] == 1
    assert raw.xlen("orders_dlq") == 0


def test_an_editor_changes_the_payload(
    penstock: Command, as_rows: Rows, client: StreamClient, raw: redis.Redis, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    give_up(client, "orders", 1)
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import sys, pathlib\np = pathlib.Path(sys.argv[1])\np.write_text(p.read_text().replace('0', '9'))\n"
    )
    monkeypatch.setenv("VISUAL", f"{sys.executable} {editor}")
    [row] = as_rows("dlq", "ls")
    penstock("dlq", "edit", row["id"], "--yes")
    assert json.loads(raw.xrevrange("orders", count=1)[0][1][b"data"]) == {"n": 9}


def test_a_limit_holds_over_all_streams_of_dead_letters(as_json: AsJson, client: StreamClient) -> None:
    give_up(client, "orders", 3)
    give_up(client, "parcels", 3)
    assert as_json("dlq", "redrive", "--limit", "4", "--yes")["redriven"] == 4
    assert as_json("dlq", "purge", "--limit", "1", "--yes")["purged"] == 1


def test_queues_of_messages_and_tasks_are_listed(
    penstock: Command, as_rows: Rows, as_json: AsJson, client: StreamClient, dead_letter: Callable[..., Task]
) -> None:
    queue = RedisMessageQueue("mails", client=client)
    queue.publish({"to": "ada"})
    with queue.process_message():
        pass
    queue.publish({"to": "bob"})
    dead_letter(n=1)
    by_name = {row["name"]: row for row in as_rows("queue", "ls")}
    assert (by_name["mails"]["kind"], by_name["mails"]["waiting"]) == ("messages", 1)
    assert (by_name["penstock"]["kind"], by_name["penstock"]["dead_letters"]) == ("tasks", 1)
    assert as_json("queue", "stats", "mails")["pending"] == 1
    assert "bob" in as_json("queue", "peek", "mails")["payload"]
    assert as_json("queue", "purge", "mails", "--dry-run")["purged"] == 1
    assert as_json("queue", "purge", "mails", "--yes")["purged"] == 1
    assert "no pending messages" in penstock("queue", "peek", "mails").stderr


def test_a_queue_with_another_separator_is_inspected(
    penstock: Command, as_rows: Rows, as_json: AsJson, client: StreamClient
) -> None:
    queue = RedisMessageQueue("mails", client=client, key_separator="/", enable_completed_queue=True)
    queue.publish({"to": "ada"})
    with queue.process_message():
        pass
    client.call("mails", "XADD", "mails/dlq", "*", "data", "{}")
    words, separator = ("mails", "--state", "completed"), ("--separator", "/")
    assert [row["dead_letters"] for row in as_rows("queue", "ls", *separator) if row["name"] == "mails"] == [1]
    assert as_json("queue", "stats", "mails", *separator)["completed"] == 1
    assert "ada" in as_json("queue", "peek", *words, *separator)["payload"]
    assert as_json("queue", "purge", *words, *separator, "--yes")["purged"] == 1
    assert not as_json("queue", "stats", "mails", *separator)["completed"]


def test_only_what_was_counted_of_a_message_queue_is_purged(
    penstock: Command, as_json: AsJson, client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails = RedisMessageQueue("mails", client=client)
    mails.publish({"to": "ada"})
    monkeypatch.setattr(queue_commands, "confirm", lambda *_, **__: mails.publish({"to": "bob"}))
    assert as_json("queue", "purge", "mails")["purged"] == 1
    assert "bob" in as_json("queue", "peek", "mails")["payload"]
    raw.xadd("orders", {"data": "{}"})
    raw.xgroup_create("orders", "shop", "0")
    for verb in ("purge", "stats", "peek"):
        assert "'orders' is not a message queue" in penstock("queue", verb, "orders", code=2).stderr
    assert raw.xlen("orders") == 1


def test_no_verdict_leaves_a_stream_out(penstock: Command, as_json: AsJson, as_rows: Rows, raw: redis.Redis) -> None:
    pipeline = raw.pipeline(transaction=False)
    for n in range(2_005):
        pipeline.xadd(f"stream-{n:04}", {"data": "{}"}, id="1-1")
    pipeline.xgroup_create("stream-2004", "shop", "0")
    pipeline.execute()
    found = as_json("health", "--max-lag", "0", code=3)
    assert (found["streams"], found["issues"]) == (2_005, ["stream-2004/shop: lag 1 exceeds --max-lag 0"])
    assert [row["stream"] for row in as_rows("group", "ls")] == ["stream-2004"]
    assert [row["count"] for row in as_rows("group", "lag")] == [1]
    assert "stream stream-2004, group shop" in penstock("doctor", code=3).stdout


def test_a_lag_that_is_a_bound_is_written_as_an_upper_one_everywhere() -> None:
    bound = Lag(1_300, 5.0, is_exact=False)
    assert (lag_text(bound), lag_text(Lag(1_300, 5.0))) == ("up to 1,300", "1,300")
    assert total_lag_text(Totals(lag=1_300, is_lag_exact=False)) == "up to 1,300"
    assert "≤ 1,300" in str(environment().get_template("macros.html").module.lag(bound))  # type: ignore[attr-defined]


def test_health_says_how_many_groups_it_did_not_look_at(penstock: Command, as_json: AsJson, raw: redis.Redis) -> None:
    for n in range(70):
        raw.xgroup_create("orders", f"group-{n}", "0", mkstream=True)
    found = as_json("health")
    assert (found["is_healthy"], found["issues"], found["groups_not_examined"]) == (True, [], 6)
    assert penstock("health").stderr == "6 of 70 groups of orders were not examined\n"
    raw.xadd("orders", {"data": "{}"})
    assert len(as_json("health", "--max-lag", "0", code=3)["issues"]) == 64


def test_all_groups_of_a_stream_are_listed(penstock: Command, as_rows: Rows, raw: redis.Redis) -> None:
    for n in range(140):
        raw.xgroup_create("orders", f"group-{n}", "0", mkstream=True)
    said = "orders has 140 groups, of which 64 are listed; list all with `penstock group ls orders`\n"
    for words in (("group", "ls"), ("group", "lag", "orders"), ("group", "lag", "--over", "1ms")):
        assert penstock(*words).stderr == said
        assert len(as_rows(*words)) == 64
    assert penstock("stream", "info", "orders").stderr == penstock("stream", "info", "orders", "--json").stderr == said
    assert penstock("group", "ls", "orders").stderr == ""
    assert {row["name"] for row in as_rows("group", "ls", "orders")} == {f"group-{n}" for n in range(140)}
    assert penstock("group", "lag", "orders", "group-69").stderr == ""


def test_a_list_says_that_there_is_more_than_its_limit(penstock: Command, raw: redis.Redis) -> None:
    for n in range(3):
        raw.xadd("orders", {"data": "{}"})
        raw.xadd(f"stream-{n}", {"data": "{}"})
    raw.xgroup_create("orders", "shop", "0")
    raw.xreadgroup("shop", "ada", {"orders": ">"})
    for words in (("stream", "ls", "stream-*"), ("pending", "ls", "orders", "shop")):
        assert penstock(*words, "--limit", "2").stderr == "more than 2 found: raise --limit to see all\n"
        assert penstock(*words, "--limit", "3").stderr == ""
    penstock("pending", "retry", "orders", "shop", "--yes")
    assert penstock("pending", "retry", "orders", "shop", "--yes").stderr == ""


def test_health_sees_the_dead_letters_of_the_stream_that_it_is_asked_about(
    penstock: Command, as_json: AsJson, client: StreamClient
) -> None:
    give_up(client, "orders", 2)
    StreamProducer(client, "invoices").push(1)
    found = as_json("health", "--stream", "orders", "--max-dead-letters", "1", code=3)
    assert (found["dead_letters"], found["issues"]) == (2, ["2 dead letters exceed --max-dead-letters 1"])
    assert as_json("health", "--stream", "orders", "--max-dead-letters", "2")["is_healthy"] is True
    assert as_json("health", "--stream", "invoices", "--max-dead-letters", "0")["dead_letters"] == 0
    assert "2 dead letters" in penstock("health", "--stream", "orders").stdout
    assert as_json("top", "--stream", "orders", "--samples", "1")["totals"]["dead_letters"] == 2


def test_health_has_a_code_for_probes(as_json: AsJson, client: StreamClient) -> None:
    producer = StreamProducer(client, "orders", "shop")
    producer.ensure_group()
    producer.push_many([{"n": n} for n in range(5)])
    assert as_json("health")["is_healthy"] is True
    found = as_json("health", "--max-lag", "4", code=3)
    assert (found["is_healthy"], found["lag"]) == (False, 5)
    assert "orders/shop: lag 5 exceeds --max-lag 4" in found["issues"]
    assert as_json("health", "--max-lag", "4", "--stream", "others*")["is_healthy"] is True


def test_top_prints_samples_with_rates(penstock: Command, as_rows: Rows, client: StreamClient) -> None:
    StreamProducer(client, "orders", "shop").push({"n": 1})
    *_, last = as_rows("top", "--every", "20ms", "--samples", "2")
    assert last["streams"]["orders"]["length"] == 1
    assert last["totals"]["streams"] == 1
    assert "orders" in penstock("top", "--every", "20ms").stdout


@pytest.mark.parametrize("words", [("--json",), ()])
def test_top_fails_if_no_sample_could_be_taken(
    penstock: Command, client: StreamClient, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    StreamProducer(client, "orders").push({"n": 1})

    def fail(*_: object, **__: object) -> None:
        raise PermissionDenied("no permission to look")

    monkeypatch.setattr(Inspector, "overview", fail)
    assert "no permission to look" in penstock("top", "--every", "20ms", "--samples", "2", *words, code=1).stderr


def test_top_leaves_out_a_stream_that_is_gone_in_the_middle_of_a_sample(client: StreamClient) -> None:
    StreamProducer(client, "orders", "shop").push({"n": 1})
    sampler = Sampler(Inspector(client))
    sampler.sample()
    sampler._points.clear()  # what the next sample does before it has a new overview
    assert _table(sampler, None).row_count == 0


def test_top_on_a_terminal_draws_a_screen_until_ctrl_c(redis_url: str, client: StreamClient) -> None:
    StreamProducer(client, "orders", "shop").push({"n": 1})
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "24"}
    # The terminal is that of the new session: Ctrl-C on it is a signal.
    script = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\nfrom penstock.cli import main; main()"
    words = [sys.executable, "-c", script, "top", "--every", "50ms", "--url", redis_url]
    with running(words, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as top:
        os.close(theirs)
        shown = b""
        while shown.count(b"orders") < 2:  # drawn, and drawn again
            shown += os.read(ours, 65_536)
        os.write(ours, b"\x03")  # as a key that is pressed
        try:
            while chunk := os.read(ours, 65_536):
                shown += chunk
        except OSError:
            pass  # Linux reports the end of a terminal as an error
    os.close(ours)
    assert top.returncode == 130
    assert b"\x1b[?1049h" in shown
    assert b"\x1b[?1049l" in shown, "the screen before it is back"
    assert b"penstock top" in shown
    assert b"Traceback" not in shown


def test_the_lags_of_all_groups_have_rates_for_an_autoscaler(
    penstock: Command, as_rows: Rows, client: StreamClient
) -> None:
    for stream in ("orders", "parcels"):
        producer = StreamProducer(client, stream, "shop")
        producer.ensure_group()
        producer.push_many([{"n": n} for n in range(5)])
    once = as_rows("group", "lag")
    assert [(row["stream"], row["group"], row["count"], row["is_exact"]) for row in once] == [
        ("orders", "shop", 5, True), ("parcels", "shop", 5, True),
    ]  # fmt: skip
    assert once[0]["in_per_s"] is None
    twice = as_rows("group", "lag", "--over", "20ms")
    assert [(row["in_per_s"], row["out_per_s"], row["drain_s"]) for row in twice] == [(0.0, 0.0, None)] * 2


def test_the_groups_of_a_stream_are_sampled_together(
    as_rows: Rows, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept, sleep = list[float](), time.sleep  # it does sleep: a rate is one over some time
    monkeypatch.setattr("penstock.cli.group.time.sleep", lambda s: (slept.append(s), sleep(s)))
    raw.xadd("orders[1]", {"data": "{}"})
    for group in ("billing", "mailing", "shipping"):
        raw.xgroup_create("orders[1]", group, "0")
    found = as_rows("group", "lag", "orders[1]", "--over", "20ms")
    assert [(row["group"], row["count"], row["in_per_s"]) for row in found] == [
        ("billing", 1, 0.0), ("mailing", 1, 0.0), ("shipping", 1, 0.0),
    ]  # fmt: skip
    assert slept == [0.02]


def test_bench_measures_and_leaves_nothing_behind(penstock: Command, as_rows: Rows, raw: redis.Redis) -> None:
    raw.xadd("orders", {"data": "{}"})
    rows = {row["what"].split()[0].strip(","): row for row in as_rows("bench", "--messages", "500", "--for", "2s")}
    assert rows.keys() == {"round", "publish", "handle", "single"}
    assert rows["handle"]["count"] <= rows["publish"]["count"] <= 500
    for row in rows.values():
        assert row["per_s"] > 0
        assert row["p50_ms"] is None or 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert raw.keys() == [b"orders"]
    assert "per second" in penstock("bench", "--messages", "10", "--for", "20ms").stdout


def test_a_schedule_is_paused_resumed_and_run(
    penstock: Command, as_rows: Rows, as_json: AsJson, queue: RedisTaskQueue
) -> None:
    queue.enqueue(Task(kind="report", id="cron.nightly.1", payload={"deep": True}), delay=3_600)
    assert penstock("schedule", "pause", "nightly").stdout == "schedule nightly is paused\n"
    assert as_json("schedule", "pause", "nightly") == {"schedule": "nightly", "is_paused": True, "is_changed": False}
    [row] = as_rows("schedule", "ls")
    assert (row["name"], row["kind"], row["is_paused"]) == ("nightly", "report", True)
    assert "yes" in penstock("schedule", "ls").stdout
    new = as_json("schedule", "run", "nightly")["id"]
    assert as_json("task", "status", new)["payload"] == {"deep": True}
    assert penstock("schedule", "resume", "nightly").stdout == "schedule nightly is resumed\n"
    assert penstock("schedule", "resume", "nightly").stdout == "schedule nightly was not paused\n"
    assert as_rows("schedule", "ls")[0]["is_paused"] is False


def test_consume_runs_a_function_on_a_stream_in_supervised_processes(
    redis_url: str, raw: redis.Redis, tmp_path: Path
) -> None:
    (tmp_path / "shipping.py").write_text(
        "import os\n"
        "def ship(message):\n"
        "    with open('shipped', 'a') as file: file.write(f'{os.getpid()} {message.data[\"n\"]}\\n')\n"
    )
    for number in range(20):
        raw.xadd("orders", {"data": json.dumps({"n": number})})
    words = ["consume", "shipping:ship", "--stream", "orders", "--group", "shop", "--url", redis_url]
    command = [sys.executable, "-m", "penstock", *words]
    subprocess.run([*command, "--burst"], cwd=tmp_path, check=True, timeout=60)
    assert sorted(int(line.split()[1]) for line in (tmp_path / "shipped").read_text().splitlines()) == list(range(20))
    with running([*command, "-p", "2"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert all("consumer " in supervisor.stdout.readline() for _ in range(2))
        raw.xadd("orders", {"data": json.dumps({"n": 99})})
        eventually(lambda: "99" in (tmp_path / "shipped").read_text(), "it is shipped", 60)
        supervisor.send_signal(signal.SIGTERM)
        said = supervisor.stdout.read().splitlines()
    assert supervisor.returncode == 0
    assert sorted(line.partition(":")[0] for line in said) == ["ended", "ended"]


def test_an_entry_is_found_by_the_beginning_of_its_id(penstock: Command, as_json: AsJson, raw: redis.Redis) -> None:
    for entry_id in ("5-1", "51-0", "512-1", "512-12", "600-0"):
        raw.xadd("orders", {"data": "{}"}, id=entry_id)
    for given, meant in {"6": "600-0", "51-": "51-0", "512-1": "512-1", "512-12": "512-12", "60": "600-0"}.items():
        assert as_json("stream", "peek", "orders", given)["id"] == meant
    assert "matches 3 ids" in penstock("stream", "peek", "orders", "51", code=2).stderr
    assert "no entry of stream 'orders' matches '7'" in penstock("stream", "peek", "orders", "7", code=3).stderr
    penstock("stream", "peek", "orders", "noon", code=2)


def test_consumers_serve_metrics_like_workers(redis_url: str, raw: redis.Redis) -> None:
    raw.xadd("orders", {"data": '{"n": 1}'})
    words = ["consume", "tests.cli.jobs:ship", "--stream", "orders", "--group", "shop", "--url", redis_url]
    command = [sys.executable, "-m", "penstock", *words, "--metrics-port", "0"]
    with running(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().rpartition(" ")[2].strip()
        wanted = 'penstock_consumer_messages_total{event="acked",group="shop",stream="orders"} 1.0'

        def is_served() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
                return wanted in reply.read().decode()

        eventually(is_served, "it is counted", 60)
        process.send_signal(signal.SIGTERM)
        assert "1 done" in process.stdout.read()
    assert process.returncode == 0


def test_a_consumer_that_cannot_log_in_says_so_in_one_line(redis_url: str) -> None:
    url = redis_url.replace("://", "://nobody:wrong@")
    words = ["consume", "tests.cli.jobs:ship", "--stream", "orders", "--group", "shop", "--url", url]
    shown = run(*words)
    assert shown.exit_code == 1
    said = shown.stderr
    assert said.startswith("penstock: Redis at ")
    assert "rejected the credentials" in said
    assert said.count("\n") == 1


def test_ctrl_c_ends_with_130(redis_url: str, raw: redis.Redis) -> None:
    raw.xadd("orders", {"data": "{}"})
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom penstock.cli import main; main()"
    )
    words = [sys.executable, "-c", script, "stream", "tail", "orders", "--url", redis_url]
    with running(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("{}\n")
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
