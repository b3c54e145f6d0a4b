"""Sharing results out over tasks: each is read once, whatever the sizes are said to be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual

from penstock.errors import ConfigurationError
from penstock.spark.results.scans import ResultFilter, share_out
from penstock.spark.results.source import ResultsOptions
from penstock.task import Result

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
SIZES = st.lists(st.integers(1, 5_000), max_size=30)


@given(SIZES, st.integers(1, 40), st.integers(1, 2_000))
def test_each_file_is_in_one_share_and_there_are_as_many_shares_as_asked_for(
    rows: list[int], min_parts: int, max_rows: int
) -> None:
    folders = [(f"day{n}", count) for n, count in enumerate(rows)]
    shares = share_out(folders, min_parts, max_rows)
    assert len(shares) >= min_parts or not folders
    for folder, _ in folders:
        for name in ("a", "b", "resize-01.msgpack"):
            assert len([share for share in shares if folder in share.folders and share.takes(name)]) == 1


def test_small_days_are_packed_and_big_ones_are_cut() -> None:
    shares = share_out([("a", 10), ("b", 10), ("c", 95), ("d", 10)], min_parts=1, max_rows=30)
    assert [(share.folders, share.slots) for share in shares] == [(("c",), 4)] * 4 + [(("a", "b", "d"), 1)]


def test_filters_on_kind_status_and_time_say_what_is_read() -> None:
    filters = [
        EqualTo(("kind",), "mail"),
        In(("status",), ("ok", "skip")),
        GreaterThan(("finished_at",), NOON),
        LessThanOrEqual(("finished_at",), NOON + timedelta(hours=1)),
        EqualTo(("task_id",), "t1"),  # not cheap anywhere: Spark does it
    ]
    matching = ResultFilter().narrowed(filters)
    assert matching.only_kind == "mail"

    def takes(**given: object) -> bool:
        return matching.takes(Result(**{"task_id": "t", "kind": "mail", "finished_at": NOON, **given}))

    assert takes()
    assert takes(finished_at=datetime(2026, 11, 15, 13))  # noqa: DTZ001  a time without a zone is UTC
    assert not takes(kind="resize")
    assert not takes(status="error")
    assert not takes(finished_at=NOON - timedelta(microseconds=1))
    assert not takes(finished_at=NOON + timedelta(hours=2))
    assert ResultFilter(kinds=frozenset(["resize"])).narrowed(filters).kinds == frozenset()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "set exactly one of"),
        ({"backend": "fs", "config": "penstock.toml"}, "set exactly one of"),
        ({"backend": "mongo"}, "must be one of fs, postgres, s3, redis"),
        ({"backend": "fs"}, "option root is missing"),
        ({"backend": "fs", "root": "/tmp", "rot": "1"}, "unknown option 'rot' of format penstock_results; did you"),
        ({"backend": "fs", "root": "/tmp", "minPartitions": "0"}, "minPartitions"),
        ({"backend": "fs", "root": "/tmp", "kind": " \n"}, "option kind"),
        ({"backend": "postgres", "url": "host=h port=swordfish"}, "not a PostgreSQL connection string"),
        ({"backend": "s3", "url": "bucket"}, "s3://bucket/prefix"),
        ({"backend": "redis"}, "option url is missing"),
    ],
)
def test_wrong_options_are_told_before_anything_is_read(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        ResultsOptions.parse(options)
    assert "swordfish" not in str(caught.value)
