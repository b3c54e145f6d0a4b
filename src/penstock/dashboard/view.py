"""One request as pages and actions see it: its parameters, checked, and what they may ask."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.requests import Request

from penstock import ids
from penstock.dashboard.audit import Audit
from penstock.dashboard.live import LiveData
from penstock.errors import PenstockError
from penstock.ops import DeadLetterFilter, Inspector
from penstock.times import duration_s, moment_ms

_MAX_BODY = 8 << 20
_MAX_FIELDS = 2_000

Given = Sequence[tuple[str, str]]


class Refused(PenstockError):
    """A request that is answered with a status of its own and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class View:
    """The parameters of one request, and what answers it."""

    inspector: Inspector
    live: LiveData
    audit: Audit
    given: Given = ()

    def all(self, name: str) -> list[str]:
        """Return every value of a parameter, without empty ones."""
        return [value for key, value in self.given if key == name and value]

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter, or the default where it is missing or empty."""
        return next(iter(self.all(name)), default)

    def needed(self, name: str) -> str:
        """Return a parameter without which the request makes no sense."""
        value = self.text(name)
        if not value:
            raise Refused(400, f"The parameter {name!r} is missing.")
        return value

    def number(self, name: str, default: int, most: int) -> int:
        """Return a whole number between 1 and `most`."""
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and 1 <= int(text) <= most):
            raise Refused(400, f"{name} must be a whole number from 1 to {most:,}.")
        return int(text)

    def choice(self, name: str, choices: Collection[str]) -> str:
        """Return a parameter that is one of the choices, or '' where it is missing."""
        value = self.text(name)
        if value and value not in choices:
            raise Refused(400, f"{name} must be one of {', '.join(choices)}.")
        return value

    def cursor(self, name: str = "cursor") -> str:
        """Return where a page begins, of a list by name."""
        return self.text(name)

    def id_cursor(self) -> str:
        """Return where a page begins, of a list by id; raise ConfigurationError for what is none."""
        text = self.text("cursor")
        if text:
            ids.parse(text)
        return text

    def milliseconds(self, name: str) -> int:
        """Return a duration in ms; 0 where it is missing."""
        text = self.text(name)
        return round(duration_s(text) * 1000) if text else 0

    def moment_ms(self, name: str) -> int | None:
        """Return a time, or how long ago it was, in ms since 1970; None where it is missing."""
        text = self.text(name)
        return moment_ms(text, time.time_ns() // 1_000_000) if text else None

    def position(self, name: str, default: str) -> str | int:
        """Return a place in a stream: an id, a time, or how long ago it was."""
        text = self.text(name)
        if not text or ids.is_id(text):
            return text or default
        return self.moment_ms(name) or 0

    def dead_letters(self) -> DeadLetterFilter:
        """Return which dead letters are meant; raise Refused for a selection without any."""
        if self.text("selected") and not self.all("id"):
            raise Refused(400, "Select at least one dead letter.")
        return DeadLetterFilter(
            ids=frozenset(self.all("id")),
            reason=self.text("reason") or None,
            error=self.text("error") or None,
            kind=self.text("kind") or None,
            fingerprint=self.text("fingerprint") or None,
            source=self.text("source") or None,
            since_ms=self.moment_ms("since") or 0,
            until_ms=self.moment_ms("until"),
            text=self.text("text") or None,
        )


async def form_of(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form; its size is limited before anything is parsed."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY:
            raise Refused(413, f"A form must not exceed {_MAX_BODY >> 20} MiB.")
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise Refused(400, "The form cannot be read.") from error
