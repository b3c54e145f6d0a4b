"""The options of the format: which back-end, where it is, and which of its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.settings import ResultBackendSettings, Settings
from penstock.spark.archive.layout import LAST_MS
from penstock.spark.option_values import Options
from penstock.spark.reading.options import milliseconds
from penstock.spark.results.fs_shelf import FSShelf
from penstock.spark.results.postgres_shelf import PostgresShelf
from penstock.spark.results.redis_shelf import RedisShelf
from penstock.spark.results.s3_shelf import S3Shelf
from penstock.spark.results.shelf import Shelf, Sizes
from penstock.spark.results.wanted import Wanted

FORMAT = "penstock_results"
_BACKENDS = ("fs", "postgres", "s3", "redis")
# Spelled as Spark spells secrets, so that it hides them wherever it shows options.
_KEYS = {"accessKeyId": "access_key_id", "secretAccessKey": "secret_access_key", "sessionToken": "session_token"}
_OF_A_STREAM = ("url", "passwordFile", "passwordEnv", "failOnDataLoss", "retryTimeout", "fetchSize")


@dataclass(frozen=True)
class ResultsOptions:
    """Everything that can be said about reading results."""

    shelf: Shelf
    wanted: Wanted
    sizes: Sizes
    filter_pushdown: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ResultsOptions:
        """Read the options; raise ConfigurationError for what is unknown, wrong or contradictory."""
        options = Options(given, FORMAT)
        made = cls(
            shelf=_shelf(options),
            wanted=_wanted(options),
            sizes=Sizes(options.whole("minPartitions") or 1, options.whole("maxRowsPerPartition") or Sizes.max_rows),
            filter_pushdown=options.flag("filterPushdown", default=False),
        )
        options.refuse_unknown()
        return made


def _wanted(options: Options) -> Wanted:
    kind = options.text("kind")
    since, ending = _moment(options, "startingTimestamp"), _moment(options, "endingTimestamp")
    return Wanted(
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


def _shelf(options: Options) -> Shelf:
    config, backend = options.text("config"), options.text("backend")
    if (config is None) == (backend is None):
        raise ConfigurationError(
            f"say where the results are: option backend={', '.join(_BACKENDS[:-1])} or {_BACKENDS[-1]}, or option "
            "config with the path of a penstock.toml; exactly one of them"
        )
    if config is not None:
        return shelf_of(Settings.load(config).result_backend)
    chosen = options.choice("backend", _BACKENDS, "fs")
    if chosen == "redis":
        return _of_queue(options)
    if chosen == "fs":
        return shelf_of(ResultBackendSettings("fs", root=_place(options, "root")))
    timeout = {"timeout_s": options.duration("timeout", timedelta(seconds=30)).total_seconds()}
    if chosen == "postgres":
        return shelf_of(ResultBackendSettings("postgres", options={"dsn": _place(options, "url"), **timeout}))
    return shelf_of(
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


def _of_queue(options: Options) -> RedisShelf:
    queue = options.text("queue", "path") or "penstock"
    given = {name: value for name in _OF_A_STREAM if (value := options.text(name)) is not None}
    given |= {f"redis.{name}": value for name, value in options.starting_with("redis.").items()}
    return RedisShelf(queue, given)


def shelf_of(settings: ResultBackendSettings) -> Shelf:
    """Return where the results of a back-end are read from; raise ConfigurationError for one that is not ours."""
    if settings.provider == "fs":
        return FSShelf(str(Path(str(settings.options.get("root", settings.root))).absolute()))
    if settings.provider == "postgres":
        from penstock.results import PostgresBackend

        PostgresBackend.from_settings(settings)  # says what is wrong with it; nothing is connected yet
        return PostgresShelf(**settings.options)
    if settings.provider == "s3":
        from penstock.results import S3Backend

        S3Backend.from_settings(settings)
        return S3Shelf(settings)
    raise ConfigurationError(
        f"the results of back-end {settings.provider!r} cannot be read as a table: those of "
        f"{', '.join(_BACKENDS)} can; of others, use penstock.results.results_table()"
    )
