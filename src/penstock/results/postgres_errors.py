"""What PostgreSQL, or the way to it, refuses, in our words."""

from __future__ import annotations

import re

import psycopg

from penstock.errors import BackendError, BackendRefused, BackendUnavailable

# Classes of SQLSTATE: connection, transaction rollback, resources, operator, system, read-only (a failover).
_PASSES = ("08", "40", "53", "55", "57", "58", "25006")
# While connecting libpq tells no SQLSTATE, only the text of the server.
_REFUSED_AT_LOGIN = re.compile(
    r"authentication failed|no pg_hba\.conf entry|does not exist|no password supplied|permission denied"
)


def translate(what: str, where: str, error: psycopg.Error) -> BackendError:
    """Return our error: BackendUnavailable if it passes by itself, else BackendRefused."""
    text = " ".join(str(error).split()) or type(error).__name__
    kind = BackendUnavailable if passes_by_itself(error) else BackendRefused
    return kind(f"cannot {what} in {where}: {text}")


def passes_by_itself(error: psycopg.Error) -> bool:
    """Tell whether the same call may succeed later."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_PASSES)
    if isinstance(error, psycopg.OperationalError):
        return not _REFUSED_AT_LOGIN.search(str(error))
    return isinstance(error, psycopg.InterfaceError)


def is_connection_lost(error: psycopg.Error) -> bool:
    """Tell whether the same statement should be sent at once on a new connection."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
    )
