"""Every client that redis-py makes leads a queue to the same server, and what is no client is told at once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import trustme

from penstock import RedisGateway, RedisMessageQueue, StreamClient
from penstock.errors import AuthenticationFailed, ClusterSlotError, ConfigurationTypeError
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.from_driver import client_of
from penstock.redis.probe import ask
from penstock.testing import Cluster
from tests.helpers.aio import eventually, outcomes, start
from tests.queue.stage import NAME, payloads, take
from tests.redis.sentinels import SERVICE, SentinelGroup
from tests.redis.test_tls import Authority, TlsServer, started


async def works(client: Any, name: str = NAME, **options: Any) -> None:
    """Takes a message the whole way, with a heartbeat and a log."""
    queue = RedisMessageQueue(
        name, client=client, visibility_timeout_seconds=30, heartbeat_interval_seconds=0.05, enable_completed_queue=True,
        **options,
    )  # fmt: skip
    assert await queue.publish({"order": 7}) is True
    assert await queue.publish({"order": 7}) is False
    assert await take(queue) in {'{"order": 7}', b'{"order": 7}'}
    assert (await queue.stats()).completed == 1
    await queue.close()


# --- one server -------------------------------------------------------------------------------------


async def test_a_client_of_a_unix_socket(driver: redis.asyncio.Redis) -> None:
    await works(driver)


@pytest.mark.usefixtures("default_server")
async def test_a_client_of_a_port_a_url_a_pool_and_of_resp3(server: EmbeddedServer, raw: redis.Redis) -> None:
    pool = redis.asyncio.BlockingConnectionPool(host="127.0.0.1", port=server.port)
    makers: list[Callable[[], Any]] = [
        lambda: redis.asyncio.Redis(host="127.0.0.1", port=server.port or 0),
        lambda: redis.asyncio.from_url(server.url),
        lambda: redis.asyncio.from_url(server.unix_url),
        lambda: redis.asyncio.Redis(connection_pool=pool),
        lambda: redis.asyncio.Redis(unix_socket_path=server.unix_socket, protocol=3, decode_responses=True),
        lambda: redis.asyncio.Redis(unix_socket_path=server.unix_socket, single_connection_client=True),
    ]
    for make in makers:
        async with make() as client:
            await works(client)
        raw.flushall()
    await pool.disconnect()


@pytest.mark.usefixtures("default_server")
async def test_the_database_of_the_client_is_used(server: EmbeddedServer, raw: redis.Redis) -> None:
    async with redis.asyncio.Redis(unix_socket_path=server.unix_socket, db=3) as client:
        await works(client)
    assert raw.dbsize() == 0
    assert raw.info("keyspace").keys() == {"db3"}


@pytest.mark.usefixtures("default_server")
async def test_timeouts_and_the_name_of_the_client_are_kept(server: EmbeddedServer, raw: redis.Redis) -> None:
    async with redis.asyncio.Redis(
        host="127.0.0.1", port=server.port or 0, socket_timeout=7, socket_connect_timeout=3, client_name="billing"
    ) as client:
        settings = client_of(client).settings
        await works(client)
        assert any(found["name"] == "billing" for found in raw.client_list())
    assert (settings.socket_timeout_s, settings.connect_timeout_s) == (7, 3)


@pytest.mark.usefixtures("default_server")
async def test_one_client_of_redis_py_makes_one_stream_client_which_ends_with_it(server: EmbeddedServer) -> None:
    driver = redis.asyncio.Redis(unix_socket_path=server.unix_socket)
    made = client_of(driver)
    assert client_of(driver) is made
    await works(driver)
    await driver.aclose()
    gone = weakref.ref(driver)
    del driver
    await eventually(lambda: gc.collect() >= 0 and gone() is None)  # the thread of the heartbeats may be ending still
    await made.close()


@pytest.mark.usefixtures("default_server")
async def test_closing_a_queue_leaves_the_client_of_the_user_open(driver: redis.asyncio.Redis) -> None:
    await works(driver)
    assert await driver.ping()
    await works(driver, "other")


# --- who one is ---------------------------------------------------------------------------------------


@pytest.fixture
def locked(start_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    server = start_server(port=0)
    ask(server.unix_socket, "ACL", "SETUSER", "billing", "on", ">s3cret", "~*", "&*", "+@all")
    ask(server.unix_socket, "ACL", "SETUSER", "default", ">other", "resetpass", ">other")
    return server


class Provider(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "billing", "s3cret"


async def test_credentials_are_taken_along(locked: EmbeddedServer) -> None:
    options: list[dict[str, Any]] = [
        {"username": "billing", "password": "s3cret"},
        {"password": "other"},
        {"credential_provider": Provider()},
    ]
    for number, given in enumerate(options):
        async with redis.asyncio.Redis(unix_socket_path=locked.unix_socket, **given) as client:
            await works(client, f"queue {number}")


class Rotating(redis.CredentialProvider):
    password = "s3cret"

    def get_credentials(self) -> tuple[str, str]:
        return "billing", self.password


async def test_a_provider_is_asked_for_credentials_at_each_connect(locked: EmbeddedServer) -> None:
    provider = Rotating()
    async with redis.asyncio.Redis(unix_socket_path=locked.unix_socket, credential_provider=provider) as client:
        queue = RedisMessageQueue(NAME, client=client)
        await queue.publish("before")
        provider.password = "n3xt"
        with redis.Redis(unix_socket_path=locked.unix_socket, password="other") as operator:
            operator.execute_command("ACL", "SETUSER", "billing", "resetpass", ">n3xt")
            operator.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert await take(queue) in {"before", b"before"}
        await queue.close()


async def test_a_wrong_password_is_told_and_not_shown(locked: EmbeddedServer) -> None:
    async with redis.asyncio.Redis(unix_socket_path=locked.unix_socket, username="billing", password="wr0ng") as client:
        with pytest.raises(AuthenticationFailed) as caught:
            await works(client)
    assert "wr0ng" not in str(caught.value)


# --- TLS ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(trustme.CA(), tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Iterator[TlsServer]:
    made = started(authority)
    yield made
    made.server.stop()


async def test_tls_and_its_options_are_taken_along(tls: TlsServer, authority: Authority) -> None:
    for number, client in enumerate(
        (
            redis.asyncio.Redis(host="localhost", port=tls.port, ssl=True, ssl_ca_certs=authority.pem),
            redis.asyncio.from_url(f"{tls.url}?ssl_ca_certs={authority.pem}"),
            redis.asyncio.Redis(
                host="127.0.0.1", port=tls.port, ssl=True, ssl_cert_reqs="none", ssl_check_hostname=False
            ),
        )
    ):
        async with client:
            await works(client, f"queue {number}")


def test_no_option_of_tls_is_left_behind(authority: Authority) -> None:
    client = redis.asyncio.Redis(ssl=True, ssl_ca_certs=authority.pem, ssl_ca_path="/etc/ca", ssl_password="s3cret")
    options = client_of(client).settings.tls_options
    assert (options["ssl_ca_path"], options["ssl_password"]) == ("/etc/ca", "s3cret")
    assert "s3cret" not in repr(client_of(client).settings)


# --- Sentinel -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    with SentinelGroup(tmp_path_factory.mktemp("sentinels")) as group:
        yield group


async def test_the_master_of_a_sentinel_is_a_client_and_the_sentinel_is_none(group: SentinelGroup) -> None:
    sentinel = redis.asyncio.sentinel.Sentinel(group.sentinels)
    async with sentinel.master_for(SERVICE) as master:
        await works(master)
        assert client_of(master).settings.kind == "sentinel"
    with pytest.raises(TypeError, match=r"^client is a Sentinel: pass the client that its master_for\(name\) returns"):
        RedisMessageQueue(NAME, client=sentinel)
    for known in sentinel.sentinels:
        await known.aclose()


# --- cluster ------------------------------------------------------------------------------------------


def cluster_client(cluster: Cluster, **options: Any) -> Any:
    host, port = cluster.addresses[0]
    return redis.asyncio.RedisCluster(host=host, port=port, **options)


async def test_a_queue_of_a_cluster(cluster: Cluster) -> None:
    for decodes in (True, False):
        async with cluster_client(cluster, decode_responses=decodes) as client:
            for name in (f"{{orders{decodes}}}", f"{{shop{decodes}}}.orders", f"eu.{{orders{decodes}}}"):
                await works(client, name)


async def test_a_cluster_wants_a_hash_tag_before_anything_is_sent(cluster: Cluster) -> None:
    async with cluster_client(cluster) as client:
        words = r"queue 'orders' needs a hash tag in a Redis Cluster.*name it '\{orders\}'"
        for made in (client, Wrapped(client), Wrapped(Wrapped(client)), client_of(client)):
            with pytest.raises(ClusterSlotError, match=words) as caught:
                RedisMessageQueue(NAME, client=made)
            assert isinstance(caught.value, ValueError)
            with pytest.raises(ClusterSlotError, match=words):
                RedisMessageQueue(NAME, gateway=RedisGateway(redis_client=made))
        elsewhere = RedisGateway(
            redis_client=client, message_visibility_timeout_seconds=30, max_delivery_count=3, dead_letter_queue="dead"
        )
        with pytest.raises(ClusterSlotError, match="'dead'"):
            RedisMessageQueue("{orders}", gateway=elsewhere)


async def test_a_wrapped_client_of_a_cluster(cluster: Cluster) -> None:
    async with cluster_client(cluster) as client:
        await works(Wrapped(client), "{wrapped}")


# --- clients in other clothes -------------------------------------------------------------------------


class Wrapped:
    """What a library for tracing or metrics makes of a client: all attributes are those of the one inside."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class Counting(Wrapped):
    """A wrapper with a method of its own."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return self._client.execute_command(*args, **options)


@pytest.mark.usefixtures("default_server")
async def test_a_client_that_only_delegates_is_a_client(driver: redis.asyncio.Redis, raw: redis.Redis) -> None:
    for made in (Wrapped(driver), Counting(driver), Counting(Wrapped(driver))):
        await works(made)
        raw.flushall()


@pytest.mark.usefixtures("default_server")
async def test_a_client_of_a_class_of_its_own_is_a_client(server: EmbeddedServer) -> None:
    class Own(redis.asyncio.Redis):
        pass

    async with Own(unix_socket_path=server.unix_socket) as client:
        await works(client)


@pytest.mark.usefixtures("default_server")
async def test_a_client_that_cannot_be_hashed_is_a_client(driver: redis.asyncio.Redis) -> None:
    class Unhashable(Wrapped):
        __hash__ = None  # type: ignore[assignment]

    await works(Unhashable(driver))


@pytest.mark.usefixtures("default_server")
async def test_what_is_no_client_is_told(driver: redis.asyncio.Redis, client: StreamClient) -> None:
    with pytest.raises(
        TypeError, match=r"^client is a pipeline, which sends nothing until execute\(\): pass the client"
    ):
        RedisMessageQueue(NAME, client=driver.pipeline())
    for wrong in ("redis://localhost", 42, object(), driver.connection_pool, redis.asyncio.Redis):
        with pytest.raises(ConfigurationTypeError, match=r"^client must be a redis-py client or a StreamClient"):
            RedisMessageQueue(NAME, client=wrong)

    class Stub:
        async def execute_command(self, *args: Any) -> None:
            pass

    with pytest.raises(
        TypeError, match=r"^client, a Stub, does not expose its server's address: pass the redis-py client"
    ):
        RedisMessageQueue(NAME, client=Stub())


# --- many at once -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("default_server")
async def test_queues_of_one_client_work_side_by_side(driver: redis.asyncio.Redis, raw: redis.Redis) -> None:
    queues = [RedisMessageQueue(f"queue {n}", client=driver) for n in range(5)]
    await outcomes([start(queue.publish, f"message {n}") for n in range(10) for queue in queues])
    found = await outcomes([start(take, queue) for _ in range(10) for queue in queues])
    assert sorted(found) == sorted([f"message {n}".encode() for n in range(10)] * 5)
    assert [payloads(raw, f"queue {n}") for n in range(5)] == [[]] * 5
