"""What commands read out of an archive in HDFS."""

from __future__ import annotations

import json
from pathlib import Path

import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.lake.files import Location
from penstock.sync.results import FSBackend
from tests.spark.archive.streams import START_MS, Stream, archive, opened
from tests.spark.driver import PYTHONPATH
from tests.yarn.conftest import Penstock
from tests.yarn.hadoop import Hadoop


def test_an_archive_in_hdfs_is_reported_on_replayed_and_reprocessed(
    hadoop: Hadoop, penstock: Penstock, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    stream = Stream()
    for n in range(50):
        payload = json.dumps({"n": n, "place": str(tmp_path), "kind": "pay"}).encode()
        stream.entries.append((f"{START_MS + n}-0", {"data": payload}))
    root = f"{hadoop.hdfs}/orders"
    archiver = opened(Location.of(root))
    for start in (0, 25):
        archive(archiver, stream, start, start + 25)

    words = ("--archive", root, "--stream", "orders", "--url", stream_server.url)
    times = ("--since", START_MS, "--until", START_MS + 60_000)
    page = tmp_path / "page.html"
    report = penstock("report", *words, *times, "--output", page)
    report.wait_for_line("page.html: 50 messages, 0 dead letters")
    report.end()
    assert "pay" in page.read_text()

    results = tmp_path / "results"
    env = {"PYTHONPATH": PYTHONPATH}  # where the handler is
    handler = "tests.spark.reprocess.handlers:doubled"
    again = penstock("reprocess", *words, *times, "--handler", handler, "--results", results, env=env)
    again.wait_for_line("done 45, failed 5; 0 of them already had a result")
    again.end()
    with FSBackend(results) as backend:
        assert sorted(found.data["twice"] for found in backend.iter() if found.status == "ok") == [
            2 * n for n in range(50) if n % 10 != 7
        ]

    penstock("replay", *words, *times, "--into", "again").end()
    assert [json.loads(fields[b"data"])["n"] for _, fields in stream_redis.xrange("again")] == list(range(50))
