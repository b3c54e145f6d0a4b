"""Moves a slot of a running cluster from one node to another, step by step, as resharding tools do."""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from penstock.redis.probe import ask, connect
from penstock.testing import Cluster
from tests.helpers.threads import eventually

Address = tuple[str, int]


class SlotMove:
    """One slot on its way: `begin`, `move` some or all keys, `finish`."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self._cluster = cluster
        self.slot = int(tell(cluster.addresses[0], "CLUSTER", "KEYSLOT", key))
        self.source = owner(cluster, self.slot)
        self.target = next(address for address in cluster.addresses if address != self.source)

    def begin(self) -> SlotMove:
        """From now on the source refers to the target (ASK) for keys that it does not have."""
        # A target that has not heard of the latest epoch takes it a second time, and may lose the slot again.
        eventually(lambda: len({epochs(address) for address in self._cluster.addresses}) == 1)
        tell(self.target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", node_id(self.source))
        tell(self.source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", node_id(self.target))
        return self

    def move(self, *keys: str) -> SlotMove:
        """Moves the given keys, or all that the source has."""
        wanted: list[Any] = list(keys) or tell(self.source, "CLUSTER", "GETKEYSINSLOT", self.slot, 1000)
        if wanted:
            tell(self.source, "MIGRATE", *self.target, "", 0, 5000, "KEYS", *wanted)
        return self

    def finish(self) -> SlotMove:
        """Moves what is left and makes the target the owner; every node learns it."""
        self.move()
        for address in (self.target, self.source, *self._cluster.addresses):
            tell(address, "CLUSTER", "SETSLOT", self.slot, "NODE", node_id(self.target))
        return self

    def ask_target(self, *command: Any) -> Any:
        """Sends a command to the target while the slot is on its way."""
        reader = hiredis.Reader()
        with connect(self.target, 5.0) as link:
            link.sendall(hiredis.pack_command(("ASKING",)) + hiredis.pack_command(command))
            _next_reply(link, reader)
            reply = _next_reply(link, reader)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply


def _next_reply(link: socket.socket, reader: hiredis.Reader) -> Any:
    while (reply := reader.gets()) is False:
        reader.feed(link.recv(65536))
    return reply


def tell(address: Address, *command: Any) -> Any:
    """Sends a command to one node and returns its reply, or raises it."""
    reply = ask(address, *command, timeout_s=30.0)
    if isinstance(reply, Exception):
        raise reply
    return reply


def node_id(address: Address) -> str:
    """Returns the id under which the others know the node."""
    return str(tell(address, "CLUSTER", "MYID").decode())


def epochs(address: Address) -> frozenset[tuple[bytes, bytes]]:
    """Returns the epoch of each node, as far as this one has heard."""
    lines = [line.split() for line in tell(address, "CLUSTER", "NODES").splitlines()]
    return frozenset((fields[0], fields[6]) for fields in lines)


def owner(cluster: Cluster, slot: int) -> Address:
    """Returns the node that serves the slot."""
    for first, last, node, *_ in tell(cluster.addresses[0], "CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return next(address for address in cluster.addresses if address[1] == node[1])
    raise AssertionError(f"nobody serves slot {slot}")


def tags_on_all_nodes(cluster: Cluster) -> list[str]:
    """Returns one name for each node, such that keys tagged with it live there."""
    found: dict[Address, str] = {}
    for n in range(1000):
        place = owner(cluster, int(tell(cluster.addresses[0], "CLUSTER", "KEYSLOT", f"tag{n}")))
        found.setdefault(place, f"tag{n}")
        if len(found) == len(cluster.addresses):
            break
    return list(found.values())
