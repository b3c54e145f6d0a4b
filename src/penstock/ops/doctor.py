"""Doctor: examines a server and what is on it; `findings.py` decides what is wrong."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import PermissionDenied, ServerError
from penstock.ops.dry_run import role_findings
from penstock.ops.findings import (
    consumer_findings,
    foreign_ids,
    hash_tags,
    many_groups,
    pinned,
    short_locks,
    unbounded_dead_letters,
    without_live_consumers,
    without_repeats,
)
from penstock.ops.model import Finding, Page, ServiceInfo, Severity, StreamInfo
from penstock.ops.rights import Place, RoleName, missing_commands, rights_of
from penstock.ops.server_findings import (
    keyspace_events,
    known_vulnerabilities,
    lacking,
    not_examined,
    open_server,
    roles_in_use,
    server_findings,
    unread_settings,
)
from penstock.redis.reading import ask
from penstock.redis.topology import Sentinels, directory_of

if TYPE_CHECKING:
    from penstock.ops.inspector import Inspector

_ORDER = [Severity.ERROR, Severity.WARNING, Severity.INFO, Severity.OK]
_MAX_LOCKS = 500
_T = TypeVar("_T")
_ROLES_OF_PEOPLE = (RoleName.READONLY, RoleName.OPERATOR)


async def _pages(read: Callable[..., Awaitable[Page[_T]]]) -> AsyncIterator[tuple[_T, ...]]:
    """Yield the items of all pages."""
    cursor, is_more = "", True
    while is_more:
        page = await read(limit=200, cursor=cursor)
        yield page.items
        cursor, is_more = page.cursor, bool(page.cursor)


class Doctor:
    """Examines one server, or the masters of a cluster, and what is on them."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector

    async def examine(
        self, roles: Sequence[RoleName] = (), place: Place | None = None, user: str | None = None
    ) -> list[Finding]:
        """Return the problems found, the worst first; see Inspector.doctor()."""
        found: list[Finding] = []
        for role in roles:
            found += await role_findings(self._inspector.client, user or self._login(), role, place or Place())
        try:
            found += await self._everything(is_role_known=bool(roles))
        except PermissionDenied:
            if not roles:
                raise
            what = "the servers, and the streams and groups on them"
            found.append(not_examined(f"user {self._login()}", what, "what `penstock acl --role readonly` prints"))
        return sorted(
            without_repeats(found), key=lambda finding: (_ORDER.index(finding.severity), finding.check, finding.where)
        )

    async def _everything(self, *, is_role_known: bool) -> list[Finding]:
        inspector = self._inspector
        found: list[Finding] = []
        servers, services = await inspector.servers.all(), await inspector.services.all()
        streams, _, _ = await inspector.streams.overview(count_lags=True)
        consumers = await inspector.workers.consumers()
        for server in servers:
            found += [*server_findings(server), *known_vulnerabilities(server)]
            found += [*keyspace_events(server, services), *unread_settings(server, services)]
        found += [
            *await self._rights([] if is_role_known else roles_in_use(streams, services)),
            *await self._unread_streams(streams),
        ]
        if inspector.client.is_cluster:
            found += hash_tags(streams)
        found += await self._short_locks(services)
        async for infos in _pages(inspector.retention.page):
            found += [finding for info in infos for finding in pinned(info)]
        found += consumer_findings(streams, consumers)
        now_ms = time.time_ns() // 1_000_000
        found += [*many_groups(streams), *foreign_ids(streams, now_ms), *without_live_consumers(streams, consumers)]
        async for letters in _pages(inspector.dead_letters.streams):
            found += unbounded_dead_letters(letters, now_ms)
        return found

    def _login(self) -> str:
        return self._inspector.client.settings.username or "default"

    async def _rights(self, roles: Sequence[RoleName]) -> list[Finding]:
        client = self._inspector.client
        try:
            user = (await client.call("", "ACL", "WHOAMI")).decode(errors="replace")
            described = await self._user(user)
            default = described if user == "default" else await self._user("default")
        except (PermissionDenied, ServerError):
            where = f"user {self._login()}"
            what = "its rights, and whether the user default has a password"
            return [not_examined(where, what, "ACL WHOAMI and ACL GETUSER")]
        rules = described.get(b"commands", b"").decode(errors="replace")
        found = open_server(default.get(b"flags", []))
        if rules.startswith("-@all") and not all(self._lacks(role, rules) for role in _ROLES_OF_PEOPLE):
            return found  # who looks or repairs does not do the work
        for role in roles:
            found += lacking(user, role, self._lacks(role, rules))
        return found

    async def _user(self, name: str) -> dict[bytes, Any]:
        rules = await self._inspector.client.call("", "ACL", "GETUSER", name)
        return {rules[i]: rules[i + 1] for i in range(0, len(rules or ()), 2)}

    def _lacks(self, role: RoleName, rules: str) -> list[str]:
        is_cluster = self._inspector.client.is_cluster
        return missing_commands(rights_of(role, Place(("*",), ("*",), ("*",), is_cluster=is_cluster)), rules)

    async def _unread_streams(self, streams: Sequence[StreamInfo]) -> list[Finding]:
        inspector, seen = self._inspector, {stream.name for stream in streams}
        unseen = [name for name in await inspector.streams.names() if name not in seen]
        keys = [inspector.streams.key(name) for name in unseen]
        replies = await ask(inspector.client, [(key, ("EXISTS", key)) for key in keys])
        refused = [name for name, reply in zip(unseen, replies, strict=True) if isinstance(reply, PermissionDenied)]
        if not refused:
            return []
        what = f"{len(refused)} of {len(refused) + len(seen)} streams, such as {refused[0]}"
        return [not_examined("streams", what, "the keys of these streams")]

    async def _short_locks(self, services: Sequence[ServiceInfo]) -> list[Finding]:
        found: list[Finding] = []
        client = self._inspector.client
        if not services or not (client.is_cluster or isinstance(directory_of(client.settings), Sentinels)):
            return []
        timeout_ms = await self._inspector.servers.failover_ms()
        if timeout_ms is None:
            what = "whether the locks of balanced services last longer than a failover takes"
            right = "CONFIG GET" if client.is_cluster else "SENTINEL MASTER at a Sentinel that is reachable"
            return [not_examined("services", what, right)]
        for service in services:
            page = await self._inspector.services.streams(service.name, is_waiting=False, limit=_MAX_LOCKS)
            found += short_locks(service.name, page.items, timeout_ms)
        return found
