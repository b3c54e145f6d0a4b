"""What an object store, or the way to it, refuses, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions

from penstock.errors import BackendRefused, BackendUnavailable, cut

_STAYS = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
    FileNotFoundError,
)


@contextmanager
def translated(what: str, where: str) -> Iterator[None]:
    """Turn an error of obstore into BackendRefused if it stays until somebody acts, else into BackendUnavailable."""
    try:
        yield
    except (exceptions.BaseError, OSError) as error:
        text = cut(" ".join(str(error).partition("Debug source")[0].split()), 400)
        # A missing bucket has an error class of its own only where an object is meant.
        kind = BackendRefused if isinstance(error, _STAYS) or "NoSuchBucket" in text else BackendUnavailable
        raise kind(f"cannot {what} in {where}: {text}") from error
