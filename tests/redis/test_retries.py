"""What StreamClient sends again after a failure: reads and idempotent commands yes, what may happen once never."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.errors import (
    CommandTimeout,
    ConnectionFailed,
    ConnectionLost,
    NotReplicating,
    ServerBusy,
    WrongType,
)
from penstock.redis import client as client_module
from penstock.redis.embedded import EmbeddedServer, free_port
from penstock.redis.probe import ask
from penstock.redis.retry import Repeat
from penstock.redis.scripts import script
from penstock.sync.redis import client as sync_client_module
from penstock.testing import FaultProxy
from tests.helpers.missing import usual_server
from tests.helpers.threads import eventually
from tests.redis.halves import Half

pytestmark = pytest.mark.usefixtures("default_server")


@pytest.fixture
def client(half: Half, fault_proxy: FaultProxy) -> Any:
    client = half.client(fault_proxy.url)
    half.do(client.ping)
    return client


# --- the outcome is unknown -------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [Repeat.READ, Repeat.IDEMPOTENT])
@pytest.mark.parametrize("ending", ["close", "reset"])
def test_what_may_be_repeated_is_sent_again_after_a_lost_reply(
    half: Half, client: Any, fault_proxy: FaultProxy, repeat: Repeat, ending: Any
) -> None:
    fault_proxy.drop_reply("SET", ending=ending)
    assert half.do(client.call, "k", "SET", "k", "v", repeat=repeat) == b"OK"
    assert fault_proxy.count("SET") == 2


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_what_may_happen_once_is_never_sent_again_after_a_lost_reply(
    half: Half, client: Any, fault_proxy: FaultProxy, raw: redis.Redis, ending: Any
) -> None:
    fault_proxy.drop_reply("INCR", ending=ending)
    with pytest.raises(ConnectionLost):
        half.do(client.call, "n", "INCR", "n", repeat=Repeat.ONCE)
    assert fault_proxy.count("INCR") == 1
    assert raw.get("n") == b"1"
    assert half.do(client.call, "n", "INCR", "n", repeat=Repeat.ONCE) == 2, "the client goes on with a new connection"


def test_a_timeout_is_a_lost_reply(half: Half, fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    client = half.client(fault_proxy.url, socket_timeout=2)
    fault_proxy.drop_reply("GET", ending="black_hole")
    assert half.do(client.call, "k", "GET", "k") is None
    assert fault_proxy.count("GET") == 2
    fault_proxy.drop_reply("INCR", ending="black_hole")
    with pytest.raises(CommandTimeout):
        half.do(client.call, "n", "INCR", "n", repeat=Repeat.ONCE)
    assert fault_proxy.count("INCR") == 1


def test_nothing_is_sent_more_than_three_times(half: Half, client: Any, fault_proxy: FaultProxy) -> None:
    for _ in range(4):
        fault_proxy.drop_reply("GET")
    with pytest.raises(ConnectionLost):
        half.do(client.call, "k", "GET", "k")
    assert fault_proxy.count("GET") == 3


@pytest.mark.parametrize(("repeat", "sent"), [(Repeat.READ, 2), (Repeat.IDEMPOTENT, 2), (Repeat.ONCE, 1)])
def test_a_script_follows_the_rule_of_its_class(
    half: Half, client: Any, fault_proxy: FaultProxy, raw: redis.Redis, repeat: Repeat, sent: int
) -> None:
    raw.xadd("s", {"data": "x"})
    raw.script_load(script("streams/count_range").source)
    fault_proxy.drop_reply("EVALSHA")
    call = half.start(client.run, "streams/count_range", ["s"], ["-", "+", 10], repeat)
    if repeat is Repeat.ONCE:
        with pytest.raises(ConnectionLost):
            call.result(30)
    else:
        assert call.result(30)[0] == 1
    assert fault_proxy.count("EVALSHA") == sent


# --- not executed for sure --------------------------------------------------------------------------


def test_error_replies_that_stay_are_raised_at_once(half: Half, client: Any, fault_proxy: FaultProxy) -> None:
    half.do(client.call, "text", "SET", "text", "x", repeat=Repeat.IDEMPOTENT)
    for repeat in Repeat:
        with pytest.raises(WrongType):
            half.do(client.call, "text", "LLEN", "text", repeat=repeat)
    assert fault_proxy.count("LLEN") == 3


@pytest.mark.parametrize("repeat", list(Repeat))
def test_a_server_that_cannot_be_reached_is_reported_at_once(
    half: Half, fault_proxy: FaultProxy, repeat: Repeat
) -> None:
    client = half.client(fault_proxy.url)
    fault_proxy.refuse()
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{fault_proxy.port}"):
        half.do(client.call, "k", "GET", "k", repeat=repeat)


@pytest.mark.parametrize("repeat", list(Repeat))
def test_a_connection_that_breaks_while_it_is_made_is_made_anew(
    half: Half, fault_proxy: FaultProxy, repeat: Repeat
) -> None:
    client = half.client(fault_proxy.url)
    for _ in range(2):
        fault_proxy.drop_reply("CLIENT", containing=b"ID", ending="reset")
    assert half.do(client.call, "n", "INCR", "n", repeat=repeat) == 1
    assert fault_proxy.count("INCR") == 1
    for _ in range(3):
        fault_proxy.drop_reply("CLIENT", containing=b"ID", ending="reset")
    another = half.client(fault_proxy.url)
    with pytest.raises(ConnectionFailed):
        half.do(another.call, "n", "INCR", "n", repeat=repeat)


@pytest.mark.parametrize("repeat", list(Repeat))
def test_a_broken_connection_is_replaced_before_anything_is_sent(
    async_half: Half, fault_proxy: FaultProxy, repeat: Repeat
) -> None:
    client = async_half.client(fault_proxy.url)
    broken = async_half.do(client.connection, "n")
    fault_proxy.reset_all()
    eventually(lambda: not broken.is_open)
    assert async_half.do(client.call, "n", "INCR", "n", repeat=repeat) == 1
    assert fault_proxy.count("INCR") == 1


def test_the_script_is_sent_along_when_the_server_has_forgotten_it(
    half: Half, client: Any, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    raw.xadd("s", {"data": "x"})
    for _ in range(3):
        raw.script_flush()
        assert half.do(client.run, "streams/count_range", ["s"], ["-", "+", 10], Repeat.ONCE)[0] == 1
        assert half.do(client.run, "streams/count_range", ["s"], ["-", "+", 10], Repeat.ONCE)[0] == 1
    assert fault_proxy.count("EVAL") == 3, "once after each flush: EVAL makes the script known again"


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_producer_whose_script_was_forgotten_survives_a_lost_reply_as_well(
    half: Half, client: Any, fault_proxy: FaultProxy, raw: redis.Redis, ending: Any
) -> None:
    producer = half.api.StreamProducer(client, "s")
    half.do(producer.push, 1)
    raw.script_flush()
    fault_proxy.drop_reply("EVAL", ending=ending)
    fault_proxy.drop_reply("SCRIPT", ending=ending)
    half.do(producer.push, 2)
    assert raw.xlen("s") == 2


def test_a_server_without_enough_replicas_is_given_some_time(
    half: Half, client: Any, raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    raw.config_set("min-replicas-to-write", 1)
    call = half.start(client.call, "n", "INCR", "n", repeat=Repeat.ONCE)
    assert fault_proxy.wait_for("INCR", 2)
    raw.config_set("min-replicas-to-write", 0)
    assert call.result(30) == 1


def test_patience_with_a_server_has_an_end(
    half: Half, client: Any, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (client_module, sync_client_module):
        monkeypatch.setattr(module, "_BUSY_BUDGET_S", 0.1)
    raw.config_set("min-replicas-to-write", 1)
    with pytest.raises(NotReplicating):
        half.do(client.call, "n", "INCR", "n", repeat=Repeat.ONCE)


# --- busy servers -----------------------------------------------------------------------------------


@contextmanager
def endless_script(server: EmbeddedServer) -> Iterator[Callable[[], None]]:
    """Keeps the server busy with a script until the block ends, or what it gives is called."""
    address = server.unix_socket
    ask(address, "CONFIG", "SET", "lua-time-limit", 5)
    runner = threading.Thread(
        target=ask, args=(address, "EVAL", "while true do end", 0), kwargs={"timeout_s": 30.0}, daemon=True
    )
    runner.start()

    def is_busy() -> bool:
        return str(ask(address, "PING")).startswith("BUSY")

    def kill() -> None:
        ask(address, "SCRIPT", "KILL")
        runner.join(30)

    eventually(is_busy)
    try:
        yield kill
    finally:
        kill()


@pytest.mark.parametrize("repeat", list(Repeat))
def test_a_long_script_is_waited_for(
    half: Half, client: Any, server: EmbeddedServer, fault_proxy: FaultProxy, repeat: Repeat
) -> None:
    with endless_script(server) as kill:
        call = half.start(client.call, "n", "INCR", "n", repeat=repeat)
        assert fault_proxy.wait_for("INCR", 3), "it is sent again while the server says BUSY"
        kill()
        assert call.result(30) == 1, "refused means not executed: once, for all classes"


def test_a_script_call_is_waited_for_as_well(
    half: Half, client: Any, server: EmbeddedServer, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    raw.xadd("s", {"data": "x"})
    with endless_script(server) as kill:
        call = half.start(client.run, "streams/count_range", ["s"], ["-", "+", 10], Repeat.ONCE)
        assert fault_proxy.wait_for("EVALSHA", 3)
        kill()
        assert call.result(30)[0] == 1


@pytest.mark.parametrize("options", [{}, {"db": 1}, {"client_name": "me"}], ids=str)
def test_a_server_that_is_too_busy_for_a_login_is_waited_for(
    half: Half, server: EmbeddedServer, fault_proxy: FaultProxy, options: dict[str, Any]
) -> None:
    client = half.client(host="127.0.0.1", port=fault_proxy.port, **options)
    with endless_script(server) as kill:
        call = half.start(client.call, "n", "INCR", "n", repeat=Repeat.ONCE)
        assert fault_proxy.wait_for("CLIENT")
        with pytest.raises(TimeoutError):
            call.result(0.2)
        kill()
        assert call.result(30) == 1


@pytest.fixture(scope="module")
def data_to_load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that takes a server some seconds to load."""
    folder = tmp_path_factory.mktemp("data")
    with (
        usual_server().server(directory=folder, persistent=True) as server,
        redis.Redis(unix_socket_path=server.unix_socket) as raw,
    ):
        for db in (0, 1):
            with raw.pipeline() as pipe:
                pipe.execute_command("SELECT", db)
                for n in range(3_000):
                    pipe.set(f"k{n}", "v")
                pipe.execute()
    return folder


