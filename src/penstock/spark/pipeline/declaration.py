"""A pipeline as a value: declared in Python or read from TOML, and checked as far as it can be without Spark."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.spark.pipeline.checks import check_choice, check_text, duration_s, take_texts, take_values
from penstock.spark.pipeline.sinks import SINKS, Sink
from penstock.spark.pipeline.source import Source
from penstock.spark.pipeline.steps import STEPS, Step
from penstock.spark.pipeline.tables import Places, build, refuse_unknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.progress import Progress
    from penstock.spark.pipeline.running import Report

_TABLES = ("source", "step", "sink")
_MAX_PIPELINE_NAME = 128
_TIMESTAMP = "timestamp"


@dataclass(frozen=True)
class Pipeline:
    """Streams, what happens to their rows, and where these go.

    `checkpoint` is the folder in which the pipeline keeps how far it has come. `watermark` is how late an entry may be
    before windows close without it, by the column `timestamp` or the one in `watermark_column`. `dedup` are columns
    of which, within the watermark, the first row counts. `trigger` is how often a batch begins when it runs
    continuously, as soon as the last one is done by default.
    """

    name: str
    source: Source
    sinks: tuple[Sink, ...]
    checkpoint: str
    steps: tuple[Step, ...] = ()
    watermark: str | None = None
    watermark_column: str = _TIMESTAMP
    dedup: tuple[str, ...] = ()
    trigger: str = "0s"
    output_mode: str = "append"
    max_lag: int | None = None
    spark: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        take_texts(self, "dedup")
        take_values(self, "steps", tuple(STEPS.values()))
        take_values(self, "sinks", tuple(SINKS.values()))
        check_name("name", self.name, _MAX_PIPELINE_NAME)
        check_text("checkpoint", self.checkpoint)
        check_choice("output_mode", self.output_mode, ("append", "update"))
        duration_s("trigger", self.trigger)
        if self.max_lag is not None and self.max_lag < 0:
            raise ConfigurationError(f"max_lag = {self.max_lag} must be 0 or more")
        self._check_watermark()
        self._check_sinks()

    def _check_watermark(self) -> None:
        if self.watermark is not None:
            duration_s("watermark", self.watermark)
        elif self.watermark_column != _TIMESTAMP:
            raise ConfigurationError(
                f"watermark_column = {self.watermark_column!r} needs a watermark, how late a row may be: watermark = "
                "'10 minutes'"
            )
        elif self.dedup:
            raise ConfigurationError(
                "dedup needs a watermark, for how long a row is remembered: watermark = '10 minutes'"
            )

    def _check_sinks(self) -> None:
        if not self.sinks:
            raise ConfigurationError("there is no sink: say where the rows go, for example with kind = 'parquet'")
        names = [sink.name for sink in self.sinks]
        for name in names:
            check_text("name of a sink", name)
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"two sinks are called {name!r}: give each a name of its own, name = '{name}_2', and keep it, for "
                    "a sink is known by its name when a batch is repeated"
                )

    @property
    def is_stateful(self) -> bool:
        """Whether Spark is known to keep state for it; a SQL step may make it so as well."""
        return bool(self.dedup)

    @property
    def trigger_s(self) -> float:
        """How often a batch begins at most, in seconds."""
        return duration_s("trigger", self.trigger)

    def validate(self, spark: SparkSession) -> None:
        """Find what would make it fail; raise PipelineInvalid with every fault. Nothing is written."""
        from penstock.spark.pipeline.validation import validate

        validate(self, spark)

    def run(self, spark: SparkSession, *, once: bool = True, tell: Callable[[Progress], None] | None = None) -> Report:
        """Run until all is read (once), or until SIGTERM or SIGINT; `tell` is called after each batch.

        Raises PipelineInvalid or PipelineBusy before anything is started, PipelineFailed when a batch fails.
        """
        from penstock.spark.pipeline.running import Run

        return Run(self, spark, once=once, tell=tell).run()

    @classmethod
    def from_file(cls, path: str | Path) -> Pipeline:
        """Read a pipeline from a TOML file; raise ConfigurationError with file and line of what is wrong."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{path} is no text in UTF-8") from None
        return cls.from_toml(text, str(path))

    @classmethod
    def from_toml(cls, text: str, name: str = "pipeline") -> Pipeline:
        """Read a pipeline from TOML; `name` is what errors call the text."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{name} is no TOML: {error}") from None
        return _from_document(document, Places(name, text))


def _from_document(document: dict[str, Any], places: Places) -> Pipeline:
    fields = [name for name in Pipeline.__dataclass_fields__ if name not in ("steps", "sinks")]
    refuse_unknown(document, [*fields, "step", "sink"], "", places)
    if "source" not in document:
        raise ConfigurationError(f"{places.of('')} lacks the table [source]")
    source = build(Source, document["source"], "source", places)
    steps = [_step(table, f"step {number}", places) for number, table in _listed(document, "step", places)]
    sinks = [_sink(table, f"sink {number}", places) for number, table in _listed(document, "sink", places)]
    rest = {key: value for key, value in document.items() if key not in _TABLES}
    checked = build(_Rest, rest, "", places)
    values = {key: getattr(checked, key) for key in rest}
    try:
        return Pipeline(source=source, steps=tuple(steps), sinks=tuple(sinks), **values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{places.of('')}: {error}") from None


@dataclass(frozen=True)
class _Rest:
    """The keys above all tables, with the types that they must have."""

    name: str
    checkpoint: str
    watermark: str | None = None
    watermark_column: str = _TIMESTAMP
    dedup: tuple[str, ...] = ()
    trigger: str = "0s"
    output_mode: str = "append"
    max_lag: int | None = None
    spark: Mapping[str, str] = field(default_factory=dict)


def _listed(document: dict[str, Any], key: str, places: Places) -> list[tuple[int, Any]]:
    tables = document.get(key, [])
    if not isinstance(tables, list):
        raise ConfigurationError(f"{places.of(key)} must be written as [[{key}]], since there may be several")
    return list(enumerate(tables, 1))


def _step(table: Any, name: str, places: Places) -> Step:
    kinds = [kind for kind in STEPS if isinstance(table, Mapping) and kind in table]
    if not kinds and isinstance(table, Mapping):
        refuse_unknown(table, [*STEPS, "name", "output", "batch_size", "max_attempts", "timeout"], name, places)
    if len(kinds) != 1:
        raise ConfigurationError(f"{places.of(name)} needs one of the keys {', '.join(STEPS)}")
    return build(STEPS[kinds[0]], table, name, places)


def _sink(table: Any, name: str, places: Places) -> Sink:
    kind = table.get("kind") if isinstance(table, Mapping) else None
    if not isinstance(kind, str):
        raise ConfigurationError(f"{places.of(name)} needs a key kind, one of {', '.join(SINKS)}")
    if kind not in SINKS:
        raise ConfigurationError(f"{places.of(name, 'kind')} kind = {kind!r} must be one of {', '.join(SINKS)}")
    return build(SINKS[kind], table, name, places, aside=("kind",))
