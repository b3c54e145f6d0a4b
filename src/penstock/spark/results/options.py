"""The options of the format: which back-end, where it is, and which of its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.settings import ResultBackendSettings, Settings
from penstock.spark.archive.state import LAST_MS
from penstock.spark.results.filter import ResultFilter
from penstock.spark.results.scans import (
    FSResultScan,
    PartitionSizes,
    PostgresResultScan,
    RedisResultScan,
    ResultScan,
    S3ResultScan,
)
from penstock.spark.runtime.option_values import Options
from penstock.spark.source.options import milliseconds

FORMAT = "penstock_results"
_BACKENDS = ("fs", "postgres", "s3", "redis")
# Spelled as Spark spells secrets, so that it hides them wherever it shows options.
_KEYS = {"accessKeyId": "access_key_id", "secretAccessKey": "secret_access_key", "sessionToken": "session_token"}
_OF_A_STREAM = ("url", "passwordFile", "passwordEnv", "failOnDataLoss", "retryTimeout", "fetchSize")


@dataclass(frozen=True)
class ResultsOptions:
    """Everything that can be said about reading results."""

    scan: ResultScan
    matching: ResultFilter
    sizes: PartitionSizes
    filter_pushdown: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ResultsOptions:
        """Read the options; raise ConfigurationError for what is unknown, wrong or contradictory."""
        options = Options(given, FORMAT)
        made = cls(
            scan=_scan(options),
            matching=_filter(options),
            sizes=PartitionSizes(
                options.whole("minPartitions") or 1, options.whole("maxRowsPerPartition") or PartitionSizes.max_rows
            ),
            filter_pushdown=options.flag("filterPushdown", default=False),
        )
        options.refuse_unknown()
        return made


def _filter(options: Options) -> ResultFilter:
    kind = options.text("kind")
    since, ending = _moment(options, "startingTimestamp"), _moment(options, "endingTimestamp")
    return ResultFilter(
        kinds=None if kind is None else frozenset([check_name("option kind", kind)]),
        since=since,
        until=None if ending is None else ending - timedelta(microseconds=1),
    )


def _moment(options: Options, name: str) -> datetime | None:
    text = options.text(name)
    if text is None:
        return None
    # Results have no time beyond the calendar, whatever entries of streams have.
    return datetime.fromtimestamp(min(milliseconds(f"option {name}", text), LAST_MS) / 1000, UTC)


def _scan(options: Options) -> ResultScan:
    config, backend = options.text("config"), options.text("backend")
    if (config is None) == (backend is None):
        raise ConfigurationError(
            f"say where the results are: option backend={', '.join(_BACKENDS[:-1])} or {_BACKENDS[-1]}, or option "
            "config with the path of a penstock.toml; exactly one of them"
        )
    if config is not None:
        return scan_of(Settings.load(config).result_backend)
    chosen = options.choice("backend", _BACKENDS, "fs")
    if chosen == "redis":
        return _of_queue(options)
    if chosen == "fs":
        return scan_of(ResultBackendSettings("fs", root=_place(options, "root")))
    timeout = {"timeout_s": options.duration("timeout", timedelta(seconds=30)).total_seconds()}
    if chosen == "postgres":
        return scan_of(ResultBackendSettings("postgres", options={"dsn": _place(options, "url"), **timeout}))
    return scan_of(
        ResultBackendSettings("s3", options={"url": _place(options, "url"), **timeout, **_s3_options(options)})
    )


def _place(options: Options, name: str) -> str:
    place = options.text(name, "path")
    if not place:
        raise ConfigurationError(f"option {name} is missing: say where the results are")
    return place


def _s3_options(options: Options) -> dict[str, str]:
    given = {spelled: options.text(name) for name, spelled in _KEYS.items()}
    given |= {name: options.text(name) for name in ("endpoint", "region")}
    known = {name: value for name, value in given.items() if value is not None}
    return {**known, **options.starting_with("s3.")}


def _of_queue(options: Options) -> RedisResultScan:
    queue = options.text("queue", "path") or "penstock"
    given = {name: value for name in _OF_A_STREAM if (value := options.text(name)) is not None}
    given |= {f"redis.{name}": value for name, value in options.starting_with("redis.").items()}
    return RedisResultScan(queue, given)


def scan_of(settings: ResultBackendSettings) -> ResultScan:
    """Return where the results of a back-end are read from; raise ConfigurationError for one that is not ours."""
    if settings.provider == "fs":
        return FSResultScan(str(Path(str(settings.options.get("root", settings.root))).absolute()))
    if settings.provider == "postgres":
        from penstock.results import PostgresBackend

        PostgresBackend.from_settings(settings)  # says what is wrong with it; nothing is connected yet
        return PostgresResultScan(**settings.options)
    if settings.provider == "s3":
        from penstock.results import S3Backend

        S3Backend.from_settings(settings)
        return S3ResultScan(settings)
    raise ConfigurationError(
        f"the results of back-end {settings.provider!r} cannot be read as a table: those of "
        f"{', '.join(_BACKENDS)} can; of others, use penstock.results.results_table()"
    )
