"""What holds for every command: where it looks, how much it says, and the code that it ends with.

0 is success, 1 a failure, 2 a mistake in the arguments or the settings, 3 something that does not exist or is not
healthy, 130 Ctrl-C.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Any, TypeVar

import typer

from penstock.cli import shown
from penstock.cli.options import FROM_SETTINGS, ConfigFile, Quiet, Url, Verbose
from penstock.errors import (
    ConfigurationError,
    GroupLost,
    NotFound,
    PenstockError,
    SettingsError,
    StreamMissing,
    WrongType,
)
from penstock.keys import is_utf8
from penstock.ops.model import Page
from penstock.protection import Protection
from penstock.settings import Given, Settings, TaskQueueSettings, flag
from penstock.sync.ops import Inspector
from penstock.sync.providers import make_task_queue
from penstock.sync.redis.client import StreamClient
from penstock.sync.tasks import RedisTaskQueue

logger = logging.getLogger("penstock.cli")
FAILED, USAGE, NOT_FOUND = 1, 2, 3
UNHEALTHY = NOT_FOUND
_PAGE = 200
EVERYTHING = 1 << 62  # a limit that nothing reaches
_T = TypeVar("_T")


def load_settings(url: str, config: Path | None, flags: Iterable[Given] = ()) -> Settings:
    """Return the settings, with what the options of a command say above file and environment."""
    given = [flag("task_queue.url", url, "--url or PENSTOCK_URL")] if url != FROM_SETTINGS else []
    return Settings.load(config, flags=[*given, *flags])


@dataclass(frozen=True)
class Server:
    """The server that a command is about, as --url, PENSTOCK_URL and the settings say, in this order."""

    settings: Settings

    @classmethod
    def from_options(cls, url: Url = FROM_SETTINGS, config: ConfigFile = None) -> Server:
        """Read the settings; what the command line says stands above file and environment."""
        settings = load_settings(url, config)
        [found] = [each for each in settings.all if each.name == "task_queue.url"]
        logger.debug("the server is %s (%s)", found.shown, found.origin)
        return cls(settings)

    @property
    def url(self) -> str:
        """Where the server is."""
        return self.settings.task_queue.url

    @property
    def protection(self) -> Protection | None:
        """The keys that sign or encrypt payloads, if the settings name their file."""
        file = self.settings.task_queue.protection_file
        return None if file is None else Protection.from_file(file)

    @property
    def spark_options(self) -> dict[str, str]:
        """The server and the file of keys as options for Spark."""
        file = self.settings.task_queue.protection_file
        return {"url": self.url} | ({} if file is None else {"protectionFile": str(file)})

    def client(self) -> StreamClient:
        """Return a client, to be closed by the caller."""
        return StreamClient.from_url(self.url, protection=self.protection)

    def inspector(self) -> Inspector:
        """Return an Inspector, to be closed by the caller."""
        return Inspector.from_url(self.url, protection=self.protection)

    def task_queue_settings(self, name: str = FROM_SETTINGS, **changes: Any) -> TaskQueueSettings:
        """Return the settings of a task queue, with what the options of a command change."""
        table = self.settings.task_queue
        if table.provider == "stub":
            raise SettingsError(
                "task_queue.provider is 'stub', a queue in the memory of one process that other processes "
                "cannot reach: set it to 'redis'"
            )
        options = {**table.options, "name": name} if name else table.options
        return replace(table, options=options, **{key: value for key, value in changes.items() if value is not None})

    def queue_name(self, name: str = FROM_SETTINGS) -> str:
        """Return the name of the task queue: as given, or as the settings say."""
        return str(self.task_queue_settings(name).options.get("name", "penstock"))

    def task_queue(self, name: str = FROM_SETTINGS) -> RedisTaskQueue:
        """Return a task queue, to be closed by the caller."""
        table = self.task_queue_settings(name)
        queue = make_task_queue(table)
        if not isinstance(queue, RedisTaskQueue):
            raise SettingsError(
                f"task_queue.provider is {table.provider!r}, but this command supports only task queues in Redis"
            )
        return queue


def paged(read: Callable[[int, str], Page[_T]], limit: int) -> Iterator[_T]:
    """Yield the items of a list, page by page, up to a limit; `read` takes the size of a page and a cursor."""
    cursor = ""
    while limit > 0:
        page = read(min(limit, _PAGE), cursor)
        yield from page.items[:limit]
        limit, cursor = limit - len(page.items), page.cursor
        if not cursor:
            return


def listed(read: Callable[[int, str], Page[_T]], limit: int) -> Iterator[_T]:
    """Yield like paged(), and say so if there is more than the limit."""
    for number, item in enumerate(paged(read, limit + 1)):
        if number == limit:
            shown.say(f"more than {limit:,} found: raise --limit to see all")
            return
        yield item


def must_match(inspector: Inspector, pattern: str) -> None:
    """Raise NotFound if a pattern is a plain name that no stream has: a probe with a typo must not be healthy."""
    if not any(char in pattern for char in "*?["):
        inspector.streams.info(pattern, memory=False)


def match_prefix(prefix: str, known: Iterable[str], what: str) -> str:
    """Return the id that begins with what the user has given; raise NotFound, or ConfigurationError if several do."""
    found = sorted({each for each in known if each.startswith(prefix)}) if prefix else []
    if prefix in found or len(found) == 1:
        return prefix if prefix in found else found[0]
    if found:
        raise ConfigurationError(
            f"{prefix!r} matches {len(found)} ids, such as {found[0]} and {found[1]}: give more characters"
        )
    raise NotFound(f"no {what} matches {prefix!r}")


def group(meaning: str, **options: Any) -> typer.Typer:
    """Return a group of commands."""
    return typer.Typer(help=meaning, no_args_is_help=True, **options)


def command(
    app: typer.Typer, name: str | None = None, *, logs: int = logging.WARNING, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a command of a function; every command has -v and -q.

    A parameter whose class has `from_options()` stands for the options that this takes: a Server for --url and
    --config. `logs` is the level at which the command logs unless -v or -q say otherwise.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, **options)(_with_common_options(function, logs))
        return function

    return decorate


_COMMON_OPTIONS = (
    Parameter("verbose", Parameter.KEYWORD_ONLY, default=False, annotation=Verbose),
    Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
)


def _with_common_options(function: Callable[..., None], logs: int) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)
    made = {
        name: each.annotation.from_options
        for name, each in signature.parameters.items()
        if hasattr(each.annotation, "from_options")
    }
    taken = {name: inspect.signature(make, eval_str=True).parameters for name, make in made.items()}
    own = [each for name, each in signature.parameters.items() if name not in made]
    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for some in reversed(taken.values()) for each in some.values()]
    parameters = sorted([*own, *options, *_COMMON_OPTIONS], key=lambda each: each.kind)

    @wraps(function)
    def run(**given: Any) -> None:
        is_verbose, is_quiet = given.pop("verbose"), given.pop("quiet")
        with errors_shown(), shown.verbosity(logs, is_verbose=is_verbose, is_quiet=is_quiet):
            _check_texts(given.values())
            groups = {name: make(**{each: given.pop(each) for each in taken[name]}) for name, make in made.items()}
            function(**groups, **given)

    # What Typer reads instead of the function's own.
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _check_texts(values: Iterable[object]) -> None:
    # Bytes that are no UTF-8 arrive as lone surrogates, which neither Redis nor most libraries take.
    for value in values:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not is_utf8(text):
                raise ConfigurationError(f"{text!r} is not UTF-8 text")


_OF_SPARK = {"deltalake", "numpy", "pandas", "py4j", "pyarrow", "pyspark"}  # what the extra installs


@contextmanager
def errors_shown() -> Iterator[None]:
    """End with one line and a code for what Penstock, or the file system, raises; a bug keeps its traceback."""
    try:
        yield
    except PenstockError as error:
        for line in getattr(error, "problems", (error,)):  # a pipeline reports all its problems at once
            shown.print_error(line)
        raise typer.Exit(code_of(error)) from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_SPARK:
            raise
        shown.print_error(f"this command needs {error.name}, which is not installed: pip install 'penstock[spark]'")
        raise typer.Exit(FAILED) from None
    except BrokenPipeError:
        raise  # the reader of the pipe has ended; Typer exits silently
    except OSError as error:
        shown.print_error(error)
        raise typer.Exit(FAILED) from None


def code_of(error: PenstockError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, NotFound | StreamMissing | GroupLost):
        return NOT_FOUND
    return USAGE if isinstance(error, ConfigurationError | WrongType) else FAILED
