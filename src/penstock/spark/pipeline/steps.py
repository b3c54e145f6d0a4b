"""What happens to the rows of a pipeline: SQL, a function of DataFrames, or the handler of the workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import ConfigurationError
from penstock.spark.payload.schema import parse_ddl
from penstock.spark.pipeline.checks import check_function_path, check_positive, check_text, check_timeout, duration_s

INPUT = "input"


@dataclass(frozen=True)
class Sql:
    """A query over the rows so far, which it finds as the table `input`; those of an earlier step under its `name`."""

    sql: str
    name: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_text("sql", self.sql)
        _check_name(self.name)


@dataclass(frozen=True)
class Function:
    """A function that is given a DataFrame and returns one: `python = "module:function"`."""

    python: str
    name: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_function_path("python", self.python)
        _check_name(self.name)


@dataclass(frozen=True)
class Handler:
    """The batch handler of the workers, async or plain, on the executors: `handler = "module:function"`.

    It is given lists of up to `batch_size` StreamMessage of one stream and returns the ids that are done. Others, and
    all if it raises, are tried again one by one, up to `max_attempts` times in all; then they go to the dead letters.
    With `output`, columns as DDL, it returns a mapping of ids to mappings of these columns, which are added to the row.
    A call that takes longer than `timeout`, a length of time, has failed.
    """

    handler: str
    name: str | None = None
    output: str | None = None
    batch_size: int = 100
    max_attempts: int = 3
    timeout: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_function_path("handler", self.handler)
        check_positive("batch_size", self.batch_size)
        check_positive("max_attempts", self.max_attempts)
        _check_name(self.name)
        if self.output is not None:
            parse_ddl(self.output)
        if self.timeout is not None:
            check_timeout("timeout", self.timeout)

    @property
    def timeout_s(self) -> float | None:
        """How long a call may take, in seconds."""
        return None if self.timeout is None else duration_s("timeout", self.timeout)


Step: TypeAlias = Sql | Function | Handler
STEPS: dict[str, type[Step]] = {"sql": Sql, "python": Function, "handler": Handler}


def functions_of(steps: Iterable[Step]) -> list[str]:
    """Return the functions that steps name."""
    named = (getattr(step, kind, None) for step in steps for kind in ("python", "handler"))
    return [path for path in named if path is not None]


def _check_name(name: str | None) -> None:
    if name is not None and (not name.isidentifier() or name.lower() == INPUT):
        raise ConfigurationError(f"name = {name!r} must be a word that SQL can use for a table, and not {INPUT!r}")
