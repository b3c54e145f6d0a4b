"""A pipeline as a value, declared in Python or read from TOML, and checked as far as possible without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pyarrow as pa
from msgspec import Meta

from penstock.dead_letter_limits import DeadLetterLimits
from penstock.errors import ConfigurationError
from penstock.keys import StreamKeys, check_name
from penstock.plugins import suggestion
from penstock.settings.binding import Checked, Document
from penstock.settings.masking import masked_text, secrets_of, without_secrets
from penstock.spark.format.columns import ENTRY
from penstock.spark.pipeline.files import joined, normalised
from penstock.spark.pipeline.sink_options import Delta, Iceberg, Parquet, Sink
from penstock.spark.pipeline.steps import (
    SOURCE,
    Positive,
    Rule,
    Step,
    Text,
    needed_for,
    number_of,
    trunk_of,
)
from penstock.spark.runtime.option_values import duration_s
from penstock.spark.source.options import SourceOptions
from penstock.times import milliseconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.events import EventSink
    from penstock.spark.pipeline.progress import Progress
    from penstock.spark.pipeline.running import Report

_MAX_PIPELINE_NAME = 128
_TIMESTAMP = "timestamp"
CORRUPT, WHY_CORRUPT = "_corrupt_record", "_corrupt_reason"
DECODE = "decode_error"  # the name under which rows that do not decode are counted
_GLOB = "*?["
_OWN = {
    "url": "url", "streams": "streams", "payload": "format", "format": "format", "payloadschema": "schema",
    "payloadmodel": "model", "payloadcolumn": "payload_column", "startingoffsets": "starting",
    "startingtimestamp": "starting", "group": "group", "maxrowspertrigger": "max_rows_per_batch",
}  # fmt: skip
_FIXED = ("mode", "view", "columns", "columnnameofcorruptrecord", "columnnameofcorruptreason", "filterpushdown")


@dataclass(frozen=True)
class Source(Checked):
    """The streams that a pipeline reads. `options` are further options of the format `redis_streams`.

    Each row has the `columns` of its entry and those of its payload. A payload that cannot be decoded, lacks a
    NOT NULL column of the schema, or for which one of the SQL conditions in `valid` is not true, goes to the
    dead letters of its stream.
    """

    url: Text = field(repr=False)
    streams: tuple[str, ...]
    format: Literal["json", "msgpack", "avro", "raw"] = "json"
    schema: str | None = None
    model: str | None = None
    payload_column: str | None = None
    valid: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("stream", "id", "timestamp", "key", "message_id", "headers", "data")
    starting: str = "earliest"
    max_rows_per_batch: Positive | None = None
    group: str | None = None
    dead_letter_limits: DeadLetterLimits = field(default_factory=DeadLetterLimits)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        if not self.streams:
            raise ConfigurationError("streams is empty: name at least one stream")
        if len(self.streams) > 1 and any(sign in name for name in self.streams for sign in _GLOB):
            raise ConfigurationError(f"streams={list(self.streams)} must be stream names, or a single glob pattern")
        if self.schema is not None and self.model is not None:
            raise ConfigurationError("set either schema or model, not both")
        for name in self.columns:
            if name not in ENTRY:
                raise ConfigurationError(f"columns: an entry has no column {name!r}; available: {', '.join(ENTRY)}")
        for name in self.options:
            if name.lower() in _OWN:
                raise ConfigurationError(f"options.{name}: set {_OWN[name.lower()]} = ... instead")
            if name.lower() in _FIXED:
                raise ConfigurationError(f"options.{name} is set by the pipeline: remove it")
        self.parsed()
        self.required_columns()

    def spark_options(self, starting: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the options for Spark's reader; `starting` overrides where the source begins."""
        begin = starting_options(self.starting) if starting is None else starting
        made = {**self.options, "url": self.url, "streams": ",".join(self.streams), **begin}
        given = {
            "payload": self.format, "payloadSchema": self.schema, "payloadModel": self.model, "group": self.group,
            "payloadColumn": self.payload_column, "maxRowsPerTrigger": self.max_rows_per_batch,
        }  # fmt: skip
        return {**made, **{name: str(value) for name, value in given.items() if value is not None}}

    def parsed(self) -> SourceOptions:
        """Return the options as the reader parses them; raise ConfigurationError if it rejects them."""
        options = SourceOptions.parse(self.spark_options())
        options.check_streaming()
        return options

    def required_columns(self) -> list[str]:
        """Return the columns of the payload that must not be null, quoted for SQL."""
        prefix = f"`{self.payload_column}`." if self.payload_column else ""
        return [f"{prefix}`{field.name}`" for field in self._payload_schema() if not field.nullable]

    def _payload_schema(self) -> pa.Schema:
        if self.schema is not None:
            from penstock.spark.payload.ddl import parse_ddl

            return parse_ddl(self.schema)
        if self.model is not None:
            from penstock.spark.payload.schemas import from_model

            return from_model(self.model)
        return pa.schema([])

    def dead_letters_of(self, stream: str) -> str:
        """Return the name of the dead-letter stream of a stream, both without the key prefix."""
        return StreamKeys(stream).default_dead_letters()


