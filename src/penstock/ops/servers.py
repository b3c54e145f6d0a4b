"""The servers themselves: version, memory, persistence, replicas, clients, clock."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from penstock import envelope
from penstock.errors import PenstockError
from penstock.ops.model import ServerInfo
from penstock.redis.aio import Connection, Reply, connect
from penstock.redis.capabilities import parse_info
from penstock.redis.client import StreamClient
from penstock.redis.topology import Sentinels, directory_of

_SETTINGS = ("appendfsync", "save", "maxmemory-policy", "min-replicas-to-write", "notify-keyspace-events")


class Servers:
    """The servers that a client reaches: one, or the masters of a cluster."""

    def __init__(self, client: StreamClient) -> None:
        self._client = client

    async def all(self) -> tuple[ServerInfo, ...]:
        """Return the servers. What a user may not ask for is None."""
        return tuple([await _server_info(connection) for connection in await self._client.to_masters()])

    async def failover_ms(self) -> int | None:
        """Return how long a master must be silent before a failover; None = unknown, or there is no failover."""
        if self._client.is_cluster:
            [connection, *_] = await self._client.to_masters()
            [timeout] = await connection.pipeline([("CONFIG", "GET", "cluster-node-timeout")])
            return envelope.number(_setting(timeout))
        sentinels = directory_of(self._client.settings)
        if not isinstance(sentinels, Sentinels):
            return None
        for host in sentinels.settings.hosts:
            with suppress(PenstockError):  # the next one may answer
                connection = await connect(replace(sentinels.settings, hosts=(host,)), host)
                try:
                    [reply] = await connection.pipeline([("SENTINEL", "MASTER", sentinels.name)])
                finally:
                    connection.abort()
                found = {} if isinstance(reply, PenstockError) else dict(zip(reply[::2], reply[1::2], strict=True))
                if (silent_ms := envelope.number(found.get(b"down-after-milliseconds"))) is not None:
                    return silent_ms
        return None


async def _server_info(connection: Connection) -> ServerInfo:
    asked_s = time.time()
    commands = [("TIME",), ("INFO",), *(("CONFIG", "GET", setting) for setting in _SETTINGS)]
    clock, reply, *settings = await connection.pipeline(commands)
    passed_s = time.time() - asked_s
    info = parse_info("" if isinstance(reply, PenstockError) else reply.decode(errors="replace"))
    config = {name: _setting(reply) for name, reply in zip(_SETTINGS, settings, strict=True)}
    is_append_only = info.get("aof_enabled")
    replicas = (config["min-replicas-to-write"] or "").encode()
    return ServerInfo(
        address=connection.where,
        product="Valkey" if "valkey_version" in info else "Redis",
        version=info.get("valkey_version") or info.get("redis_version", "unknown"),
        role=info.get("role", "unknown"),
        uptime_s=_number(info, "uptime_in_seconds"),
        used_memory=_number(info, "used_memory"),
        max_memory=_number(info, "maxmemory"),
        peak_memory=_number(info, "used_memory_peak"),
        eviction_policy=info.get("maxmemory_policy") or config["maxmemory-policy"],
        is_append_only=None if is_append_only is None else is_append_only == "1",
        fsync=config["appendfsync"],
        snapshots=None if config["save"] is None else bool(config["save"]),
        unsaved_changes=_number(info, "rdb_changes_since_last_save"),
        last_save_ok=info.get("rdb_last_bgsave_status", "ok") == "ok"
        and info.get("aof_last_write_status", "ok") == "ok",
        replicas=_number(info, "connected_slaves"),
        # INFO has this field while the setting is not 0: the number is in CONFIG, which few users may read.
        min_replicas=0 if info and "min_slaves_good_slaves" not in info else envelope.number(replicas),
        clients=_number(info, "connected_clients"),
        blocked_clients=_number(info, "blocked_clients"),
        ops_per_s=_number(info, "instantaneous_ops_per_sec"),
        keys=sum(_keys(value) for name, value in info.items() if name.startswith("db") and name[2:].isdigit()),
        keyspace_events=config["notify-keyspace-events"],
        is_cluster=info.get("cluster_enabled") == "1",
        clock_skew_s=0.0 if isinstance(clock, PenstockError) else _seconds(clock) - asked_s - passed_s / 2,
        cpu_s=_decimal(info, "used_cpu_sys_main_thread") + _decimal(info, "used_cpu_user_main_thread"),
    )


def _seconds(clock: Reply) -> float:
    return int(clock[0]) + int(clock[1]) / 1e6


def _setting(reply: Reply) -> str | None:
    # Forbidden, or renamed, on many managed servers.
    return None if isinstance(reply, PenstockError) or len(reply) < 2 else reply[1].decode(errors="replace")


def _number(info: dict[str, str], name: str) -> int:
    value = info.get(name, "")
    return int(value) if value.isdigit() else 0


def _decimal(info: dict[str, str], name: str) -> float:
    try:
        return float(info.get(name, 0))
    except ValueError:
        return 0.0


def _keys(value: str) -> int:
    # As in keys=12,expires=3,avg_ttl=0
    count = value.partition("keys=")[2].partition(",")[0]
    return int(count) if count.isdigit() else 0
