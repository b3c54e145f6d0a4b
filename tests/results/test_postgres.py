"""Results in PostgreSQL: what SQL sees, and what happens when the server is away."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from penstock.errors import BackendRefused, BackendUnavailable, ConfigurationError
from penstock.results.postgres import PostgresBackend
from penstock.task import Result, Status
from penstock.testing import FaultProxy
from penstock.testing.result_backend_contract import all_of
from tests.helpers.aio import eventually, join, next_turn, outcomes, start
from tests.helpers.postgres import REFUSED_LOGINS, PostgresServer, refused_login

FINISHED = datetime(2025, 6, 1, 12, tzinfo=UTC)


def result_of(task_id: str = "t1", kind: str = "resize", **more: object) -> Result:
    return Result(**{"task_id": task_id, "kind": kind, "finished_at": FINISHED, **more})


@pytest.fixture
async def backend(postgres: PostgresServer) -> AsyncIterator[PostgresBackend]:
    async with PostgresBackend(postgres.dsn) as backend:
        yield backend


async def test_sql_sees_the_fields_as_columns(backend: PostgresBackend, postgres: PostgresServer) -> None:
    await backend.save(result_of(data={"width": 3, "tags": ["a"]}, started_at=FINISHED - timedelta(seconds=2)))
    await backend.save(result_of("t2", kind="mail", status=Status.ERROR, error="no\0 way", attempts=3))
    rows = postgres.execute(
        "SELECT task_id, kind, status, data->>'width', error, attempts, extract(epoch FROM finished_at - started_at)::int"
        " FROM penstock_results ORDER BY task_id"
    )
    assert rows == [("t1", "resize", "ok", "3", None, 1, 2), ("t2", "mail", "error", None, "no\u2400 way", 3, None)]


async def test_what_json_cannot_say_is_readable_in_sql_and_exact_in_python(
    backend: PostgresBackend, postgres: PostgresServer
) -> None:
    data = {"nan": math.nan, "inf": -math.inf, "nul": "a\0b", "k\0": 1, "raw": b"\x00\xff", "big": 1e16, 7: FINISHED}
    await backend.save(result_of(data=data))
    [[seen]] = postgres.execute("SELECT data FROM penstock_results")
    assert seen == {
        "nan": "NaN",
        "inf": "-Infinity",
        "nul": "a\u2400b",
        "k\u2400": 1,
        "raw": "AP8=",
        "big": 10**16,
        "7": "2025-06-01T12:00:00Z",
    }
    found = await backend.get("t1")
    assert found is not None
    assert math.isnan(found.data.pop("nan"))
    del data["nan"]
    assert found.data == data
    assert isinstance(found.data["big"], float)


async def test_queries_by_kind_and_time_have_their_indexes(backend: PostgresBackend, postgres: PostgresServer) -> None:
    await backend.save(result_of())
    names = {row[0] for row in postgres.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'penstock_results'")}
    assert any("(kind, finished_at, task_id)" in name for name in names)
    assert any("(finished_at, task_id)" in name for name in names)


async def test_many_processes_may_come_first(postgres: PostgresServer) -> None:
    backends = [PostgresBackend(postgres.dsn) for _ in range(8)]
    saves = [start(backend.save, result_of(f"t{number}")) for number, backend in enumerate(backends)]
    assert await outcomes(saves) == [True] * 8
    for backend in backends:
        await backend.close()
    assert postgres.execute("SELECT part, version FROM penstock_schema") == [("results", 1)]


async def test_tables_of_a_newer_version_are_refused(backend: PostgresBackend, postgres: PostgresServer) -> None:
    await backend.save(result_of())
    postgres.execute("UPDATE penstock_schema SET version = 99")
    async with PostgresBackend(postgres.dsn) as older:
        with pytest.raises(BackendRefused, match=r"have version 99, .* up to 1: update Penstock"):
            await older.get("t1")


async def test_a_user_who_may_only_read_and_write_needs_no_more(
    backend: PostgresBackend, postgres: PostgresServer
) -> None:
    await backend.save(result_of())
    postgres.execute("DROP ROLE IF EXISTS clerk")
    postgres.execute("CREATE ROLE clerk LOGIN")
    try:
        async with PostgresBackend(postgres.dsn.replace("penstock@", "clerk@")) as clerk:
            with pytest.raises(BackendRefused, match="permission denied"):
                await clerk.save(result_of("t2"))
            postgres.execute("GRANT SELECT ON penstock_schema TO clerk")
            postgres.execute("GRANT SELECT, INSERT ON penstock_results TO clerk")
            assert await clerk.save(result_of("t2")) is True
            assert await clerk.save(result_of("t1", data="late")) is False
    finally:
        postgres.execute("DROP OWNED BY clerk")
        postgres.execute("DROP ROLE clerk")


async def test_a_row_that_the_user_may_not_see_is_told(backend: PostgresBackend, postgres: PostgresServer) -> None:
    await backend.save(result_of())
    postgres.execute("DROP ROLE IF EXISTS clerk")
    postgres.execute("CREATE ROLE clerk LOGIN")
    postgres.execute("GRANT SELECT ON penstock_schema TO clerk")
    postgres.execute("GRANT SELECT, INSERT ON penstock_results TO clerk")
    postgres.execute("ALTER TABLE penstock_results ENABLE ROW LEVEL SECURITY")
    postgres.execute("CREATE POLICY blind ON penstock_results FOR SELECT TO clerk USING (kind = 'other')")
    postgres.execute("CREATE POLICY free ON penstock_results FOR INSERT TO clerk WITH CHECK (true)")
    try:
        async with PostgresBackend(postgres.dsn.replace("penstock@", "clerk@")) as clerk:
            with pytest.raises(BackendRefused):
                await clerk.save(result_of(data="late"))
    finally:
        postgres.execute("DROP OWNED BY clerk")
        postgres.execute("DROP ROLE clerk")
    assert await backend.get("t1") == result_of()


async def test_a_batch_is_few_statements(backend: PostgresBackend, postgres: PostgresServer) -> None:
    await backend.save(result_of("first"))
    [[before]] = postgres.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")
    assert await backend.save_many([result_of(f"t{number}") for number in range(5_000)]) == [True] * 5_000
    await backend.close()  # numbers are reported when a session ends
    [[after]] = postgres.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")
    assert int(str(after)) - int(str(before)) < 20


async def test_an_iteration_sees_what_was_there_when_it_began(backend: PostgresBackend) -> None:
    await backend.save_many([result_of(f"t{number}") for number in range(700)])
    found = backend.iter()
    await anext(found)
    await backend.save(result_of("later", finished_at=FINISHED + timedelta(days=1)))
    assert len([result.task_id async for result in found]) == 699


async def test_a_row_that_holds_no_result_is_skipped(
    backend: PostgresBackend, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    await backend.save_many([result_of("good"), result_of("bad")])
    postgres.execute("UPDATE penstock_results SET result = '\\x00' WHERE task_id = 'bad'")
    assert [result.task_id async for result in backend.iter()] == ["good"]
    assert await backend.get("bad") is None
    assert "skipped the row of task bad, which does not hold a valid result" in caplog.text


# --- faults ---------------------------------------------------------------------------------------


async def test_a_restarted_server_is_found_again(backend: PostgresBackend, postgres: PostgresServer) -> None:
    await backend.save(result_of("before"))
    postgres.stop()
    postgres.start()
    assert await backend.save(result_of("after")) is True
    assert await backend.get("before") == result_of("before")


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_server_that_is_away_is_told_and_the_next_try_succeeds(
    backend: PostgresBackend, postgres: PostgresServer, end: str
) -> None:
    await backend.save(result_of("before"))
    getattr(postgres, end)()
    where = f"PostgreSQL 127.0.0.1:{postgres.port}"
    with pytest.raises(BackendUnavailable, match=f"cannot save results in {where}"):
        await backend.save(result_of())
    with pytest.raises(BackendUnavailable, match=f"cannot read results in {where}"):
        await backend.get("before")
    with pytest.raises(BackendUnavailable, match="cannot list results"):
        await all_of(backend)
    postgres.start()
    assert await backend.save(result_of()) is True
    assert sorted([result.task_id async for result in backend.iter()]) == ["before", "t1"]


async def test_a_server_that_dies_in_the_middle_of_a_batch_keeps_all_or_nothing(
    backend: PostgresBackend, postgres: PostgresServer
) -> None:
    """The batch is half written when the server goes: another transaction holds the last of its ids."""
    await backend.save(result_of("before"))
    batch = [result_of(f"t{number:03}") for number in range(300)]
    columns = "task_id, kind, status, attempts, finished_at, result"
    with psycopg.connect(postgres.dsn) as rival:
        rival.execute(f"INSERT INTO penstock_results ({columns}) VALUES ('t299', 'x', 'ok', 1, now(), '')")  # type: ignore[arg-type]
        saving = start(backend.save_many, batch)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%unnest%%'"
        await eventually(lambda: rival.execute(waiting).fetchone() == (1,))
        postgres.kill()
        with suppress(psycopg.Error):
            rival.close()
    with pytest.raises(BackendUnavailable):
        await join(saving)
    postgres.start()
    assert [result.task_id for result in await all_of(backend)] == ["before"]
    assert await backend.save_many(batch) == [True] * 300


async def test_a_server_that_says_nothing_is_given_up(postgres: PostgresServer) -> None:
    with FaultProxy(("127.0.0.1", postgres.port)) as proxy:
        async with PostgresBackend(postgres.dsn_through(proxy.port), timeout_s=10) as backend:
            assert await backend.save(result_of("before"))
            proxy.black_hole()
            with pytest.raises(BackendUnavailable, match="no answer within 10 s"):
                await backend.save(result_of())
            proxy.heal()
            assert await backend.save(result_of()) is True
            assert await backend.get("t1") == result_of()


async def test_a_connection_that_breaks_during_an_iteration_is_an_error_and_not_an_end(
    postgres: PostgresServer,
) -> None:
    with FaultProxy(("127.0.0.1", postgres.port)) as proxy:
        async with PostgresBackend(postgres.dsn_through(proxy.port), timeout_s=30) as backend:
            await backend.save_many([result_of(f"t{number}") for number in range(1_200)])
            found = backend.iter()
            await anext(found)
            proxy.reset_all()
            with pytest.raises(BackendUnavailable):
                assert [result.task_id async for result in found]
            assert len(await all_of(backend)) == 1_200


async def test_a_connection_that_was_reset_is_made_anew(postgres: PostgresServer) -> None:
    with FaultProxy(("127.0.0.1", postgres.port)) as proxy:
        async with PostgresBackend(postgres.dsn_through(proxy.port), timeout_s=30) as backend:
            await backend.save(result_of("before"))
            proxy.reset_all()
            assert await backend.save(result_of()) is True


# async only
async def test_a_back_end_outlives_its_event_loop(postgres: PostgresServer) -> None:
    backend = PostgresBackend(postgres.dsn)

    def use(number: int) -> bool:
        return asyncio.run(backend.save(result_of(f"t{number}")))

    assert await asyncio.to_thread(use, 1)
    assert await asyncio.to_thread(use, 2)
    assert await backend.save(result_of("t3"))
    await backend.close()


async def test_a_cancelled_save_leaves_a_usable_back_end(backend: PostgresBackend, postgres: PostgresServer) -> None:
    await backend.save(result_of("before"))
    for _ in range(5):
        task = start(backend.save_many, [result_of(f"t{number}") for number in range(2_000)])
        await next_turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await backend.get("before") == result_of("before")


# end async only


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        " ",
        7,
        "postgresql://u:s3cret@h:%zz/x",
        "postgresql://u:s3cret@h:port/x",
        "host=h passw0rd s3cret",
        "nonsense=s3cret",
    ],
)
async def test_a_connection_string_that_is_none_is_refused_without_repeating_it(dsn: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        PostgresBackend(dsn)
    assert "s3cret" not in str(error.value)


async def test_the_password_is_shown_nowhere(postgres: PostgresServer) -> None:
    backend = PostgresBackend("postgresql://someone:s3cret@127.0.0.1:1/db", timeout_s=2)
    with pytest.raises(BackendUnavailable) as error:
        await backend.save(result_of())
    assert "s3cret" not in f"{backend!r} {error.value} {error.value.__cause__!r}"


@pytest.mark.parametrize("place", REFUSED_LOGINS)
async def test_a_login_that_is_refused_does_not_pass(postgres: PostgresServer, place: str) -> None:
    dsn, why = refused_login(postgres, place)
    async with PostgresBackend(dsn) as backend:
        with pytest.raises(BackendRefused, match=why):
            await backend.save(result_of())
