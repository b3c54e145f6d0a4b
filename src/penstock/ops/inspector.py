"""Inspector: everything that an operator sees and does, over one client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from penstock.ops.balancer import Services
from penstock.ops.catalogue import Catalogue
from penstock.ops.dead_letters import DeadLetterStreams
from penstock.ops.doctor import Doctor
from penstock.ops.groups import Groups
from penstock.ops.model import Finding, Overview, StreamKind
from penstock.ops.pending import PendingMessages
from penstock.ops.queues import MessageQueues
from penstock.ops.retention import Retention
from penstock.ops.rights import Place, RoleName
from penstock.ops.schedules import Schedules
from penstock.ops.servers import Servers
from penstock.ops.streams import Streams
from penstock.ops.tasks import TaskQueues
from penstock.ops.workers import Workers
from penstock.redis.client import StreamClient, check_client


class Inspector:
    """Inspects and changes what is on a server: for command lines, dashboards and exporters.

    One attribute for each noun. The cost for the server is bounded, however long the streams are: no command or script
    takes longer than a few milliseconds, and values are read only as far as they are shown. The names of
    streams are cached for `names_max_age_s`.
    """

    def __init__(self, client: StreamClient, *, names_max_age_s: float = 0.0) -> None:
        check_client(client)
        self.client = client
        self._owns_client = False
        self._catalogue = Catalogue(client, names_max_age_s)
        self.streams = Streams(client, self._catalogue)
        self.groups = Groups(client, self._catalogue, self.streams)
        self.pending = PendingMessages(client, self._catalogue)
        self.dead_letters = DeadLetterStreams(client, self._catalogue)
        self.queues = MessageQueues(client, self.streams)
        self.tasks = TaskQueues(client, self._catalogue)
        self.schedules = Schedules(client, self.tasks)
        self.workers = Workers(client, self._catalogue)
        self.services = Services(client, self._catalogue)
        self.retention = Retention(client, self._catalogue)
        self.servers = Servers(client)

    @classmethod
    def from_url(cls, url: str, *, names_max_age_s: float = 0.0, **options: Any) -> Self:
        """Make an Inspector with a client of its own, which it closes; options are those of StreamClient."""
        made = cls(StreamClient.from_url(url, **options), names_max_age_s=names_max_age_s)
        made._owns_client = True
        return made

    async def __aenter__(self) -> Self:
        """Return the Inspector."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client if the Inspector made it."""
        await self.close()

    async def close(self) -> None:
        """Close the client if the Inspector made it."""
        if self._owns_client:
            await self.client.close()

    async def overview(self, match: str = "*", *, limit: int | None = None, count_lags: bool = False) -> Overview:
        """Return the streams with their groups and the sums over them, task queues, balanced services, and servers.

        With `count_lags` lags are counted for about a second, for a verdict; else those that take long are bounds.
        """
        streams, totals, names = await self.streams.overview(match, limit=limit, count_lags=count_lags)
        servers = await self.servers.all()
        at_ms = round((time.time() + (servers[0].clock_skew_s if servers else 0.0)) * 1000)
        queues = sorted({stream.owner for stream in streams if stream.kind is StreamKind.TASKS})
        task_queues = await self.tasks.all(queues)
        services = await self.services.all()
        return Overview(at_ms, tuple(streams), totals, servers, tuple(task_queues), tuple(services), names)

    async def doctor(
        self, roles: Sequence[RoleName] = (), place: Place | None = None, user: str | None = None
    ) -> list[Finding]:
        """Examine the servers and what is on them; return what is wrong or dangerous, the worst first.

        With `roles`, also whether a user, by default that of the client, has the rights that they need for the keys in
        `place`, and not far more.
        """
        return await Doctor(self).examine(roles, place, user)
