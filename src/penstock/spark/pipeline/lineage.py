"""OpenLineage events: what a run of a pipeline reads and writes, when it begins and how it ends."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from penstock.spark.pipeline.sink_options import Delta, Iceberg, Jdbc, Parquet, Postgres, RedisStreams, Results, Sink
from penstock.spark.pipeline.spec import Lineage, Pipeline

logger = logging.getLogger("penstock.spark")
_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACET = "https://openlineage.io/spec/facets"
_PATIENCE_S = 5.0


@dataclass
class LineageRun:
    """The events of one run. One that cannot be delivered is logged, and changes nothing."""

    pipeline: Pipeline
    is_continuous: bool
    run_id: str = field(default_factory=lambda: str(uuid4()))

    def emit(self, kind: str, rows: int | None = None, error: str | None = None) -> None:
        """Tell of START, RUNNING, COMPLETE, ABORT or FAIL, if the pipeline wants it told."""
        lineage = self.pipeline.lineage
        if lineage is None:
            return
        try:
            _deliver(lineage, json.dumps(self.event(kind, lineage, rows, error)))
        except (OSError, ValueError) as failure:
            reason = self.pipeline.masked(str(failure))
            logger.warning("pipeline %s: the OpenLineage event %s is lost: %s", self.pipeline.name, kind, reason)

    def event(self, kind: str, lineage: Lineage, rows: int | None = None, error: str | None = None) -> dict[str, Any]:
        """Return an event as OpenLineage has it."""
        producer = f"https://pypi.org/project/penstock/{_version()}"
        processing = "STREAMING" if self.is_continuous else "BATCH"
        job = {"processingType": processing, "integration": "PENSTOCK", "jobType": "PIPELINE"}
        facets: dict[str, Any] = {}
        if rows is not None:
            facets["penstock_progress"] = _facet(producer, "RunFacet", rows=rows)
        if error is not None:
            message = {"message": self.pipeline.masked(error), "programmingLanguage": "PYTHON"}
            facets["errorMessage"] = _facet(producer, "1-0-1/ErrorMessageRunFacet.json", **message)
        return {
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


def _facet(producer: str, schema: str, **values: Any) -> dict[str, Any]:
    return {"_producer": producer, "_schemaURL": f"{_FACET}/{schema}", **values}


def _dataset(namespace: str, name: str) -> dict[str, Any]:
    return {"namespace": namespace, "name": name}


def _streams(url: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in names:
        yield f"redis://{_host(url, 6379)}", name


def _written(sink: Sink, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield the data sets of a sink, named as OpenLineage names those of its kind."""
    if isinstance(sink, Parquet | Delta):
        parts = urlsplit(sink.path)
        store = f"{parts.scheme.replace('s3a', 's3')}://{parts.netloc}" if parts.netloc else "file"
        yield store, parts.path.lstrip("/") if parts.netloc else parts.path
    elif isinstance(sink, Iceberg):
        yield sink.catalog.get("uri", sink.spark_catalog or "iceberg"), sink.table
    elif isinstance(sink, Postgres):
        database = urlsplit(sink.dsn).path.lstrip("/") or "postgres"
        schema_and_table = sink.table if "." in sink.table else f"public.{sink.table}"
        yield f"postgres://{_host(sink.dsn, 5432)}", f"{database}.{schema_and_table}"
    elif isinstance(sink, Jdbc):
        yield f"jdbc:{_host(sink.url.removeprefix('jdbc:'), None)}", sink.table
    elif isinstance(sink, RedisStreams):
        yield from _streams(sink.url or pipeline.source.url, (sink.stream or "*",))
    elif isinstance(sink, Results):
        yield f"penstock:{sink.backend}", sink.result_kind


def _host(url: str, port: int | None) -> str:
    """Return host and port of a URL: never its user, and not more of it."""
    parts = urlsplit(url)
    try:
        found = parts.port or port
    except ValueError:
        found = port
    return f"{parts.hostname or 'localhost'}" + (f":{found}" if found else "")


def _deliver(lineage: Lineage, event: str) -> None:
    if not lineage.url.startswith(("http://", "https://")):
        with Path(lineage.url.removeprefix("file://")).open("a", encoding="utf-8") as file:
            file.write(event + "\n")
        return
    headers = {"Content-Type": "application/json"}
    if lineage.token is not None:
        headers["Authorization"] = f"Bearer {lineage.token}"
    request = urllib.request.Request(lineage.url, event.encode(), headers)  # noqa: S310 - http or https, see above
    with urllib.request.urlopen(request, timeout=_PATIENCE_S):  # noqa: S310 - likewise
        pass


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "unknown"
