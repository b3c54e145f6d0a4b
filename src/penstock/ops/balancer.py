"""Balanced services: who owns which data stream, for how long, and how many each consumer has."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import envelope
from penstock.balancer.commands import BalancerCommands, peers_in
from penstock.balancer.config import BalancerConfig
from penstock.balancer.messages import FIELD, LBSInfo, LBSInputMessage
from penstock.errors import NotFound, PenstockError
from penstock.ids import after
from penstock.keys import BalancerKeys
from penstock.keys.stream_names import service_of
from penstock.number_checks import check_number
from penstock.ops.catalogue import Catalogue, StreamSnapshot
from penstock.ops.entries import EntryRange, read_entries
from penstock.ops.lag import measure
from penstock.ops.model import BalancedStream, BalancerPeer, Page, ServiceInfo
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.reading import ask, number_or
from penstock.redis.retry import Repeat
from penstock.serializers import DEFAULT_MAX_BYTES
from penstock.shown import command_line

_PAGE, _MAX_STEPS = 500, 20  # entries of one step, and steps of one page
_RELEASED = "released"  # the consumer under whose name a stream waits that was taken from its owner
_LONG_IDLE_MS = 86_400_000  # longer than any consumer waits before it claims an entry
_TRIES = 10


class Services:
    """The balanced services of one server. Their keys have no prefix, whatever the client has."""

    def __init__(self, client: StreamClient, catalogue: Catalogue) -> None:
        self._client, self._catalogue = client, catalogue

    async def all(self) -> list[ServiceInfo]:
        """Return the services, by name."""
        return await self._known(await self._catalogue.services())

    async def page(self, *, limit: int = 100, cursor: str = "") -> Page[ServiceInfo]:
        """Return services by name, page by page."""
        check_number("limit", limit)
        names = [name for name in await self._catalogue.services() if name > cursor]
        found = await self._known(names[:limit])
        return Page(tuple(found), names[limit - 1] if len(names) > limit else "")

    async def _known(self, names: Sequence[str]) -> list[ServiceInfo]:
        snapshots = await self._catalogue.service_snapshots(names)
        return await self._infos(
            [(BalancerKeys(_service(snapshot)), snapshot) for snapshot in snapshots.values() if _is_service(snapshot)]
        )

    async def info(self, service: str) -> ServiceInfo:
        """Return one service; raise NotFound if there is none."""
        keys = BalancerKeys.of(service)
        [found] = await self._infos([(keys, await self._snapshot(keys))])
        return found

    async def _snapshot(self, keys: BalancerKeys) -> StreamSnapshot:
        found = (await self._catalogue.service_snapshots([keys.stream])).get(keys.stream)
        if found is None or not _is_service(found):
            raise NotFound(
                f"balanced service {keys.service!r} does not exist; list the services with `penstock balance ls`"
            )
        return found

    async def _infos(self, services: Sequence[tuple[BalancerKeys, StreamSnapshot]]) -> list[ServiceInfo]:
        groups = [next(group for group in snapshot.groups if group.name == keys.group) for keys, snapshot in services]
        measured = [(keys.stream, snapshot, group) for (keys, snapshot), group in zip(services, groups, strict=True)]
        lags = await measure(self._client, measured)
        peers = await ask(self._client, [(keys.stream, ("HGETALL", keys.peers)) for keys, _ in services])
        dead = await ask(self._client, [(keys.dead_letters, ("XLEN", keys.dead_letters)) for keys, _ in services])
        return [
            ServiceInfo(keys.service, group.pending, lag.count, _peers(reply, snapshot.now_ms), number_or(count))
            for (keys, snapshot), group, lag, reply, count in zip(services, groups, lags, peers, dead, strict=True)
        ]

    async def streams(
        self, service: str, *, owner: str | None = None, is_waiting: bool | None = None, limit: int = 100,
        cursor: str = "",
    ) -> Page[BalancedStream]:  # fmt: skip
        """Return the data streams that were handed out, oldest first, with their owners and the time of their locks.

        Those of one owner, or those (not) waiting for one, if that is given.
        """
        check_number("limit", limit)
        keys, count = BalancerKeys.of(service), min(_PAGE, limit)
        await self._snapshot(keys)
        start, found = after(cursor) if cursor else "-", list[BalancedStream]()
        for _ in range(_MAX_STEPS):
            rows = await self._client.call(keys.stream, "XPENDING", keys.stream, keys.group, start, "+", count)
            for stream in await self._owned(keys, rows):
                if owner in {None, stream.owner} and is_waiting in {None, not stream.owner}:
                    found.append(stream)
                    if len(found) == limit:
                        return Page(tuple(found), stream.entry_id)
            if len(rows) < count:
                return Page(tuple(found))
            start = f"({rows[-1][0].decode()}"
        return Page(tuple(found), start[1:])

    async def _owned(self, keys: BalancerKeys, rows: list[tuple[bytes, bytes, int, int]]) -> list[BalancedStream]:
        infos = await self._infos_of(keys.stream, [row[0].decode() for row in rows])
        named = [(row, info) for row in rows if (info := infos.get(row[0].decode())) is not None]
        locks = [info.lock for _, info in named]
        questions = [(lock, (command, lock)) for lock in locks for command in ("GET", "PTTL")]
        replies = await ask(self._client, questions)
        found = []
        for place, (row, info) in enumerate(named):
            holder, left_ms = replies[2 * place], number_or(replies[2 * place + 1], -2)
            owner = envelope.text(holder) if isinstance(holder, bytes) else ""
            found.append(
                BalancedStream(
                    keys.service, info.data_stream_name, info.id_in_lbs, owner, left_ms if owner else None,
                    int(row[3]), int(row[2]),
                )
            )  # fmt: skip
        return found

    async def _infos_of(self, stream: str, entry_ids: list[str]) -> dict[str, LBSInfo]:
        found, left = dict[str, LBSInfo](), entry_ids
        while left:
            wanted = EntryRange("-", "+", len(left), DEFAULT_MAX_BYTES + 1, fields=FIELD, ids=left)
            entries, further = await read_entries(self._client, stream, wanted)
            for entry_id, *fields in entries:
                named = [part for at in range(0, len(fields), 3) for part in fields[at : at + 2]]
                info = _info_of(entry_id.decode(), named)
                if info is not None:
                    found[info.id_in_lbs] = info
            left = left[left.index(further) + 1 :] if further else []
        return found

    async def release(self, service: str, data_stream: str) -> str:
        """Take a data stream from its owner, so that another consumer takes it over; return who had it.

        The owner gets a notice that it has lost the stream; its later commands for the stream are rejected.
        """
        cursor = ""
        while True:
            page = await self.streams(service, limit=_PAGE, cursor=cursor)
            for stream in page.items:
                if stream.data_stream == data_stream and stream.owner:
                    if not await self._take(BalancerKeys.of(service), stream):
                        raise NotFound(
                            f"{stream.owner!r} does not hold data stream {data_stream!r} of service {service!r} any "
                            f"more; list the owners with {command_line('balance ls', service)}"
                        )
                    return stream.owner
            cursor = page.cursor
            if not cursor:
                raise NotFound(f"data stream {data_stream!r} of service {service!r} has no owner")

    async def _take(self, keys: BalancerKeys, stream: BalancedStream) -> bool:
        client, lock = self._client, BalancerKeys.lock(stream.data_stream, stream.entry_id)
        args: list[str | int] = [keys.group, stream.owner, stream.entry_id, _RELEASED, _LONG_IDLE_MS]
        if not client.is_cluster:
            return bool(await client.run("ops/release", [keys.stream, lock], args, Repeat.IDEMPOTENT))
        commands = BalancerCommands(client, keys, _RELEASED, BalancerConfig())
        for _ in range(_TRIES):
            await client.run("ops/release", [keys.stream], args, Repeat.IDEMPOTENT)
            await client.run("balancer/unlock", [lock], [stream.owner, _RELEASED], Repeat.IDEMPOTENT)
            # The steps run on two nodes: a heartbeat in between takes the entry back.
            [entry] = await commands.pending_of([stream.entry_id])
            if entry is None or entry.consumer != stream.owner:
                return True
        return False


def _service(snapshot: StreamSnapshot) -> str:
    return service_of(snapshot.name) or ""


def _is_service(snapshot: StreamSnapshot) -> bool:
    return any(group.name == BalancerKeys(_service(snapshot)).group for group in snapshot.groups)


def _peers(reply: Reply, now_ms: int) -> tuple[BalancerPeer, ...]:
    if isinstance(reply, PenstockError):
        return ()
    found = [BalancerPeer(name, it.owned, it.capacity, until_ms - now_ms) for name, until_ms, it in peers_in(reply)]
    return tuple(sorted(found, key=lambda peer: peer.name))


def _info_of(entry_id: str, fields: list[bytes]) -> LBSInfo | None:
    try:
        return LBSInfo(LBSInputMessage.of_entry(fields).data_stream_name, entry_id)
    except PenstockError:
        return None
