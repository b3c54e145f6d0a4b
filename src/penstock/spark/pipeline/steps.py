"""What happens to the rows of a pipeline: rules, SQL, a function of DataFrames, or the workers' handler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from penstock.errors import ConfigurationError
from penstock.settings.binding import Checked
from penstock.spark.payload.ddl import parse_ddl
from penstock.spark.runtime import code_shipping
from penstock.spark.runtime.option_values import duration_s

INPUT, SOURCE = "input", "source"
_MOST_TIMEOUT_S = 86_400.0
Text: TypeAlias = Annotated[str, Meta(pattern=r"\S")]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class Rule(Checked):
    """An SQL condition that rows of the source must satisfy; its `name` is the condition by default.

    A row for which it is false or null is counted, and becomes a dead letter, passes with a warning, or fails the
    batch.
    """

    check: Text
    action: Literal["dead_letter", "warn", "fail"] = "dead_letter"
    name: Text | None = None

    @property
    def label(self) -> str:
        """The name of the rule in counts and messages."""
        return self.name or self.check


@dataclass(frozen=True, kw_only=True)
class _Step(Checked):
    """What all steps have in common: `from`, the step whose rows it reads, by default the previous one."""

    from_: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        name = getattr(self, "name", None)
        if name is not None and (not name.isidentifier() or name.lower() in (INPUT, SOURCE)):
            raise ConfigurationError(
                f"name={name!r} must be a valid SQL table name other than {INPUT!r} and {SOURCE!r}"
            )


@dataclass(frozen=True)
class Sql(_Step):
    """A query over the table `input`, the rows of the previous step; earlier steps are tables with their names."""

    sql: Text
    name: str | None = None


@dataclass(frozen=True)
class Function(_Step):
    """A function that takes a DataFrame and returns one: `python = "module:function"`."""

    python: str
    name: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        check_function_path("python", self.python)


@dataclass(frozen=True)
class Handler(_Step):
    """The workers' batch handler, async or plain, run on the executors: `handler = "module:function"`.

    It takes lists of up to `batch_size` StreamMessage of one stream and returns the ids that are done. The others, or
    all of them if it raises, are retried one by one, up to `max_attempts` attempts in total; then they become dead
    letters. With `output`, columns as DDL, it returns a mapping of ids to mappings of these columns, which are added
    to the row. A call that takes longer than the duration `timeout` has failed.
    """

    handler: str
    name: str | None = None
    output: str | None = None
    batch_size: Positive = 100
    max_attempts: Positive = 3
    timeout: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        check_function_path("handler", self.handler)
        if self.output is not None:
            parse_ddl(self.output)
        if self.timeout is not None:
            check_timeout("timeout", self.timeout)

    @property
    def timeout_s(self) -> float | None:
        """The timeout of a call, in seconds."""
        return None if self.timeout is None else duration_s("timeout", self.timeout)


Step: TypeAlias = Sql | Function | Handler
STEPS: dict[str, type[Step]] = {"sql": Sql, "python": Function, "handler": Handler}


def kind_of(step: Step) -> str:
    """Return the key that identifies the kind of a step."""
    return next(kind for kind, cls in STEPS.items() if isinstance(step, cls))


def functions_of(steps: Iterable[Step]) -> list[str]:
    """Return the paths of the functions that steps call."""
    named = (getattr(step, kind, None) for step in steps for kind in ("python", "handler"))
    return [path for path in named if path is not None]


def number_of(steps: Sequence[Step], name: str | None) -> int:
    """Return the number of the step with a name, of the last step for None; 0 is the source."""
    if name is None:
        return len(steps)
    return 0 if name == SOURCE else next(number for number, step in enumerate(steps, 1) if step.name == name)


def inputs_of(steps: Sequence[Step], number: int) -> set[int]:
    """Return the steps whose rows a step reads. Any word in SQL that is the name of a step counts."""
    step = steps[number - 1]
    given = number - 1 if step.from_ is None else number_of(steps, step.from_)
    if not isinstance(step, Sql):
        return {given}
    words = {word.lower() for word in re.findall(r"\w+", step.sql)}
    named = {before for before, each in enumerate(steps[: number - 1], 1) if each.name and each.name.lower() in words}
    return named | {given} if INPUT in words else named


def needed_for(steps: Sequence[Step], outputs: Iterable[int]) -> set[int]:
    """Return the outputs and all steps that they depend on."""
    found: set[int] = set()
    waiting = set(outputs)
    while waiting:
        number = waiting.pop()
        found.add(number)
        waiting |= inputs_of(steps, number) - found if number else set()
    return found


def trunk_of(steps: Sequence[Step], outputs: Iterable[int]) -> int:
    """Return the last step from whose rows alone all outputs can be computed; 0 is the source."""
    ends = set(outputs)
    needed = needed_for(steps, ends)
    for trunk in range(min(ends), 0, -1):
        if all(inputs_of(steps, number) <= set(range(trunk, number)) for number in needed if number > trunk):
            return trunk
    return 0


def check_timeout(key: str, value: str) -> float:
    """Return the timeout of a handler in seconds; raise ConfigurationError if it is invalid."""
    seconds = duration_s(key, value)
    if not 0 < seconds <= _MOST_TIMEOUT_S:
        raise ConfigurationError(f"{key}={value!r} must be positive and at most one day")
    return seconds


def check_function_path(key: str, path: str) -> None:
    """Raise ConfigurationError unless a path has the form module:function."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(f"{key}={path!r} must be written as 'package.module:function'")


def imported(key: str, path: str) -> Callable[..., Any]:
    """Import the function at a path; raise ConfigurationError if that fails."""
    found = code_shipping.imported(f"{key}={path!r}", path)
    if not callable(found):
        raise ConfigurationError(f"{key}={path!r} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]
