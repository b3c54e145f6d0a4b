"""What installed packages offer by entry points: found by name, imported only when asked for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from penstock.errors import ConfigurationError, PenstockError, cut, summary_of


class Plugins:
    """The plug-ins of one entry point group.

    `built_in` (name to `module:attribute`) are Penstock's own, which are found also where its metadata is not
    installed, as on a Spark executor that was sent the code alone. A broken plug-in breaks only itself; a name that
    two packages offer is an error for that name.
    """

    def __init__(self, group: str, noun: str, built_in: Mapping[str, str]) -> None:
        self.group, self.noun, self._built_in = group, noun, built_in

    def sync_counterpart(self) -> Plugins:
        """Return the plug-ins of the same names for plain functions and threads."""
        built_in = {name: target.replace("penstock.", "penstock.sync.", 1) for name, target in self._built_in.items()}
        return Plugins(self.group.replace("penstock.", "penstock.sync_", 1), self.noun, built_in)

    def __contains__(self, name: str) -> bool:
        # Ours first: the rest reads the metadata of all packages.
        return name in self._built_in or name in self.names()

    def names(self) -> list[str]:
        """Return the names that can be asked for; nothing is imported."""
        return sorted({*self._built_in, *(point.name for point in entry_points(group=self.group))})

    def load(self, name: str) -> Any:
        """Return the class or factory of that name; raise ConfigurationError if it cannot be had."""
        targets = {point.value for point in entry_points(group=self.group) if point.name == name}
        targets |= {self._built_in[name]} if name in self._built_in else set()
        if not targets:
            raise ConfigurationError(f"unknown {self.noun} {name!r}; {suggestion(name, self.names())}")
        if len(targets) > 1:
            raise ConfigurationError(
                f"several packages provide the {self.noun} {name!r}: {', '.join(sorted(targets))}; uninstall "
                "all but one"
            )
        target = targets.pop()
        try:
            return EntryPoint(name, target, self.group).load()
        except (Exception, SystemExit) as error:
            reason = cut(summary_of(error))
            raise ConfigurationError(f"{self.noun} {name!r} ({target}) cannot be imported: {reason}") from error

    def make(
        self,
        name: str,
        options: Mapping[str, object],
        *,
        settings: object = None,
        masked: Callable[[str], str] = str,
    ) -> Any:
        """Return what the class or factory of that name makes of the options.

        With `settings`, the table that the options belong to, its class method `from_settings(settings)` is called
        instead, if it has one. `masked` removes secrets from the message when it fails with an error that is not
        ours.
        """
        factory = self.load(name)
        from_settings = None if settings is None else getattr(factory, "from_settings", None)
        try:
            return factory(**options) if from_settings is None else from_settings(settings)
        except PenstockError:
            raise
        except Exception as error:
            text, how = masked(summary_of(error)), f"with {sorted(options)}"
            if settings is not None:
                how = f"with the keys {sorted(options)} of its table" if options else "from the settings"
            reason = f"{self.noun} {name!r} cannot be created {how}: {cut(text)}"
            # The traceback of an error would show what the message masks.
            raise ConfigurationError(reason) from (error if settings is None else None)


def suggestion(name: str, known: list[str]) -> str:
    """Return the end of a message about an unknown name: what it may have meant, and what there is."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}available: {', '.join(known)}"


SERIALIZERS: Final = Plugins(
    "penstock.serializers",
    "serializer",
    {name: f"penstock.serializers:{name.capitalize()}Serializer" for name in ("json", "msgpack", "pickle")},
)
TASK_QUEUES: Final = Plugins(
    "penstock.task_queues",
    "task queue",
    {"redis": "penstock.tasks:RedisTaskQueue", "stub": "penstock.tasks:StubQueue"},
)
RESULT_BACKENDS: Final = Plugins(
    "penstock.result_backends",
    "result back-end",
    {
        "fs": "penstock.results:FSBackend",
        "postgres": "penstock.results:PostgresBackend",
        "s3": "penstock.results:S3Backend",
    },
)
