"""The application: routes, log-in, rendering, and what becomes of errors."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.dashboard.actions import ACTIONS
from penstock.dashboard.audit import Audit
from penstock.dashboard.live import LiveData
from penstock.dashboard.pages import PAGES, DashboardPage
from penstock.dashboard.presentation import environment, link
from penstock.dashboard.security import CSRF_COOKIE, CSRF_FIELD, SESSION_COOKIE, Access, Guard
from penstock.dashboard.view import Given, Refused, View, form_of
from penstock.errors import ConfigurationError, NotFound, PenstockError, PermissionDenied
from penstock.ops import Inspector
from penstock.protection import Protection
from penstock.redis.client import StreamClient
from penstock.shown import to_json

logger = logging.getLogger("penstock.dashboard")
Identify = Callable[[Request], str]
_THEMES = {"light", "dark"}
_NAMES_MAX_AGE_S = 5.0


def create_app(
    client: str | StreamClient,
    *,
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    allow_actions: bool = False,
    sample_interval_s: float = 2.0,
    identify: Identify | None = None,
    protection: Protection | None = None,
) -> Starlette:
    """Return the dashboard as an ASGI application, to run by itself or to mount in another one.

    `client` is a URL, with the `protection` of its payloads, or a StreamClient, which stays yours. Only requests whose
    Host header names this machine, or one of the `allowed_hosts`, are answered. That stops websites in a browser, but
    not programs, which choose their Host: without a `token`, everyone who reaches the application is let in. `identify`
    says who sends a request, for the audit stream.
    """
    access = Access.of(token, allowed_hosts, allow_actions)
    inspector = _inspector_of(client, protection)
    return Dashboard(inspector, access, sample_interval_s, identify or _address_of).app


def _inspector_of(client: str | StreamClient, protection: Protection | None) -> Inspector:
    if isinstance(client, str):
        return Inspector.from_url(client, names_max_age_s=_NAMES_MAX_AGE_S, protection=protection)
    if protection is not None:
        raise ConfigurationError("pass protection to the client: StreamClient(..., protection=...)")
    return Inspector(client, names_max_age_s=_NAMES_MAX_AGE_S)


def _address_of(request: Request) -> str:
    return request.client.host if request.client else "unknown"


class Dashboard:
    """Everything behind the routes."""

    def __init__(self, inspector: Inspector, access: Access, sample_interval_s: float, identify: Identify) -> None:
        self._inspector, self._access, self._identify = inspector, access, identify
        self._live, self._audit = LiveData(self._inspector, sample_interval_s), Audit(self._inspector)
        self._templates = environment()
        self.app = Starlette(
            routes=[
                *(Route(page.path, partial(self._page, page), name=page.path) for page in PAGES),
                *(Route(page.json_path, partial(self._json, page), name=page.json_path) for page in PAGES),
                Route("/value", self._value),
                Route("/events", self._events),
                Route("/confirm/{action}", self._confirm, methods=["GET", "POST"]),
                Route("/actions/{action}", self._act, methods=["POST"]),
                Route("/login", self._login, methods=["GET", "POST"]),
                Mount("/static", StaticFiles(packages=[("penstock.dashboard", "static")])),
            ],
            middleware=[Middleware(Guard, access=access)],
            exception_handlers={HTTPException: self._failed, PenstockError: self._failed},
            lifespan=self._lifespan,
        )
        self.app.state.live = self._live

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        await self._live.start()
        yield
        await self._live.close()
        await self._inspector.close()

    # --- pages --------------------------------------------------------------------------------------

    async def _page(self, page: DashboardPage, request: Request) -> Response:
        if not self._access.is_authenticated(request):
            return self._to_login(request)
        await self._live.start()
        values = await self._values(page, request)
        done = await self._audit.record(request.query_params.get("done", ""))
        values = {"title": page.title, "section": page.section, "is_live": page.is_live, "done": done, **values}
        return self._html(request, page.template, values, json_path=page.json_path)

    async def _json(self, page: DashboardPage, request: Request) -> Response:
        self._check(request)
        await self._live.start()
        values = await self._values(page, request)
        return Response(to_json(values), media_type="application/json")

    async def _values(self, page: DashboardPage, request: Request) -> Mapping[str, Any]:
        given = tuple(each for each in request.query_params.multi_items() if each[0] != "done")
        load = partial(page.load, self._view(given))
        return await (self._live.page((page.path, given), load) if page.is_live else load())

    async def _value(self, request: Request) -> Response:
        self._check(request)
        view = self._view(request.query_params.multi_items())
        stream, entry_id, field = view.needed("stream"), view.needed("id"), view.text("field", "data")
        value = await self._inspector.streams.value(stream, entry_id, field)
        name = quote(f"{stream}-{entry_id}-{field}", safe="")
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
        return Response(value, media_type="application/octet-stream", headers=headers)

    async def _events(self, request: Request) -> Response:
        self._check(request)
        await self._live.start()
        return StreamingResponse(self._live.feed(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    def _view(self, given: Given) -> View:
        return View(self._inspector, self._live, self._audit, given)

    # --- actions ------------------------------------------------------------------------------------

    async def _confirm(self, request: Request) -> Response:
        is_form = request.method == "POST"  # what is too long for an address, such as a payload
        if not is_form and not self._access.is_authenticated(request):
            return self._to_login(request)
        action = self._action(request)
        given = await self._own_form(request) if is_form else request.query_params.multi_items()
        view = self._view(given)
        question = await action.ask(view)
        replaced = {"back", CSRF_FIELD, *(option.name for option in question.options), *dict(question.fixed)}
        values = {
            "title": question.title, "section": "", "is_live": False, "done": None, "question": question,
            "action": request.path_params["action"], "back": self._local(request, view.text("back")),
            "kept": [*((name, value) for name, value in given if name not in replaced), *question.fixed],
        }  # fmt: skip
        return self._html(request, "confirm.html", values)

    async def _act(self, request: Request) -> Response:
        action, name = self._action(request), request.path_params["action"]
        given = await self._own_form(request)
        view = self._view(given)
        who = self._identify(request)
        await self._audit.write("requested", name, who, given)
        try:
            text = await action.do(view)
        except PenstockError as error:
            await self._audit.write("failed", name, who, given, str(error))
            raise
        else:
            logger.info("%s: %s", who, text)
            done = await self._audit.write("done", name, who, given, text)
        finally:
            self._live.forget()
        back = self._local(request, view.text("back"))
        return RedirectResponse(f"{back}{'&' if '?' in back else '?'}{urlencode({'done': done})}", 303)

    async def _own_form(self, request: Request) -> list[tuple[str, str]]:
        self._check(request)
        given = await form_of(request)
        if not self._access.is_own_form(request, dict(given).get(CSRF_FIELD)):
            raise Refused(403, "The form is not from this dashboard, or is too old. Reload the page and try again.")
        return given

    def _action(self, request: Request) -> Any:
        name = request.path_params["action"]
        if name not in ACTIONS:
            raise Refused(404, f"Unknown action {name!r}.")
        if not self._access.allow_actions:
            raise Refused(
                403,
                "This dashboard is read-only. Start it with --allow-actions, or pass allow_actions to create_app().",
            )
        return ACTIONS[name]

    # --- log-in -------------------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        given = request.query_params.multi_items() if request.method == "GET" else await form_of(request)
        view = self._view(given)
        token, target = view.text("token"), self._local(request, view.text("next"))
        if self._access.is_token(token):
            response = RedirectResponse(target, 303)
            self._set_cookie(request, response, SESSION_COOKIE, self._access.session)
            return response
        values = {
            "title": "Log in",
            "section": "",
            "is_live": False,
            "done": None,
            "next": target,
            "is_wrong": bool(token),
        }
        return self._html(request, "login.html", values, status=403 if token else 200)

    def _to_login(self, request: Request) -> Response:
        current_url = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
        return RedirectResponse(link(_base(request), "/login", {"next": current_url}), 303)

    def _check(self, request: Request) -> None:
        if not self._access.is_authenticated(request):
            raise Refused(401, "Log in first, or send the token as Authorization: Bearer <token>.")

    @staticmethod
    def _local(request: Request, address: str) -> str:
        # Redirect only to our own paths: to a browser, `//other` and `/\other` are other hosts.
        base = _base(request)
        is_ours = address.startswith(f"{base}/") and not address.startswith(("//", "/\\")) and address.isprintable()
        return address if is_ours and "\\" not in address else f"{base}/"

    @staticmethod
    def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
        response.set_cookie(
            name,
            value,
            path=_base(request) or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    # --- rendering ----------------------------------------------------------------------------------

    def _html(
        self, request: Request, template: str, values: Mapping[str, Any], status: int = 200, json_path: str = ""
    ) -> Response:
        base, query = _base(request), request.url.query
        browser = request.cookies.get(CSRF_COOKIE) or secrets.token_urlsafe(16)
        theme = request.cookies.get("penstock_theme", "")
        kept = [(name, value) for name, value in request.query_params.multi_items() if name != "done"]
        current_url = f"{request.url.path}?{urlencode(kept)}" if kept else request.url.path
        context = {
            "base": base,
            "url": lambda path, **params: link(base, path, params),
            "here": current_url,
            "json_url": f"{base}{json_path}{f'?{query}' if query else ''}" if json_path else "",
            "given": dict(request.query_params),
            "is_authenticated": self._access.is_authenticated(request),
            "navigation": [page for page in PAGES if page.label],
            "theme": theme if theme in _THEMES else "",
            "allow_actions": self._access.allow_actions,
            "csrf": self._access.csrf_of(browser),
            "redis_error": self._live.error,
            **values,
        }
        response = Response(self._templates.get_template(template).render(context), status, media_type="text/html")
        if CSRF_COOKIE not in request.cookies:
            self._set_cookie(request, response, CSRF_COOKIE, browser)
        return response

    def _failed(self, request: Request, error: Exception) -> Response:
        status, text = _status_of(error)
        if request.url.path.endswith(".json"):
            return JSONResponse({"error": text}, status)
        values = {"title": f"{status}", "section": "", "is_live": False, "done": None, "text": text, "status": status}
        return self._html(request, "error.html", values, status)


def _base(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _status_of(error: Exception) -> tuple[int, str]:
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, HTTPException):
        return error.status_code, "Page not found." if error.status_code == 404 else error.detail
    if isinstance(error, NotFound):
        return 404, str(error)
    if isinstance(error, PermissionDenied):
        return 403, f"The dashboard's Redis user may not do that: {error}"
    return (400 if isinstance(error, ConfigurationError) else 503), str(error)
