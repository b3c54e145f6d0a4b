"""OpenLineage events: what a run of a pipeline reads and writes, when it starts and how it ends."""

from __future__ import annotations

import json
import logging
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from penstock.errors import text_of
from penstock.settings.masking import without_login
from penstock.spark.pipeline.sink_options import Delta, Iceberg, Jdbc, Parquet, Postgres, RedisStreams, Results, Sink
from penstock.spark.pipeline.spec import Lineage, Pipeline

logger = logging.getLogger("penstock.spark")
_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACET = "https://openlineage.io/spec/facets"
_TIMEOUT_S = 5.0
_PROPERTIES = re.compile(r"[;?]\w+=")
# After a login, which may contain @ and /. Oracle puts it before the slashes: jdbc:oracle:thin:user/word@//host
_HOST = re.compile(r"(?://|@)(?:[^\s@:/?#]*(?::\S*)?@)?/*(\[[^\]]*\]|[^\s:/,;?#@]+)(?::(\d+))?")


@dataclass
class LineageRun:
    """The events of one run. An event that cannot be delivered is logged, and the run continues."""

    pipeline: Pipeline
    is_continuous: bool
    run_id: str = field(default_factory=lambda: str(uuid4()))

    def emit(self, kind: str, rows: int | None = None, error: str | None = None) -> None:
        """Send START, RUNNING, COMPLETE, ABORT or FAIL, if the pipeline has lineage."""
        lineage = self.pipeline.lineage
        if lineage is None:
            return
        try:
            _deliver(lineage, json.dumps(self.event(kind, lineage, rows, error)))
        except Exception as failure:  # of a server, a proxy or a URL: lineage must not fail a run
            reason = text_of(failure, lambda error: self.pipeline.masked(repr(error)))
            logger.warning("pipeline %s: could not send the OpenLineage event %s: %s", self.pipeline.name, kind, reason)

    def event(self, kind: str, lineage: Lineage, rows: int | None = None, error: str | None = None) -> dict[str, Any]:
        """Return an event in the format of OpenLineage."""
        producer = f"https://pypi.org/project/penstock/{_version()}"
        processing = "STREAMING" if self.is_continuous else "BATCH"
        job = {"processingType": processing, "integration": "PENSTOCK", "jobType": "PIPELINE"}
        facets: dict[str, Any] = {}
        if rows is not None:
            facets["penstock_progress"] = _facet(producer, "RunFacet", rows=rows)
        if error is not None:
            message = {"message": error, "programmingLanguage": "PYTHON"}
            facets["errorMessage"] = _facet(producer, "1-0-1/ErrorMessageRunFacet.json", **message)
        event = {
            "eventType": kind,
            "eventTime": datetime.now(UTC).isoformat(),
            "producer": producer,
            "schemaURL": _SCHEMA,
            "run": {"runId": self.run_id, "facets": facets},
            "job": {
                "namespace": lineage.namespace,
                "name": self.pipeline.name,
                "facets": {"jobType": _facet(producer, "2-0-3/JobTypeJobFacet.json", **job)},
            },
            "inputs": [_dataset(*each) for each in _streams(self.pipeline.source.url, self.pipeline.source.streams)],
            "outputs": [_dataset(*each) for sink in self.pipeline.sinks for each in _written(sink, self.pipeline)],
        }
        return {name: self._masked(value) for name, value in event.items()}

    def _masked(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._masked(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._masked(each) for each in value]
        return self.pipeline.masked(value) if isinstance(value, str) else value


def _facet(producer: str, schema: str, **values: Any) -> dict[str, Any]:
    return {"_producer": producer, "_schemaURL": f"{_FACET}/{schema}", **values}


def _dataset(namespace: str, name: str) -> dict[str, Any]:
    return {"namespace": namespace, "name": name}


def _streams(url: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in names:
        yield f"redis://{_address(url, 6379)}", name


def _written(sink: Sink, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield the datasets of a sink, by OpenLineage's naming rules for its kind."""
    if isinstance(sink, Parquet | Delta):
        yield _folder(sink.path)
    elif isinstance(sink, Iceberg):
        yield _catalogue(sink), sink.table
    elif isinstance(sink, Postgres):
        from psycopg.conninfo import conninfo_to_dict

        found = conninfo_to_dict(sink.dsn)
        schema_and_table = sink.table if "." in sink.table else f"public.{sink.table}"
        host, port = (str(found.get(name) or default) for name, default in (("host", "localhost"), ("port", 5432)))
        yield f"postgres://{host}:{port}", f"{found.get('dbname') or 'postgres'}.{schema_and_table}"
    elif isinstance(sink, Jdbc):
        yield f"jdbc:{_address(sink.url)}", sink.table
    elif isinstance(sink, RedisStreams):
        yield from _streams(sink.url or pipeline.source.url, (sink.stream or "*",))
    elif isinstance(sink, Results):
        yield f"penstock:{sink.backend}", sink.result_kind


def _folder(path: str) -> tuple[str, str]:
    parts = urlsplit(without_login(path))
    if not parts.netloc:
        return "file", parts.path if parts.scheme == "file" else path
    scheme, name = parts.scheme.replace("s3a", "s3"), parts.path.lstrip("/")
    if scheme.startswith(("abfs", "wasb")):  # these have a container in place of a login
        name = f"{urlsplit(path).username}/{name}"
    return f"{scheme}://{parts.netloc}", name


def _catalogue(sink: Iceberg) -> str:
    uri = sink.catalog.get("uri")
    if uri is None:
        return sink.spark_catalog or "iceberg"
    parts = urlsplit(without_login(uri))
    return f"{parts.scheme}://{_address(uri) if parts.netloc else ''}{parts.path}"


def _address(url: str, port: int | None = None) -> str:
    """Return host and port of a URL, also of a JDBC URL, without login and properties."""
    found = _HOST.search(_PROPERTIES.split(url, maxsplit=1)[0])
    host, given = (found[1], found[2]) if found else ("localhost", None)
    return f"{host}:{given or port}" if given or port else host


def _deliver(lineage: Lineage, event: str) -> None:
    if not lineage.url.startswith(("http://", "https://")):
        with Path(lineage.url.removeprefix("file://")).open("a", encoding="utf-8") as file:
            file.write(event + "\n")
        return
    headers = {"Content-Type": "application/json"}
    if lineage.token is not None:
        headers["Authorization"] = f"Bearer {lineage.token}"
    request = urllib.request.Request(lineage.url, event.encode(), headers)  # noqa: S310 - http or https, see above
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S):
        pass


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an error: urllib would send the token there, without the event."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no other request."""


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "unknown"
