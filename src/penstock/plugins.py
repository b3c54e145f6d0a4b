"""What installed packages offer by entry points: found by name, imported only when asked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from penstock.culprit import cut
from penstock.errors import ConfigurationError


class Plugins:
    """The plug-ins of one entry point group.

    `built_in` (name to `module:attribute`) are Penstock's own, which are found also where its metadata is not
    installed, as on a Spark executor that was sent the code alone. A broken plug-in breaks only itself; a name that
    two packages offer is an error for that name.
    """

    def __init__(self, group: str, noun: str, built_in: Mapping[str, str]) -> None:
        self.group, self.noun, self._built_in = group, noun, built_in

    def sync_twin(self) -> Plugins:
        """Return the plug-ins of the same names for plain functions and threads."""
        built_in = {name: target.replace("penstock.", "penstock.sync.", 1) for name, target in self._built_in.items()}
        return Plugins(self.group.replace("penstock.", "penstock.sync_", 1), self.noun, built_in)

    def names(self) -> list[str]:
        """Return the names that can be asked for; nothing is imported."""
        return sorted({*self._built_in, *(point.name for point in entry_points(group=self.group))})

    def load(self, name: str) -> Any:
        """Return the class or factory of that name; raise ConfigurationError if it cannot be had."""
        targets = {point.value for point in entry_points(group=self.group) if point.name == name}
        targets |= {self._built_in[name]} if name in self._built_in else set()
        if not targets:
            raise ConfigurationError(f"there is no {self.noun} {name!r}: {suggestion(name, self.names())}")
        if len(targets) > 1:
            raise ConfigurationError(
                f"several packages offer a {self.noun} {name!r}: {', '.join(sorted(targets))}; uninstall all but one"
            )
        target = targets.pop()
        try:
            return EntryPoint(name, target, self.group).load()
        except Exception as error:
            reason = f"{type(error).__name__}: {cut(error)}"
            raise ConfigurationError(f"{self.noun} {name!r} ({target}) cannot be imported: {reason}") from error

    def make(self, name: str, options: Mapping[str, object], secrets: tuple[str, ...] = ()) -> Any:
        """Return what the class or factory of that name makes of the options.

        What `secrets` lists is masked in the message when it fails with an error that is not ours.
        """
        factory = self.load(name)
        try:
            return factory(**options)
        except ConfigurationError:
            raise
        except Exception as error:
            raise self.failure(name, f"with {sorted(options)}", error, secrets) from error

    def failure(self, name: str, how: str, error: Exception, secrets: tuple[str, ...] = ()) -> ConfigurationError:
        """Return the error for a plug-in that failed while it was made."""
        text = str(error)
        for secret in secrets:
            text = text.replace(secret, "***")
        return ConfigurationError(f"{self.noun} {name!r} cannot be made {how}: {type(error).__name__}: {cut(text)}")


def suggestion(name: str, known: list[str]) -> str:
    """Return the end of a message about an unknown name: what it may have meant, and what there is."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known are {', '.join(known)}"