@pytest.mark.parametrize("db", [0, 1], ids=["", "with a database to select"])
def test_a_server_that_loads_its_data_is_waited_for(half: Half, data_to_load: Path, db: int) -> None:
    slow = {"key-load-delay": "1000"}  # microseconds; it answers clients after every 1,024 commands
    port = free_port()
    server = usual_server().server(directory=data_to_load, persistent=True, port=port, options=slow)
    starting = threading.Thread(target=server.start, daemon=True)
    starting.start()
    try:
        eventually(lambda: _is_loading(port))
        client = half.client(host="127.0.0.1", port=port, db=db)
        call = half.start(client.call, "k", "GET", "k2999")
        ask(("127.0.0.1", port), "CONFIG", "SET", "key-load-delay", 0, timeout_s=30)
        assert call.result(30) == b"v"
    finally:
        starting.join(30)
        server.stop()


def _is_loading(port: int) -> bool:
    try:
        return str(ask(("127.0.0.1", port), "PING")).startswith("LOADING")
    except OSError:
        return False


def test_loading_for_too_long_is_an_error_that_says_so(
    half: Half, client: Any, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (client_module, sync_client_module):
        monkeypatch.setattr(module, "_BUSY_BUDGET_S", 0.1)
    with endless_script(server), pytest.raises(ServerBusy, match="BUSY"):
        half.do(client.call, "k", "GET", "k")
