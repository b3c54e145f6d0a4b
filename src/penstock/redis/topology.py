"""Which servers are masters, according to the Sentinels of a service or the nodes of a cluster."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from redis.crc import key_slot

from penstock.errors import AuthenticationFailed, ConnectionFailed, PenstockError, PermissionDenied
from penstock.redis.blocking import Reply
from penstock.redis.packing import Command
from penstock.redis.settings import ConnectionSettings, Host

_SLOTS = 16_384
_PATIENCE_S = 5.0
_CLUSTER_MAX_POLLED = 3  # one node may be frozen, and another cut off from the rest


@dataclass(frozen=True)
class Masters:
    """The masters and their slots, as sorted ranges: first slot, last slot, server."""

    ranges: tuple[tuple[int, int, Host], ...]

    @cached_property
    def hosts(self) -> frozenset[Host]:
        """All masters."""
        return frozenset(host for _, _, host in self.ranges)

    def of(self, key: str) -> Host | None:
        """Return the master that has a key."""
        if len(self.ranges) == 1:
            return self.ranges[0][2]
        slot = slot_of(key)
        index = bisect_right(self.ranges, slot, key=lambda row: row[0]) - 1
        return self.ranges[index][2] if index >= 0 and slot <= self.ranges[index][1] else None


def slot_of(key: str) -> int:
    """Return the slot of a key in a cluster."""
    return key_slot(key.encode())


@dataclass(frozen=True)
class Answer:
    """The reply of one Sentinel or node.

    `epoch` is the number of the latest failover that it knows of, `is_down` whether it takes the master for dead,
    `nodes` are the servers that can be asked as well.
    """

    masters: Masters
    epoch: int
    is_down: bool = False
    nodes: tuple[Host, ...] = ()


def newest(answers: Collection[Answer], known: Answer | None, polled: int) -> Answer | None:
    """Return the answer to believe: the one that knows of the latest failover.

    A server that is cut off from the others does not. An answer older than the known one is believed only if a majority
    of the polled nodes replied: then all of them were set up anew.
    """
    if not answers:
        return known
    masters = known.masters if known is not None else None
    found = max(answers, key=lambda answer: (answer.epoch, answer.masters == masters, not answer.is_down))
    is_older = known is not None and found.epoch < known.epoch
    return known if is_older and 2 * len(answers) <= polled else found


@dataclass(frozen=True)
class Sentinels:
    """The Sentinels of one service."""

    settings: ConnectionSettings
    name: str

    @property
    def max_polled(self) -> int:
        """How many are polled at a time: all, since the failover may be known to one of them only."""
        return len(self.settings.hosts)

    @property
    def questions(self) -> Sequence[Command]:
        """The commands that ask one of them."""
        # MASTER names the old master until the failover is complete, but already has the epoch of the promotion.
        return [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name), ("SENTINEL", "MASTER", self.name)]

    def answer(self, _node: Host, replies: Sequence[Reply]) -> Answer:
        """Return the answer in the replies, or raise their error."""
        address, details = replies
        if isinstance(address, PenstockError):
            raise address
        if not address:
            raise ConnectionFailed(f"it does not monitor a master named {self.name!r}")
        host, port = address
        fields = [] if isinstance(details, PenstockError) else details
        found = dict(zip(fields[::2], fields[1::2], strict=False))
        # The flags are about the old master, which may have been replaced a moment ago.
        is_same = (found.get(b"ip"), found.get(b"port")) == (host, port)
        flags = found.get(b"flags", b"").split(b",")
        is_down = is_same and (b"s_down" in flags or b"o_down" in flags)
        masters = Masters(((0, _SLOTS - 1, (host.decode(), int(port))),))
        return Answer(masters, int(found.get(b"config-epoch", 0)), is_down)

    def not_found(self, reasons: Collection[PenstockError]) -> PenstockError:
        """Return the error for a look-up that found no master."""
        where = self.settings.where
        if any(isinstance(reason, AuthenticationFailed | PermissionDenied) for reason in reasons):
            return AuthenticationFailed(
                f"a Sentinel at {where} rejected the login: set sentinel_username and sentinel_password, which "
                "are separate from those of the server"
            )
        return ConnectionFailed(
            f"no Sentinel at {where} reports a live master named {self.name!r}{_why(reasons)}; check that the "
            "Sentinels are running and that the name is correct"
        )


@dataclass(frozen=True)
class ClusterNodes:
    """The nodes of one cluster: the given ones, and those that they know."""

    settings: ConnectionSettings
    max_polled: int = _CLUSTER_MAX_POLLED
    questions: Sequence[Command] = (("CLUSTER", "SLOTS"), ("CLUSTER", "NODES"))

    @property
    def name(self) -> str:
        """The cluster, for logs."""
        return f"the cluster at {self.settings.where}"

    def answer(self, node: Host, replies: Sequence[Reply]) -> Answer:
        """Return the answer in the replies, or raise their error."""
        slots, nodes = replies
        if isinstance(slots, PenstockError):
            raise slots
        ranges = sorted((first, last, _host(node, master)) for first, last, master, *_ in slots)
        seen = tuple(dict.fromkeys(_host(node, each) for _, _, *row in slots for each in row))
        epochs = {} if isinstance(nodes, PenstockError) else _epochs(nodes)
        epoch = max((epochs.get(master[2], 0) for _, _, master, *_ in slots), default=0)
        return Answer(Masters(tuple(ranges)), epoch, nodes=seen)

    def not_found(self, reasons: Collection[PenstockError]) -> PenstockError:
        """Return the error for a look-up that no node answered."""
        for reason in reasons:
            if isinstance(reason, AuthenticationFailed | PermissionDenied):
                return reason
        return ConnectionFailed(
            f"cannot connect to the cluster at {self.settings.where}{_why(reasons)}; check that its nodes are "
            "running and that hosts, ports and TLS are correct"
        )


def _host(polled: Host, node: Sequence[Reply]) -> Host:
    # A node may omit its own host: then it is the polled one.
    name, port = node[:2]
    return name.decode() if name else polled[0], int(port)


def _epochs(nodes: bytes) -> dict[bytes, int]:
    # Of each line: the id of the node, and in the seventh field the epoch in which it got its slots.
    rows = (line.split(b" ") for line in nodes.splitlines())
    return {row[0]: int(row[6]) for row in rows if len(row) > 6}


def _why(reasons: Collection[PenstockError]) -> str:
    return f" ({'; '.join(dict.fromkeys(map(str, reasons)))})" if reasons else ""


Directory: TypeAlias = Sentinels | ClusterNodes


def directory_of(settings: ConnectionSettings) -> Directory | None:
    """Return the directory that knows the masters; None for a single server."""
    directory = ConnectionSettings(
        hosts=tuple(dict.fromkeys(settings.hosts)),
        username=settings.username,
        password=settings.password,
        credential_provider=settings.credential_provider,
        tls=settings.tls,
        tls_options=settings.tls_options,
        socket_timeout_s=_PATIENCE_S,
        connect_timeout_s=_PATIENCE_S,
    )
    if settings.kind == "cluster":
        return ClusterNodes(directory)
    if settings.kind == "sentinel":
        username, password = settings.sentinel_username, settings.sentinel_password
        directory = replace(directory, username=username, password=password, credential_provider=None)
        return Sentinels(directory, str(settings.service_name))
    return None
