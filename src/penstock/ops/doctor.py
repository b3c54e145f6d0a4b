"""Doctor: examines a server and what is on it; `findings.py` decides what is wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import PermissionDenied, ServerError
from penstock.ops.findings import (
    consumer_findings,
    foreign_ids,
    hash_tags,
    keyspace_events,
    known_holes,
    lacking,
    many_groups,
    open_server,
    pinned,
    roles_in_use,
    server_findings,
    short_locks,
    unbounded_dead_letters,
    without_echoes,
    without_live_consumers,
)
from penstock.ops.model import Finding, ServiceInfo, Severity, StreamInfo
from penstock.ops.rights import Place, missing_commands, rights_of

if TYPE_CHECKING:
    from penstock.ops.inspector import Inspector

_ORDER = [Severity.ERROR, Severity.WARNING, Severity.INFO, Severity.OK]
_MOST_LOCKS = 500


class Doctor:
    """Examines one server, or the masters of a cluster, and what is on them."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector

    async def examine(self) -> list[Finding]:
        """Return the problems found, the worst first."""
        inspector = self._inspector
        found: list[Finding] = []
        servers, services = await inspector.servers.all(), await inspector.services.all()
        streams, _, _ = await inspector.streams.overview(count_lags=True)
        consumers = await inspector.workers.consumers()
        for server in servers:
            found += [*server_findings(server), *known_holes(server)]
            found += keyspace_events(server, services)
        found += await self._rights(streams, services)
        if inspector.client.is_cluster:
            found += hash_tags(streams)
        found += await self._short_locks(services)
        cursor, is_more = "", True
        while is_more:
            page = await inspector.retention.page(limit=200, cursor=cursor)
            found += [finding for info in page.items for finding in pinned(info)]
            cursor, is_more = page.cursor, bool(page.cursor)
        found += consumer_findings(streams, consumers)
        now_ms = time.time_ns() // 1_000_000
        found += [*many_groups(streams), *foreign_ids(streams, now_ms), *without_live_consumers(streams, consumers)]
        found += unbounded_dead_letters(await inspector.dead_letters.streams(), now_ms)
        return sorted(
            without_echoes(found), key=lambda finding: (_ORDER.index(finding.severity), finding.check, finding.where)
        )

    async def _rights(self, streams: Sequence[StreamInfo], services: Sequence[ServiceInfo]) -> list[Finding]:
        client = self._inspector.client
        try:
            user = (await client.call("", "ACL", "WHOAMI")).decode(errors="replace")
            told = await client.call("", "ACL", "GETUSER", user)
        except (PermissionDenied, ServerError):
            return []  # a user who may not ask has few rights, as it should be
        described = {told[i]: told[i + 1] for i in range(0, len(told), 2)}
        rules = described.get(b"commands", b"").decode(errors="replace")
        found = open_server(user, described.get(b"flags", []))
        for role in roles_in_use(streams, services):
            rights = rights_of(role, Place(("*",), ("*",), ("*",), is_cluster=client.is_cluster))
            found += lacking(user, role, missing_commands(rights, rules))
        return found

    async def _short_locks(self, services: Sequence[ServiceInfo]) -> list[Finding]:
        found: list[Finding] = []
        timeout_ms = await self._inspector.servers.failover_ms() if services else None
        if timeout_ms is None:
            return []
        for service in services:
            page = await self._inspector.services.streams(service.name, is_waiting=False, limit=_MOST_LOCKS)
            found += short_locks(service.name, page.items, timeout_ms)
        return found
