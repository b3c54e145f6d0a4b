"""A password goes to Redis and nowhere else: not into plans, logs, events, progress, the web interface or errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from tests.spark.driver import Driver
from tests.spark.end_to_end.queries import fill

SECRET = "swordfish"
# Everything that Spark shows of the queries goes to files; what it prints is seen anyway.
_SCRIPT = """
import contextlib, io, json, sys, traceback, urllib.request
from pathlib import Path
from penstock.spark import session
from tests.spark.end_to_end.queries import read, read_stream, to_stream, run_now

port, place, secret = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
conf = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false", "spark.eventLog.dir": (place / "events").as_uri(),
        "spark.eventLog.logBlockUpdates.enabled": "true", "spark.log.level": "INFO"}
(place / "events").mkdir()
spark = session("secrets", "local[2]", short=True, conf=conf)
# In both places at once, to need half as many queries.
url, options = f"redis://default:{secret}@127.0.0.1:{port}/0", {"redis.password": secret}

def keep(name, text):
    (place / f"{name}.txt").write_text(str(text))

def explained(rows):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for mode in ("extended", "formatted", "cost"):
            rows.explain(mode=mode)
    return shown.getvalue() + rows._jdf.queryExecution().toString() + repr(rows.schema)

def keep_error(name, act):
    try:
        act()
    except Exception:
        keep(f"error-{name}", traceback.format_exc())
    else:
        raise SystemExit(f"{name} was accepted")

def stream(rows, name):
    return run_now(to_stream(rows, url, f"streamed-{name}", f"{place}/{name}").options(**options))

rows = read(spark, url, "orders", **options)
rows.createOrReplaceTempView("orders")
assert spark.sql("select count(*) n from orders").first()["n"] == 5
keep("plan", explained(rows))
rows.write.format("redis_streams").options(url=url, stream="copy", **options).mode("append").save()
growing = read_stream(spark, url, "orders", **options)
keep("growing-plan", explained(growing))
query = stream(growing, "good")
keep("progress", query.lastProgress.json)
keep("streaming-plan", query._jsq.explainInternal(True))
spark.sql(f"create temporary view kept using redis_streams options (url '{url}', streams 'orders')")
keep("view", spark.sql("describe extended kept").collect())

def results(backend, **options):
    return spark.read.format("penstock_results").options(backend=backend, timeout="2s", **options).load()

s3 = dict(url="s3://bucket/x", endpoint="http://127.0.0.1:1", region="r", accessKeyId=secret, secretAccessKey=secret)
words = ", ".join(f"{name} '{value}'" for name, value in s3.items())
spark.sql(f"create temporary view done using penstock_results options (backend 's3', {words})")
keep("results-view", spark.sql("describe extended done").collect())
keep("results-plan", explained(spark.table("done")))
keep_error("results-s3", lambda: results("s3", **s3).count())
keep_error("results-redis", lambda: results("redis", url=url).count())
keep_error("results-postgres", lambda: results("postgres", url=f"postgresql://u:{secret}@127.0.0.1:1/d").count())

keep_error("missing", lambda: read(spark, url, "nowhere", **options).count())
keep_error("unknown", lambda: read(spark, url, "orders", nonsense="1", **options).count())
keep_error("schema", lambda: read(spark, url, "orders", "data double", **options).count())
keep_error("streaming", lambda: stream(read_stream(spark, url, "nowhere", **options), "bad"))
keep_error("password", lambda: read(spark, url, "orders", **{"redis.password": secret + "!"}).count())
keep_error("away", lambda: read(spark, f"redis://:{secret}@127.0.0.1:1", "orders", retryTimeout="0s").count())

def fetched(path):
    with urllib.request.urlopen(spark.sparkContext.uiWebUrl + path, timeout=60) as reply:
        return reply.read().decode()

application = f"/api/v1/applications/{spark.sparkContext.applicationId}"
executions = json.loads(fetched(f"{application}/sql?details=true&planDescription=true&length=1000"))
assert any("redis_streams" in json.dumps(one) for one in executions), executions
pages = [f"{application}/{page}" for page in ("sql?details=true&planDescription=true&length=1000", "environment",
         "jobs", "stages?details=true", "storage/rdd", "allexecutors")]
pages += ["/SQL/", "/StreamingQuery/", "/environment/", "/jobs/", "/stages/"]
pages += [f"/SQL/execution/?id={one['id']}" for one in executions]
keep("web", "\\n".join(fetched(page) for page in pages))
spark.stop()
print("all kept")
"""


@pytest.fixture
def locked(start_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server that wants a password."""
    server = start_server(port=0)
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        fill(client, "orders", 5)
        client.config_set("requirepass", SECRET)
    return server


@pytest.mark.slow
def test_a_password_is_seen_nowhere(
    start_driver: Callable[..., Driver], locked: EmbeddedServer, tmp_path: Path
) -> None:
    driver = start_driver(_SCRIPT, str(locked.port), str(tmp_path), SECRET)
    driver.wait_for_line("^all kept$", timeout_s=240)
    kept = {path.relative_to(tmp_path): path for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    assert len([name for name in kept if name.suffix == ".txt"]) >= 12
    events = [path.read_text() for name, path in kept.items() if name.parts[0] == "events"]
    assert any("SparkListenerSQLExecutionStart" in text for text in events)
    assert "redis_streams" in (tmp_path / "web.txt").read_text()
    leaks = {
        str(name): _around(path.read_text(errors="replace")) for name, path in kept.items() if name.suffix != ".py"
    }
    printed = _around("\n".join(driver.lines()))
    assert {name: found for name, found in {**leaks, "printed": printed}.items() if found} == {}


def _around(text: str) -> list[str]:
    """Returns where the secret is, with what stands around it."""
    found, at = [], text.find(SECRET)
    while at >= 0 and len(found) < 5:
        found.append(text[max(0, at - 80) : at + 40])
        at = text.find(SECRET, at + 1)
    return found
