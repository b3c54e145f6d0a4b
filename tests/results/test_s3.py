"""Results in an object store: what lies where, and what happens when the store fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from penstock.errors import BackendRefused, BackendUnavailable, ConfigurationError
from penstock.results.s3 import S3Backend
from penstock.task import Result, encode
from penstock.testing import FaultProxy
from penstock.testing.result_backend_contract import all_of
from tests.helpers.http_proxy import HttpProxy
from tests.helpers.s3 import BUCKET, SECRET, S3Server

FINISHED = datetime(2025, 6, 1, 12, tzinfo=UTC)
URL = f"s3://{BUCKET}/prefix"
NO_RETRIES = {"max_retries": 0}


def result_of(task_id: str = "t1", kind: str = "resize", **more: object) -> Result:
    return Result(**{"task_id": task_id, "kind": kind, "finished_at": FINISHED, **more})


@pytest.fixture
async def backend(s3_server: S3Server) -> AsyncIterator[S3Backend]:
    async with S3Backend(URL, **s3_server.options()) as backend:
        yield backend


@pytest.fixture
def bucket(s3_server: S3Server) -> obstore.store.S3Store:
    return from_url(URL, client_options={"allow_http": True}, **s3_server.options())


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[HttpProxy]:
    with HttpProxy(s3_server.port) as proxy:
        yield proxy


def keys(bucket: obstore.store.S3Store) -> list[str]:
    return sorted(item["path"] for chunk in obstore.list(bucket) for item in chunk)


async def test_a_result_is_an_object_by_its_id_and_a_mark_by_its_kind(
    backend: S3Backend, bucket: obstore.store.S3Store
) -> None:
    await backend.save(result_of(kind="re/size"))
    assert keys(bucket) == ["ids/t1.msgpack", "kinds/re=2Fsize/2025-06-01/t1", "penstock-create-only"]
    assert bytes(obstore.get(bucket, "ids/t1.msgpack").bytes()) == encode(result_of(kind="re/size"))


async def test_get_is_one_request_and_iter_a_listing(s3_server: S3Server, proxy: HttpProxy) -> None:
    async with S3Backend(URL, **s3_server.options(proxy.port)) as backend:
        await backend.save_many([result_of(f"t{number}", kind=f"kind{number % 2}") for number in range(6)])
        proxy.seen.clear()
        assert await backend.get("t3") is not None
        assert [method for method, _ in proxy.seen] == ["GET"]
        proxy.seen.clear()
        assert len(await all_of(backend, "kind1")) == 3
        assert len([path for _, path in proxy.seen if "list-type" in path]) == 1
        assert len(proxy.seen) == 4


async def test_a_store_that_writes_over_what_is_there_is_refused(tmp_path: Path) -> None:
    with S3Server(tmp_path, "rclone") as rclone:
        async with S3Backend(URL, **rclone.options()) as backend:
            for _ in range(2):
                with pytest.raises(BackendRefused, match="ignores create-only puts"):
                    await backend.save(result_of())
            assert await backend.get("t1") is None


async def test_foreign_objects_are_skipped_with_a_warning(
    backend: S3Backend, bucket: obstore.store.S3Store, caplog: pytest.LogCaptureFixture
) -> None:
    await backend.save(result_of("good"))
    obstore.put(bucket, "ids/torn.msgpack", encode(result_of("torn"))[:-4])
    obstore.put(bucket, "ids/other.msgpack", encode(result_of("good")))
    obstore.put(bucket, "ids/no id!", b"")
    obstore.put(bucket, "kinds/resize/2025-06-01/torn", b"")
    obstore.put(bucket, "kinds/resize/2025-06-01/never-written", b"")
    assert [result.task_id async for result in backend.iter()] == ["good"]
    assert [result.task_id async for result in backend.iter("resize")] == ["good"]
    for name in ("ids/torn.msgpack", "ids/other.msgpack", "ids/no id!"):
        assert name in caplog.text


async def test_an_object_that_holds_no_result_gives_way_to_the_first_valid_one(
    backend: S3Backend, bucket: obstore.store.S3Store
) -> None:
    obstore.put(bucket, "ids/t1.msgpack", b"torn")
    assert await backend.get("t1") is None
    assert await backend.save(result_of(data="valid")) is True
    assert await backend.save(result_of(data="late")) is False
    assert await backend.get("t1") == result_of(data="valid")


async def test_the_mark_of_a_late_result_shows_nothing(backend: S3Backend, bucket: obstore.store.S3Store) -> None:
    await backend.save(result_of())
    assert await backend.save(result_of(finished_at=FINISHED + timedelta(days=1))) is False
    assert await backend.save(result_of(kind="other")) is False
    assert len(keys(bucket)) == 5
    assert [result.task_id async for result in backend.iter("resize")] == ["t1"]
    assert [result.task_id async for result in backend.iter("other")] == []


# --- faults ---------------------------------------------------------------------------------------


async def test_a_store_that_answers_500_is_told_and_the_next_try_succeeds(
    s3_server: S3Server, proxy: HttpProxy
) -> None:
    async with S3Backend(URL, retry_config=NO_RETRIES, **s3_server.options(proxy.port)) as backend:
        await backend.save(result_of("before"))
        proxy.mood = "500"
        with pytest.raises(BackendUnavailable, match=f"cannot save results in {URL}.*500"):
            await backend.save(result_of())
        with pytest.raises(BackendUnavailable, match="cannot read results"):
            await backend.get("before")
        with pytest.raises(BackendUnavailable, match="cannot list results"):
            await all_of(backend)
        proxy.mood = "pass"
        assert await backend.get("t1") is None
        assert await backend.save(result_of()) is True
        assert sorted([result.task_id async for result in backend.iter("resize")]) == ["before", "t1"]


async def test_a_store_that_hangs_is_given_up(s3_server: S3Server, proxy: HttpProxy) -> None:
    async with S3Backend(URL, timeout_s=10, **s3_server.options(proxy.port)) as backend:
        await backend.save(result_of("before"))
        proxy.mood = "hang"
        with pytest.raises(BackendUnavailable, match="cannot save results"):
            await backend.save_many([result_of("t1"), result_of("t2")])
        proxy.mood = "pass"
        assert await backend.save_many([result_of("t1"), result_of("t2")]) == [True, True]


async def test_a_lost_reply_does_not_make_the_first_result_a_late_one(s3_server: S3Server, proxy: HttpProxy) -> None:
    async with S3Backend(URL, retry_config=NO_RETRIES, **s3_server.options(proxy.port)) as backend:
        await backend.save(result_of("before"))
        proxy.mood = "lose reply"
        with pytest.raises(BackendUnavailable):
            await backend.save(result_of())
        proxy.mood = "pass"
        assert await backend.save(result_of()) is True


async def test_a_store_that_cannot_be_reached_is_told(s3_server: S3Server) -> None:
    with FaultProxy(("127.0.0.1", s3_server.port)) as gate:
        async with S3Backend(URL, retry_config=NO_RETRIES, **s3_server.options(gate.port)) as backend:
            gate.refuse()
            with pytest.raises(BackendUnavailable):
                await backend.save(result_of())
            gate.heal()
            assert await backend.save(result_of()) is True


# --- bad input ------------------------------------------------------------------------------------


async def test_a_bucket_that_does_not_exist_is_refused(s3_server: S3Server) -> None:
    async with S3Backend("s3://nowhere", **s3_server.options()) as backend:
        with pytest.raises(BackendRefused, match="NoSuchBucket"):
            await backend.save(result_of())
        with pytest.raises(BackendRefused, match="NoSuchBucket"):
            await backend.get("t1")
        with pytest.raises(BackendRefused, match="NoSuchBucket"):
            await all_of(backend)


async def test_a_wrong_secret_is_refused_and_not_shown(tmp_path: Path) -> None:
    with S3Server(tmp_path, "rclone") as rclone:
        async with S3Backend(URL, **(rclone.options() | {"secret_access_key": "WR0NG" + SECRET})) as backend:
            with pytest.raises(BackendRefused) as error:
                await backend.save(result_of())
    assert SECRET not in f"{backend!r} {error.value}"


@pytest.mark.parametrize(
    ("url", "options"), [("bucket", {}), (7, {}), (URL, {"bogus": 1}), ("nope://x", {}), (URL, {"timeout_s": 0})]
)
async def test_unusable_options_are_a_configuration_error(url: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        S3Backend(url, **options)
