"""One request as pages and actions see it: its parameters, checked, and what they may ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

from starlette.requests import Request

from penstock.dashboard.live import Live
from penstock.errors import ConfigurationError, PenstockError
from penstock.ops import Inspector

_MOST_BODY = 8 << 20
_MOST_FIELDS = 2_000


class Refused(PenstockError):
    """A request that is answered with a status of its own and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class View:
    """The parameters of one request, and what answers it."""

    inspector: Inspector
    live: Live
    given: Sequence[tuple[str, str]] = field(default_factory=tuple)

    def all(self, name: str) -> list[str]:
        """Return every value of a parameter, without empty ones."""
        return [value for key, value in self.given if key == name and value]

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter, or the default where it is missing or empty."""
        return next(iter(self.all(name)), default)

    def needed(self, name: str) -> str:
        """Return a parameter without which there is no such page."""
        value = self.text(name)
        if not value:
            raise Refused(400, f"The address lacks the parameter {name!r}.")
        return value

    def number(self, name: str, default: int, most: int) -> int:
        """Return a whole number between 0 and `most`."""
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) <= most):
            raise Refused(400, f"{name} must be a whole number of at most {most:,}.")
        return int(text)

    def choice(self, name: str, choices: Iterable[str]) -> str:
        """Return a parameter that is one of the choices, or '' where it is missing."""
        value = self.text(name)
        if value and value not in choices:
            raise Refused(400, f"{name} must be one of {', '.join(choices)}.")
        return value


async def form_of(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form; the size of both is limited before anything is parsed."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BODY:
            raise Refused(413, f"A form may have at most {_MOST_BODY >> 20} MiB.")
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise Refused(400, "The form cannot be read.") from error
