"""What every result back-end promises, as tests that the author of a plug-in runs.

Subclass `ResultBackendContract` and give it two fixtures: `backend`, an empty back-end, and `open_backend`, a function
that opens the same store once more. `penstock.sync.testing.result_backend_contract` has the same tests for plain
functions.

    class TestMyBackend(ResultBackendContract):
        @pytest.fixture
        def open_backend(self, tmp_path): return lambda: MyBackend(tmp_path)

        @pytest.fixture
        async def backend(self, open_backend):
            async with open_backend() as backend: yield backend
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.errors import ConfigurationError, EncodeError
from penstock.results.backend import ResultBackend
from penstock.runtime.aio import side_by_side
from penstock.task import Result, Status, encode

DAY_ONE = datetime(2025, 6, 1, 23, 59, 59, 999_999, tzinfo=UTC)
DAY_TWO = datetime(2025, 6, 2, 0, 0, 1, tzinfo=UTC)
KINDS = (
    "send",
    "send-",
    "send-email",
    "send--email",
    "send.email",
    "Send",
    ".hidden",
    "..",
    "../../etc/passwd",
    "a/b",
    "a b",
    "100%",
    "a=2Fb",
    "größe\u2603",
    "con:aux|<>*?\"'\\",
    "k" * 512,
    "ä" * 256,
)
IDS = (
    "a",
    "0",
    "a.b",
    "a-b",
    "a--b",
    "A_1",
    "x.msgpack",
    "x.msgpack.gz",
    "0192f0c1aabb7ccc8dddeeeeffff0000",
    "z" * 128,
)
VALUES: tuple[Any, ...] = (
    None,
    0,
    "",
    [],
    {},
    False,
    -1.5,
    1e16,
    1e300,
    2**63,
    -(2**63),
    math.inf,
    -math.inf,
    math.nan,
    b"\x00\xff",
    "a\0b",
    "\ufffe \U0001f600",
    {"a\0b": [None, {"deep": [[[]]]}], "null": None, "bytes": b"x", "nan": math.nan},
    {1: "a whole number as a key"},
    datetime(2025, 1, 1, tzinfo=UTC),
)


def result_of(task_id: str = "t1", kind: str = "resize", finished_at: datetime = DAY_ONE, **more: Any) -> Result:
    """Returns a result that differs from others only where the test says so."""
    return Result(task_id=task_id, kind=kind, finished_at=finished_at, **more)


async def all_of(backend: ResultBackend, kind: str | None = None) -> list[Result]:
    """Returns what iter() yields."""
    return [result async for result in backend.iter(kind)]


# async only
@pytest.mark.asyncio
# end async only
class ResultBackendContract:
    """The tests."""

    async def test_a_result_comes_back_as_it_was_saved(self, backend: ResultBackend) -> None:
        """Every field survives."""
        saved = result_of(
            status=Status.ERROR,
            data={"width": 3, "tags": ["a", "ü"], "nested": {"x": [1.5, None, True]}},
            error="ValueError: no picture",
            attempts=3,
            started_at=DAY_ONE - timedelta(seconds=2),
        )
        assert await backend.save(saved) is True
        assert await backend.get("t1") == saved
        assert await all_of(backend) == [saved]

    async def test_times_in_other_zones_are_the_same_moments(self, backend: ResultBackend) -> None:
        """A time in another zone may come back in UTC."""
        saved = result_of(finished_at=DAY_TWO.astimezone(timezone(timedelta(hours=-7))))
        assert await backend.save(saved)
        found = await backend.get("t1")
        assert found is not None
        assert found.finished_at == DAY_TWO
        assert await all_of(backend, "resize") == [found]

    async def test_an_unknown_id_has_no_result(self, backend: ResultBackend) -> None:
        """An empty store is no error, and neither is an id that nobody saved."""
        assert await backend.get("nobody") is None
        assert await all_of(backend) == []
        assert await all_of(backend, "resize") == []
        await backend.save(result_of())
        assert await backend.get("nobody") is None
        assert await all_of(backend, "other") == []

    @pytest.mark.parametrize("task_id", ["", "..", "../x", "a/b", "a b", "-a", "x" * 129, "ä"])
    async def test_an_unsafe_id_is_refused(self, backend: ResultBackend, task_id: str) -> None:
        """Such an id never reaches a path or a query."""
        with pytest.raises(ConfigurationError):
            await backend.get(task_id)

    async def test_the_first_result_wins(self, backend: ResultBackend) -> None:
        """A zombie comes late, with another outcome, on another day."""
        first = result_of(data="first")
        assert await backend.save(first) is True
        assert await backend.save(result_of(data="late")) is False
        assert await backend.save(result_of(data="late", finished_at=DAY_TWO)) is False
        assert await backend.save(result_of(data="late", kind="other", finished_at=DAY_TWO)) is False
        assert await backend.get("t1") == first
        assert await all_of(backend) == [first]
        assert await all_of(backend, "resize") == [first]
        assert await all_of(backend, "other") == []

    async def test_an_identical_result_may_be_saved_again(self, backend: ResultBackend) -> None:
        """As it happens when the reply to the first call got lost."""
        for _ in range(3):
            assert await backend.save(result_of(data={"x": [1, math.nan]})) is True
        assert len(await all_of(backend)) == 1

    async def test_another_process_sees_it_and_loses_against_it(
        self, backend: ResultBackend, open_backend: Callable[[], ResultBackend]
    ) -> None:
        """The promise is one of the store, not of an object in memory."""
        other = open_backend()
        assert await backend.save(result_of(data="first"))
        assert await other.get("t1") == result_of(data="first")
        assert await other.save(result_of(data="late")) is False
        assert await other.save(result_of(data="first")) is True
        await other.close()

    @pytest.mark.parametrize("turn", range(3))
    async def test_of_many_at_once_one_wins(
        self, backend: ResultBackend, open_backend: Callable[[], ResultBackend], turn: int
    ) -> None:
        """On different days and from different objects, each in its own batch with company."""
        other = open_backend()
        days = (DAY_ONE, DAY_TWO)
        rivals = [result_of(data=number, finished_at=days[number % 2]) for number in range(8)]

        async def save(rival: Result) -> list[bool]:
            company = result_of(f"company{rival.data}", kind="company")
            return await (backend, other)[rival.data // 2 % 2].save_many([company, rival])

        outcomes = await side_by_side(8, save, rivals)
        assert all(outcome[0] for outcome in outcomes)
        [winner] = [rival for rival, outcome in zip(rivals, outcomes, strict=True) if outcome[1]]
        assert await backend.get("t1") == winner
        assert await other.get("t1") == winner
        assert await all_of(other, "resize") == [winner]
        assert len(await all_of(backend)) == 9
        await other.close()

    async def test_a_batch_tells_about_each(self, backend: ResultBackend) -> None:
        """New, known, late, and twice in one batch, in the order of the call."""
        await backend.save(result_of("known"))
        batch = [
            result_of("z-new"),
            result_of("known"),
            result_of("known", data="late"),
            result_of("twice", data=1),
            result_of("twice", data=2),
            result_of("twice", data=1),
            result_of("a-new"),
        ]
        assert await backend.save_many(batch) == [True, True, False, True, False, True, True]
        assert await backend.save_many([]) == []
        assert sorted(result.task_id for result in await all_of(backend)) == ["a-new", "known", "twice", "z-new"]
        assert await backend.get("twice") == result_of("twice", data=1)

    async def test_many_are_saved_and_streamed(self, backend: ResultBackend) -> None:
        """More than any page of a listing holds."""
        many = [
            result_of(f"t{number}", kind=f"kind{number % 2}", finished_at=DAY_ONE + timedelta(minutes=number))
            for number in range(600)
        ]
        assert await backend.save_many(many) == [True] * len(many)
        assert sorted(result.task_id for result in await all_of(backend)) == sorted(one.task_id for one in many)
        assert {one.task_id for one in await all_of(backend, "kind1")} == {one.task_id for one in many[1::2]}

    async def test_an_iteration_may_be_left_early(self, backend: ResultBackend) -> None:
        """And begun again."""
        await backend.save_many([result_of(f"t{number}") for number in range(5)])
        for _ in range(3):
            found = backend.iter()
            assert (await anext(found)).kind == "resize"
            await found.aclose()  # type: ignore[attr-defined]
        assert len(await all_of(backend)) == 5

    async def test_the_oldest_day_comes_first(self, backend: ResultBackend) -> None:
        """Within one kind."""
        days = [DAY_ONE + timedelta(days=number) for number in (3, 1, 2, 0)]
        await backend.save_many([result_of(f"t{number}", finished_at=day) for number, day in enumerate(days)])
        assert [result.finished_at for result in await all_of(backend, "resize")] == sorted(days)

    async def test_results_may_be_saved_during_an_iteration(self, backend: ResultBackend) -> None:
        """Whether the iteration shows them is open; it neither fails nor shows one twice."""
        await backend.save_many([result_of(f"t{number}") for number in range(20)])
        found = []
        async for result in backend.iter():
            found.append(result.task_id)
            if len(found) <= 5:
                await backend.save(result_of(f"new{len(found)}"))
        assert len(found) == len(set(found))
        assert {f"t{number}" for number in range(20)} <= set(found)

    async def test_any_kind_may_be_used(self, backend: ResultBackend) -> None:
        """Kinds that a file name cannot hold, and kinds that begin alike."""
        assert all(await backend.save_many([result_of(f"t{n}", kind=kind) for n, kind in enumerate(KINDS)]))
        for number, kind in enumerate(KINDS):
            assert await backend.get(f"t{number}") == result_of(f"t{number}", kind=kind)
            assert [result.kind for result in await all_of(backend, kind)] == [kind]
        assert sorted(result.kind for result in await all_of(backend)) == sorted(KINDS)

    async def test_any_safe_id_may_be_used(self, backend: ResultBackend) -> None:
        """Ids that look like file endings, and ids with their time in front."""
        assert all(await backend.save_many([result_of(task_id, kind="a-b") for task_id in IDS]))
        for task_id in IDS:
            assert await backend.get(task_id) == result_of(task_id, kind="a-b")
        assert sorted(result.task_id for result in await all_of(backend, "a-b")) == sorted(IDS)

    async def test_any_value_comes_back_or_is_refused(self, backend: ResultBackend) -> None:
        """Nothing is changed silently; EncodeError is the honest way out for a back-end that cannot hold a value."""
        for number, value in enumerate(VALUES):
            saved = result_of(f"t{number}", data=value, error="a\0b", status=Status.ERROR)
            try:
                assert await backend.save(saved)
            except EncodeError:
                assert await backend.get(f"t{number}") is None
                continue
            found = await backend.get(f"t{number}")
            assert found is not None
            assert encode(found) == encode(saved), value

    async def test_what_cannot_be_encoded_saves_nothing(self, backend: ResultBackend) -> None:
        """Not even its neighbours in the batch: the caller knows that the whole call failed."""
        for bad in (object(), 2**70, "\ud800", {"x": {1, object()}}):
            with pytest.raises(EncodeError):
                await backend.save_many([result_of("good"), result_of("bad", data=bad)])
        assert await all_of(backend) == []
        with pytest.raises(ConfigurationError):
            await backend.save({"task_id": "t1"})  # type: ignore[arg-type]

    async def test_a_large_result_is_kept(self, backend: ResultBackend) -> None:
        """Five megabytes of text."""
        saved = result_of(data={"text": "0123456789" * 500_000})
        assert await backend.save(saved)
        assert await backend.get("t1") == saved

    async def test_it_may_be_closed_twice(self, open_backend: Callable[[], ResultBackend]) -> None:
        """Used or not."""
        backend = open_backend()
        await backend.close()
        backend = open_backend()
        await backend.save(result_of())
        await backend.close()
        await backend.close()
