"""Who may ask the dashboard what: host names, origins, the token, forged requests, and the headers of every response.

The browser of an operator reaches what the operator reaches. Pages of others may therefore try to use it: through a
host name that they point at this machine (DNS rebinding), through forms (CSRF), or through text in messages (XSS).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import ConfigurationError

SESSION_COOKIE = "penstock_session"
CSRF_COOKIE = "penstock_csrf"
CSRF_FIELD = "csrf"
_MIN_TOKEN = 16
_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
_HEADERS = {
    # No inline script or style anywhere: text of a message that were taken for markup could still do nothing.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Not `no-referrer`: browsers would then send `Origin: null` with the forms of our own pages.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Access:
    """Who has access, and whether they may change anything."""

    token: str | None = None
    allowed_hosts: frozenset[str] = frozenset()
    allow_actions: bool = False
    # Signs sessions and forms. With a token it is made from it, so that several processes accept each other's.
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @classmethod
    def of(cls, token: str | None, allowed_hosts: Sequence[str], allow_actions: bool) -> Access:
        """Return the access that these options of the dashboard stand for."""
        hosts = frozenset(host.lower().rstrip(".") for host in allowed_hosts)
        if token is None:
            return cls(None, hosts, allow_actions)
        if len(token) < _MIN_TOKEN:
            raise ConfigurationError(f"token must have at least {_MIN_TOKEN} characters, so that it cannot be guessed")
        return cls(token, hosts, allow_actions, hashlib.sha256(b"penstock dashboard " + token.encode()).digest())

    def is_allowed_host(self, host_header: str) -> bool:
        """Return whether a request for this host is meant for us.

        A name that an attacker points at this machine is refused. With a token any IP address is accepted: no name
        leads to it, and the token still decides.
        """
        host = host_of(host_header)
        if host is None:
            return False
        if host in _LOOPBACK_NAMES or host.endswith(".localhost") or host in self.allowed_hosts:
            return True
        return self.token is not None and _is_address(host)

    def is_token(self, given: str) -> bool:
        """Compare a token in constant time."""
        return self.token is not None and hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    @property
    def session(self) -> str:
        """The value of the cookie of a browser that gave the token."""
        return self._signed("session")

    def is_authenticated(self, connection: HTTPConnection) -> bool:
        """Return whether the request comes with the token, as a cookie or as `Authorization: Bearer`."""
        if self.token is None:
            return True
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.is_token(given.strip())
        cookie = connection.cookies.get(SESSION_COOKIE, "")
        return hmac.compare_digest(cookie.encode(errors="replace"), self.session.encode())

    def csrf_of(self, browser: str) -> str:
        """Return what the forms of a browser carry; `browser` is the value of its cookie."""
        return self._signed(f"csrf {browser}")

    def is_own_form(self, request: Request, given: object) -> bool:
        """Return whether a form was rendered by us for the browser that sends it."""
        browser = request.cookies.get(CSRF_COOKIE, "")
        if not browser or not isinstance(given, str):
            return False
        return hmac.compare_digest(given.encode(errors="replace"), self.csrf_of(browser).encode())

    def _signed(self, text: str) -> str:
        return hmac.new(self.key, text.encode(errors="replace"), hashlib.sha256).hexdigest()


def host_of(host_header: str) -> str | None:
    """Return the host of a `Host` header, in lower case and without its port; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host_header}")
        _ = parts.port  # raises if it is no number
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or parts.username is not None or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_cross_site(headers: Headers) -> bool:
    # Browsers send Origin with every POST; programs need not, and are stopped by the CSRF token all the same.
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


class Guard:
    """The middleware around every route: refuses requests that are not meant for us, and sets the headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # there are no WebSockets

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_guarded)
        else:
            await refusal(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._access.is_allowed_host(headers.get("host", "")):
            return _refused(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"The dashboard does not accept requests for the host {headers.get('host', '')[:200]!r}. Start "
                "it with --allowed-host NAME, or pass allowed_hosts to create_app().",
            )
        if scope["method"] not in {"GET", "HEAD", "POST"}:
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET, HEAD and POST are allowed.")
        if scope["method"] == "POST" and _is_cross_site(headers):
            return _refused(HTTPStatus.FORBIDDEN, "The form was submitted from another site.")
        return None


def _refused(status: HTTPStatus, text: str) -> Response:
    return Response(f"{text}\n", status.value, media_type="text/plain")
