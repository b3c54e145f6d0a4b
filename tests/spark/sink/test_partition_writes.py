"""One partition, written as a task writes it: what faults, repetitions and full streams do to it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis

from penstock.errors import ConnectionFailed, StreamFull, WrongType
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.sink.identity import QueryFenced, ReplayDiffers, WriteLost
from penstock.sync import ConsumerConfig, StreamClient, StreamConsumer
from penstock.testing import Cluster, FaultProxy
from tests.helpers.threads import join, start
from tests.redis.slots import SlotMove, tags_on_all_nodes, tell
from tests.spark.sink.rows import batch, failing_after, identity, options, payloads, write

ONE = batch([1])
BOTH = pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
ROWS = [str(n) for n in range(2_345)]


def batches(rows: list[str], size: int = 700) -> list[pa.RecordBatch]:
    return [batch(rows[start : start + size]) for start in range(0, len(rows), size)]


def address(cluster: Cluster) -> str:
    return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)


@BOTH
def test_all_rows_arrive_in_order(redis_url: str, raw: redis.Redis, semantics: str) -> None:
    done = write(options(redis_url, ONE, stream="s", semantics=semantics), batches(ROWS))
    assert payloads(raw) == ROWS
    assert (done.added, done.repeated) == ({"s": 2_345}, {})


@pytest.mark.usefixtures("default_server")
def test_a_partition_that_is_written_again_adds_nothing(redis_url: str, raw: redis.Redis) -> None:
    chosen = options(redis_url, ONE, stream="s")
    with pytest.raises(OSError, match="executor lost"):
        write(chosen, failing_after(batches(ROWS)[:3], OSError("executor lost")))
    written = raw.xlen("s")
    assert 0 < written < 2_345
    done = write(chosen, batches(ROWS))
    assert payloads(raw) == ROWS
    assert (done.added["s"], done.repeated["s"]) == (2_345 - written, written)
    assert write(chosen, batches(ROWS)).added == {}


@pytest.mark.usefixtures("default_server")
def test_the_chunks_of_a_repetition_may_be_of_another_size(redis_url: str, raw: redis.Redis) -> None:
    write(options(redis_url, ONE, stream="s", batchSize=200), batches(ROWS[:1_000]))
    write(options(redis_url, ONE, stream="s", batchSize=333), batches(ROWS, 400))
    assert payloads(raw) == ROWS


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("size", [200, 333])
def test_a_repetition_with_other_rows_is_refused(redis_url: str, raw: redis.Redis, size: int) -> None:
    write(options(redis_url, ONE, stream="s", batchSize=200), batches(ROWS[:1_000]))
    shuffled = [*ROWS[1:1_000], ROWS[0], *ROWS[1_000:]]
    with pytest.raises(ReplayDiffers, match=r"partition 0 of batch 0 .* stream 's'"):
        write(options(redis_url, ONE, stream="s", batchSize=size), batches(shuffled))
    assert payloads(raw) == ROWS[:1_000]


@pytest.mark.usefixtures("default_server")
def test_two_attempts_at_the_same_time_write_each_row_once(redis_url: str, raw: redis.Redis) -> None:
    rows = [str(n) for n in range(20_000)]
    done: list[Any] = []

    def attempt(number: int) -> None:
        # Each has connections of its own, as each has a process of its own in Spark.
        chosen = options(redis_url, ONE, stream="s", batchSize=37 + number, redis_client_name=f"attempt-{number}")
        done.append(write(chosen, batches(rows)))

    threads = [threading.Thread(target=attempt, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert payloads(raw) == rows
    assert sum(written.added["s"] for written in done) == 20_000
    assert sum(written.repeated["s"] for written in done) == 40_000


@pytest.mark.usefixtures("default_server")
def test_an_older_run_of_the_query_is_refused(redis_url: str, raw: redis.Redis) -> None:
    chosen = options(redis_url, ONE, stream="s")
    write(chosen, [batch([1])], identity(0, run="old"))
    write(chosen, [batch([2])], identity(1, run="new"))
    with pytest.raises(QueryFenced, match="run old of query 9f7c"):
        write(chosen, [batch([3])], identity(2, run="old"))
    assert payloads(raw) == ["1", "2"]


@pytest.mark.usefixtures("default_server")
def test_a_run_that_is_overtaken_in_the_middle_of_its_rows_is_refused(redis_url: str, raw: redis.Redis) -> None:
    chosen = options(redis_url, ONE, stream="s", batchSize=1, inFlight=1)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield batch([1, 2])
        write(chosen, [batch([1, 2, 3])], identity(run="new"))
        yield batch([3, 4])

    with pytest.raises(QueryFenced):
        write(chosen, overtaken(), identity(run="old"))
    assert payloads(raw) == ["1", "2", "3"]


# --- where rows go --------------------------------------------------------------------------------


@BOTH
@pytest.mark.usefixtures("default_server")
def test_rows_go_to_the_stream_that_they_name(redis_url: str, raw: redis.Redis, semantics: str) -> None:
    names = [f"s{n % 300}" for n in range(3_000)]
    made = [batch(range(k, k + 1_000), stream=pa.array(names[k : k + 1_000])) for k in (0, 1_000, 2_000)]
    chosen = options(redis_url, made[0], semantics=semantics, batchSize=4)
    done = write(chosen, made)
    assert done.added == dict.fromkeys(names, 10)
    for n in range(300):
        assert payloads(raw, f"s{n}") == [str(row) for row in range(n, 3_000, 300)]
    if semantics == "exactly-once":
        assert write(chosen, made).added == {}


@pytest.mark.usefixtures("default_server")
def test_the_option_wins_over_the_column(redis_url: str, raw: redis.Redis) -> None:
    made = batch([1], stream=pa.array(["elsewhere"]))
    write(options(redis_url, made, stream="s"), [made])
    assert payloads(raw) == ["1"]


@BOTH
def test_rows_for_streams_on_all_nodes_of_a_cluster(cluster: Cluster, semantics: str) -> None:
    names = [f"{{{tag}}}_{n}" for tag in tags_on_all_nodes(cluster) for n in range(3)]
    made = batch(range(900), stream=pa.array([names[n % 9] for n in range(900)]))
    write(options(address(cluster), made, semantics=semantics, batchSize=10), [made])
    for name in names:
        assert tell(SlotMove(cluster, name).source, "XLEN", name) == 100


@pytest.mark.usefixtures("default_server")
@pytest.mark.acl(prefix=("shop",))
def test_the_prefix_of_the_client_is_kept(redis_url: str, raw: redis.Redis) -> None:
    write(options(redis_url, ONE, stream="s", redis_prefix="shop"), [ONE])
    assert payloads(raw, "shop_s") == ["1"]


@BOTH
@pytest.mark.usefixtures("default_server")
@pytest.mark.admin("it consumes as well")
def test_a_consumer_reads_what_was_written(redis_url: str, semantics: str) -> None:
    made = pa.record_batch({"order": [1, 2], "key": ["k1", None], "message_id": ["m1", None]})
    write(options(redis_url, made, stream="s", semantics=semantics), [made])
    seen: list[Any] = []

    def handle(message: Any) -> None:
        seen.append((message.data, message.key, message.message_id))
        if len(seen) == 2:
            consumer.stop()

    with StreamClient.from_url(redis_url) as client:
        config = ConsumerConfig(group="g", handle_signals=False, block_ms=100)
        consumer = StreamConsumer(client, "s", config, message_handler=handle)
        consumer.run()
    assert seen == [({"order": 1}, "k1", "m1"), ({"order": 2}, None, None)]


# --- full streams ---------------------------------------------------------------------------------


@BOTH
def test_a_full_stream_refuses_and_takes_the_rest_later(redis_url: str, raw: redis.Redis, semantics: str) -> None:
    chosen = options(redis_url, ONE, stream="s", semantics=semantics, maxLen=1_234)
    with pytest.raises(StreamFull, match=r"'s' has reached maxLen=1234, .* rows 1,235 and later"):
        write(chosen, batches(ROWS))
    assert payloads(raw) == ROWS[:1_234]
    if semantics == "exactly-once":
        write(options(redis_url, ONE, stream="s", maxLen=5_000), batches(ROWS))
        assert payloads(raw) == ROWS


@pytest.mark.usefixtures("default_server")
def test_a_blocked_write_goes_on_as_consumers_make_room(redis_url: str, raw: redis.Redis) -> None:
    raw.xgroup_create("s", "g", "0", mkstream=True)
    seen: list[str] = []

    def consume() -> None:
        while len(seen) < len(ROWS):
            for _, entries in raw.xreadgroup("g", "c", {"s": ">"}, count=100, block=1_000):
                seen.extend(fields[b"data"].decode() for _, fields in entries)
                raw.xack("s", "g", *(entry_id for entry_id, _ in entries))

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    write(options(redis_url, ONE, stream="s", maxLen=300, onFull="block"), batches(ROWS))
    consumer.join(60)
    assert seen == ROWS


@pytest.mark.usefixtures("default_server")
def test_a_blocked_write_gives_up_in_time(redis_url: str) -> None:
    chosen = options(redis_url, ONE, stream="s", maxLen=300, onFull="block", blockTimeout="200ms")
    with pytest.raises(StreamFull, match=r"for 0\.2 s, and"):
        write(chosen, batches(ROWS))


@pytest.mark.usefixtures("default_server")
def test_the_oldest_make_room_if_so_chosen(redis_url: str, raw: redis.Redis) -> None:
    done = write(options(redis_url, ONE, stream="s", maxLen=300, onFull="drop_oldest"), batches(ROWS))
    assert payloads(raw) == ROWS[-300:]
    assert done.dropped == {"s": 2_045}


# --- faults ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("ending", ["close", "reset"])
def test_lost_replies(fault_proxy: FaultProxy, raw: redis.Redis, semantics: str, ending: Any) -> None:
    chosen = options(fault_proxy.url, ONE, stream="s", semantics=semantics, batchSize=100, inFlight=3)
    command = "EVALSHA" if semantics == "exactly-once" else "XADD"
    for nth in (3, 5, 9):
        fault_proxy.drop_reply(command, nth, ending=ending)
    write(chosen, batches(ROWS))
    check(raw, semantics)


def check(raw: redis.Redis, semantics: str, stream: str = "s") -> None:
    found = payloads(raw, stream)
    if semantics == "exactly-once":
        assert found == ROWS
    else:
        assert list(dict.fromkeys(found)) == ROWS, "nothing is lost, and what comes twice comes in order"
        assert max(Counter(found).values()) <= 4


@BOTH
@pytest.mark.usefixtures("default_server")
def test_a_server_that_forgets_its_scripts(fault_proxy: FaultProxy, raw: redis.Redis, semantics: str) -> None:
    def flushing() -> Iterator[pa.RecordBatch]:
        for made in batches(ROWS):
            raw.script_flush()
            yield made

    write(options(fault_proxy.url, ONE, stream="s", semantics=semantics, batchSize=100), flushing())
    assert payloads(raw) == ROWS


@BOTH
def test_a_server_that_is_restarted(start_server: Callable[..., EmbeddedServer], semantics: str) -> None:
    server = start_server(port=0, persistent=True)
    chosen = options(server.url, ONE, stream="s", semantics=semantics, batchSize=100)

    def restarting() -> Iterator[pa.RecordBatch]:
        for number, made in enumerate(batches(ROWS)):
            if number == 2:
                restart = start(server.restart)
            yield made
        join(restart)

    write(chosen, restarting())
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as raw:
        check(raw, semantics)


@BOTH
@pytest.mark.usefixtures("default_server")
def test_a_server_that_pauses(redis_url: str, raw: redis.Redis, semantics: str) -> None:
    chosen = options(redis_url, ONE, stream="s", semantics=semantics, batchSize=100, redis_socket_timeout=0.3)

    def pausing() -> Iterator[pa.RecordBatch]:
        for number, made in enumerate(batches(ROWS)):
            if number == 1:
                raw.execute_command("CLIENT", "PAUSE", 1_500)
            yield made

    write(chosen, pausing())
    found = payloads(raw)
    assert set(found) == set(ROWS)
    if semantics == "exactly-once":
        assert found == ROWS


@BOTH
def test_a_slot_that_moves(cluster: Cluster, semantics: str) -> None:
    stream = "{moving}_s"
    chosen = options(address(cluster), ONE, stream=stream, semantics=semantics, batchSize=20)
    is_over = threading.Event()

    def moving() -> None:
        while not is_over.is_set():
            move = SlotMove(cluster, stream).begin()
            move.move(stream)  # the stream first, the hash beside it later: nobody can write in between
            time.sleep(0.05)  # the length of the fault: who waits meanwhile does not say so
            move.finish()
            time.sleep(0.2)  # the pause between two moves, in which rows are written

    mover = threading.Thread(target=moving, daemon=True)

    def slowly() -> Iterator[pa.RecordBatch]:
        for number, made in enumerate(batches(ROWS, 100)):
            if number == 3:
                mover.start()
            time.sleep(0.01)  # the pace of the rows, so that the moves fall between them
            yield made

    try:
        write(chosen, slowly())
    finally:
        is_over.set()
        mover.join(60)
    reply = tell(SlotMove(cluster, stream).source, "XRANGE", stream, "-", "+")
    found = [fields[1].decode() for _, fields in reply]
    assert set(found) == set(ROWS)
    if semantics == "exactly-once":
        assert found == ROWS


@pytest.mark.usefixtures("default_server")
def test_a_server_that_lost_what_it_had_confirmed(redis_url: str, raw: redis.Redis) -> None:
    chosen = options(redis_url, ONE, stream="s", batchSize=100)

    def losing() -> Iterator[pa.RecordBatch]:
        yield from batches(ROWS)[:2]
        raw.flushall()
        yield from batches(ROWS)[2:]

    with pytest.raises(WriteLost, match="written again from its start"):
        write(chosen, losing())
    write(chosen, batches(ROWS))
    assert payloads(raw) == ROWS


@BOTH
@pytest.mark.usefixtures("default_server")
def test_what_does_not_pass_by_itself_fails_at_once(redis_url: str, raw: redis.Redis, semantics: str) -> None:
    raw.set("s", "a text")
    patient = options(redis_url, ONE, stream="s", semantics=semantics, retryTimeout="1h")
    with pytest.raises(WrongType):
        join(start(write, patient, batches(ROWS)))
    raw.delete("s")
    write(options(redis_url, ONE, stream="s", semantics=semantics), batches(ROWS))
    assert payloads(raw) == ROWS, "the connection is in step for the next task"


@BOTH
@pytest.mark.usefixtures("default_server")
def test_patience_has_an_end(fault_proxy: FaultProxy, semantics: str) -> None:
    chosen = options(fault_proxy.url, ONE, stream="s", semantics=semantics, retryTimeout="300ms")
    fault_proxy.refuse()
    fault_proxy.reset_all()
    with pytest.raises(
        ConnectionFailed, match=r"failed for 0.3 s, in \d+ attempts .option retryTimeout.: cannot connect"
    ):
        write(chosen, batches(ROWS))