def starting_options(text: str) -> dict[str, str]:
    """Return the option for Spark's reader that says where to start: a time, or a value of `startingOffsets`."""
    ms = milliseconds_of(text)
    return {"startingOffsets": text} if ms is None else {"startingTimestamp": str(ms)}


@dataclass(frozen=True)
class Lineage(Checked):
    """Where OpenLineage events go: `url` is a server, or a file to which each event is appended as a line of JSON."""

    url: Text = field(repr=False)
    namespace: Text = "penstock"
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Pipeline(Checked):
    """Streams, the steps that change their rows, and the sinks that store them.

    `checkpoint` is the folder that holds the progress of the pipeline. `watermark` is how late an entry may be before
    windows close without it, by the column `timestamp` or the one in `watermark_column`. `dedup` are the columns by
    which rows are deduplicated within the watermark. `trigger` is how often a continuous run begins a batch; by
    default, as soon as the previous one is done. `restarts` is how often in a row a continuous run restarts after a
    transient failure. `secrets` are texts to mask in messages, in addition to the secrets in the other values.
    """

    name: str
    source: Source
    sinks: tuple[Sink, ...]
    checkpoint: Text
    steps: tuple[Step, ...] = ()
    rules: tuple[Rule, ...] = ()
    watermark: str | None = None
    watermark_column: str = _TIMESTAMP
    dedup: tuple[str, ...] = ()
    trigger: str = "0s"
    output_mode: Literal["append", "update"] = "append"
    max_lag: Annotated[int, Meta(ge=0)] | None = None
    restarts: Annotated[int, Meta(ge=0)] = 10
    lineage: Lineage | None = None
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        check_name("name", self.name, _MAX_PIPELINE_NAME)
        duration_s("trigger", self.trigger)
        self._check_watermark()
        self._check_rules()
        self._check_steps()
        self._check_sinks()

    def _check_rules(self) -> None:
        labels = [rule.label for rule in self.all_rules()]
        for label in labels:
            if labels.count(label) > 1 or label == DECODE:
                raise ConfigurationError(f"two rules are named {label!r}: give each its own name")

    def _check_watermark(self) -> None:
        if self.watermark is not None:
            duration_s("watermark", self.watermark)
        elif self.watermark_column != _TIMESTAMP:
            raise ConfigurationError(
                f"watermark_column={self.watermark_column!r} needs a watermark, the delay to allow for late "
                "rows: watermark = '10 minutes'"
            )
        elif self.dedup:
            raise ConfigurationError(
                "dedup needs a watermark, the time for which rows are remembered: watermark = '10 minutes'"
            )

    def _check_steps(self) -> None:
        known = [SOURCE]
        for number, step in enumerate(self.steps, 1):
            if step.from_ is not None and step.from_ not in known:
                raise ConfigurationError(
                    f"step {number}: from={step.from_!r} is not an earlier step: {suggestion(step.from_, known)}"
                )
            if step.name in known:
                raise ConfigurationError(f"two steps are named {step.name!r}: give each its own name")
            known += [] if step.name is None else [step.name]

    def _check_sinks(self) -> None:
        if not self.sinks:
            raise ConfigurationError("the pipeline has no sink: add one, for example with kind = 'parquet'")
        steps = [SOURCE, *(step.name for step in self.steps if step.name is not None)]
        names = [sink.name for sink in self.sinks]
        for sink in self.sinks:
            if sink.from_ is not None and sink.from_ not in steps:
                raise ConfigurationError(
                    f"sink {sink.name!r}: from={sink.from_!r} is not a step: {suggestion(sink.from_, steps)}"
                )
            if names.count(sink.name) > 1:
                raise ConfigurationError(
                    f"two sinks are named {sink.name!r}: give each its own name, such as name = "
                    f"'{sink.name}_2', and keep it, because a repeated batch is matched to a sink by name"
                )
        self._check_paths()

        reached = needed_for(self.steps, self.outputs().values())
        for number in range(1, len(self.steps) + 1):
            if number not in reached:
                raise ConfigurationError(
                    f"no sink reads step {number}: remove the step, or give it a name and a sink with from = that name"
                )

    def _check_paths(self) -> None:
        places = [(sink, place) for sink in self.sinks for place in _folders_of(sink)]
        for (one, outer), (other, inner) in permutations(places, 2):
            if one is other or (isinstance(one, Iceberg) and isinstance(other, Iceberg)):
                continue
            if outer != inner and inner.startswith(f"{outer.rstrip('/')}/"):
                # Readers of one would find files of the other, and its cleaning would delete them.
                raise ConfigurationError(
                    f"sink {other.name!r} writes to {inner!r}, inside the folder {outer!r} of sink {one.name!r}: use "
                    "folders that do not contain each other"
                )
            # A folder of a batch is known by its batch alone, so the second sink would find it written already.
            if outer == inner and not (isinstance(one, Delta) and isinstance(other, Delta)):
                raise ConfigurationError(
                    f"sinks {one.name!r} and {other.name!r} have the same path {outer!r}, but only Delta sinks may "
                    "share one: use another path, or combine the rows in a step, with UNION ALL, for one sink"
                )

    def outputs(self) -> dict[str, int]:
        """Return the number of the step whose rows each sink gets; 0 is the source."""
        return {sink.name: number_of(self.steps, sink.from_) for sink in self.sinks}

    @property
    def trunk(self) -> int:
        """The last step that all sinks share. Up to it, rows are a stream; after it, each batch is computed alone."""
        return trunk_of(self.steps, self.outputs().values())

    def all_rules(self) -> list[Rule]:
        """Return what rows of the source must satisfy: the schema, the conditions in `valid`, and the rules."""
        required = [Rule(f"{name} IS NOT NULL") for name in self.source.required_columns()]
        rules = [*required, *map(Rule, self.source.valid), *self.rules]
        # A condition may contain the value of a variable, and its label is in progress and metrics.
        return [replace(rule, name=self.masked(rule.label)) for rule in rules]

    @property
    def trigger_s(self) -> float:
        """The shortest time between the starts of two batches, in seconds."""
        return duration_s("trigger", self.trigger)

    def masked(self, text: str) -> str:
        """Return a text without passwords and the secrets of this pipeline."""
        parts = [asdict(part) for part in (self.source, *self.sinks)]
        parts += [{"spark": self.spark}, {} if self.lineage is None else asdict(self.lineage)]
        found = {*self.secrets, *(secret for part in parts for secret in secrets_of(part))}
        return masked_text(without_secrets(text, found))

    def validate(self, spark: SparkSession) -> None:
        """Check the pipeline without writing anything; raise PipelineInvalid with every problem."""
        from penstock.spark.pipeline.validation import validate

        validate(self, spark)

    def run(
        self,
        spark: SparkSession,
        *,
        once: bool = True,
        tell: Callable[[Progress], None] | None = None,
        on_event: EventSink | None = None,
    ) -> Report:
        """Process everything available (once), or run until SIGTERM or SIGINT; `tell` is called after each batch.

        Raises PipelineInvalid or PipelineBusy before anything starts, PipelineFailed when a batch fails.
        """
        from penstock.spark.pipeline.running import Run

        return Run(self, spark, once=once, tell=tell, on_event=on_event).run()

    @classmethod
    def from_file(
        cls, path: str | Path, *, profile: str | None = None, environment: Mapping[str, str] | None = None
    ) -> Pipeline:
        """Read a pipeline from a TOML file; raise ConfigurationError with the file and line of a mistake.

        `profile` names a table [profile.<name>] whose values override those of the file. ${NAME} is a variable of
        `environment`, by default that of the process.
        """
        from penstock.spark.pipeline.spec_file import SpecFile

        return SpecFile(Document.read(Path(path)), profile, environment).pipeline()

    @classmethod
    def from_toml(
        cls,
        text: str,
        name: str = "pipeline",
        *,
        profile: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Read a pipeline from TOML; errors call the text `name`."""
        from penstock.spark.pipeline.spec_file import SpecFile

        return SpecFile(Document(name, text), profile, environment).pipeline()


def _folders_of(sink: Sink) -> list[str]:
    """Return the folders of a sink's files: two for an Iceberg table, for a catalogue uses either of two layouts."""
    if isinstance(sink, Parquet | Delta):
        return [normalised(sink.path)]
    if not isinstance(sink, Iceberg) or "/" not in (warehouse := sink.catalog.get("warehouse", "")):
        return []
    namespace, _, name = sink.table.rpartition(".")
    return [normalised(joined(warehouse, folder, name)) for folder in (namespace, f"{namespace}.db")]
