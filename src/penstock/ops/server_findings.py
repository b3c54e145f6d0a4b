"""What is dangerous in how servers are set up and in the rights of users, and what could not be examined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from penstock.ops.model import Finding, GroupKind, ServerInfo, ServiceInfo, Severity, StreamInfo, StreamKind
from penstock.ops.rights import RoleName

_SKEW_S, _LARGE_SKEW_S = 1.0, 30.0
_GUARANTEES = "explanation/delivery-guarantees.md"
_CLUSTER = "how-to/cluster-sentinel-tls.md"
_RETENTION = "how-to/retention-and-full-streams.md"
PAGE_OF_RIGHTS = "how-to/rights.md"
_FULL = 0.9  # of the memory limit
# The first release of each series without CVE-2025-49844: a script can leave its sandbox.
_SCRIPTS_ARE_SAFE = {
    "Redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
_FIXED_FROM = {"Redis": (8, 3), "Valkey": (9, 0)}


def server_findings(server: ServerInfo) -> list[Finding]:
    """Return what is dangerous in how a server keeps its data."""
    return [*_memory(server), *_persistence(server), *_replicas(server), *_clock(server)]


def _memory(server: ServerInfo) -> list[Finding]:
    found, policy = [], server.eviction_policy or ""
    what = "whole streams" if policy.startswith("allkeys") else "locks and deduplication keys"
    if policy.startswith(("allkeys", "volatile")):
        severity = Severity.ERROR if policy.startswith("allkeys") else Severity.WARNING
        found.append(
            Finding(
                "eviction-policy", severity, server.address,
                f"maxmemory-policy is {policy}: when memory is full, the server evicts {what}",
                "CONFIG SET maxmemory-policy noeviction", _GUARANTEES,
            )
        )  # fmt: skip
    if server.max_memory and server.used_memory > _FULL * server.max_memory:
        used = 100 * server.used_memory // server.max_memory
        found.append(
            Finding(
                "memory", Severity.ERROR, server.address, f"{used} % of maxmemory is used: writes will soon fail",
                "free memory: `penstock retention` shows what can be trimmed", _RETENTION,
            )
        )  # fmt: skip
    return found


def _persistence(server: ServerInfo) -> list[Finding]:
    def finding(severity: Severity, what: str, fix: str) -> Finding:
        return Finding("persistence", severity, server.address, what, fix, _GUARANTEES)

    found = []
    if not server.last_save_ok:
        found.append(finding(Severity.ERROR, "the last save to disk failed", "find the cause in the server log"))
    if server.is_append_only is False:
        taken = "only snapshots are taken" if server.snapshots else "at best, snapshots are taken"
        what = taken if server.snapshots is not False else "nothing is saved"
        lost = "the messages since the last snapshot" if server.snapshots is not False else "all messages"
        what = f"appendonly is off and {what}: a crash loses {lost}"
        found.append(finding(Severity.WARNING, what, "CONFIG SET appendonly yes"))
    elif server.is_append_only and server.fsync == "no":
        what = "appendfsync is no: a machine crash may lose the last 30 seconds"
        found.append(finding(Severity.INFO, what, "CONFIG SET appendfsync everysec"))
    return found


def _replicas(server: ServerInfo) -> list[Finding]:
    if server.role != "master":
        return []
    if not server.replicas:
        what, fix = "no server can take over when this one fails", "add a replica and Sentinel, or use a cluster"
        return [Finding("replicas", Severity.INFO, server.address, f"no replica: {what}", fix, _CLUSTER)]
    if server.min_replicas != 0:
        return []
    what = "min-replicas-to-write is 0: a failover loses messages that no replica has received yet"
    fix = "CONFIG SET min-replicas-to-write 1, or publish with durability='replicated'"
    return [Finding("replicas", Severity.WARNING, server.address, what, fix, _GUARANTEES)]


def _clock(server: ServerInfo) -> list[Finding]:
    skew_s = abs(server.clock_skew_s)
    if skew_s <= _SKEW_S:
        return []
    severity = Severity.ERROR if skew_s > _LARGE_SKEW_S else Severity.WARNING
    direction = "ahead of" if server.clock_skew_s > 0 else "behind"
    what = f"its clock is {skew_s:.1f} s {direction} this machine's: expiry times and ages are off by that much"
    return [
        Finding(
            "clock-skew",
            severity,
            server.address,
            what,
            "synchronize both clocks with NTP",
            "explanation/leases-and-fencing.md",
        )
    ]


def known_vulnerabilities(server: ServerInfo) -> list[Finding]:
    """Return holes of the version of a server that scripts can be used for."""
    numbers = [int(part) for part in re.findall(r"\d+", server.version)[:3]]
    if len(numbers) < 3 or tuple(numbers[:2]) >= _FIXED_FROM.get(server.product, (0, 0)):
        return []
    fixed = _SCRIPTS_ARE_SAFE.get(server.product, {}).get((numbers[0], numbers[1]))
    if fixed is not None and numbers[2] >= fixed:
        return []
    newer = f"{numbers[0]}.{numbers[1]}.{fixed}" if fixed is not None else "a newer release series"
    return [
        Finding(
            "known-holes", Severity.WARNING, server.address,
            f"{server.product} {server.version} has CVE-2025-49844: users who may run scripts can run code on it",
            f"upgrade to {newer}, unless your distribution has patched it", PAGE_OF_RIGHTS,
        )
    ]  # fmt: skip


def keyspace_events(server: ServerInfo, services: Sequence[ServiceInfo]) -> list[Finding]:
    """Report servers that do not notify consumers of balanced services when a lock expires."""
    events = server.keyspace_events
    if not services or events is None:
        return []
    if ("x" in events or "A" in events) and ("E" in events or "K" in events):
        return []
    return [
        Finding(
            "keyspace-events", Severity.WARNING, server.address,
            f"notify-keyspace-events is {events!r}: streams of dead consumers wait for the next sweep",
            "CONFIG SET notify-keyspace-events Ex", "how-to/balancer.md",
        )
    ]  # fmt: skip


def open_server(flags: Iterable[bytes]) -> list[Finding]:
    """Report a default user without a password."""
    if not {b"on", b"nopass"} <= set(flags):
        return []
    return [
        Finding(
            "rights", Severity.WARNING, "user default", "has no password: anyone who can reach it has full access",
            "create users with `penstock acl --role worker` and so on, then run ACL SETUSER default off",
            PAGE_OF_RIGHTS,
        )
    ]  # fmt: skip


def unread_settings(server: ServerInfo, services: Sequence[ServiceInfo]) -> list[Finding]:
    """Report what decides whether a server is safe and could not be read."""
    if server.version == "unknown":
        return [not_examined(server.address, "version, memory, persistence and replicas", "INFO")]
    needed = {
        "appendfsync": server.fsync is None and server.is_append_only is not False,
        "save": server.snapshots is None and server.is_append_only is False,
        "notify-keyspace-events": server.keyspace_events is None and bool(services),
    }
    unread = [name for name, is_needed in needed.items() if is_needed]
    return [not_examined(server.address, ", ".join(unread), "CONFIG GET")] if unread else []


def not_examined(where: str, what: str, right: str) -> Finding:
    """Return the finding that something could not be examined, and the right that is missing."""
    shows = ", which also shows passwords or their hashes" if "CONFIG" in right or "GETUSER" in right else ""
    fix = f"run the doctor as an administrator, or allow the user {right}{shows}"
    return Finding("not-examined", Severity.INFO, where, f"not examined: {what}", fix, PAGE_OF_RIGHTS)


def lacking(user: str, role: RoleName, commands: Sequence[str]) -> list[Finding]:
    """Return whether a user lacks commands that a role needs."""
    if not commands:
        return []
    what = f"may not run commands that the role {role} needs: {', '.join(commands[:8])}"
    fix = f"apply the rights that `penstock acl --role {role}` prints"
    return [Finding("rights", Severity.WARNING, f"user {user}", what, fix, PAGE_OF_RIGHTS)]


def roles_in_use(streams: Sequence[StreamInfo], services: Sequence[ServiceInfo]) -> list[RoleName]:
    """Return the roles for which there is work on the server; a worker may do everything that a producer does."""
    kinds = {stream.kind for stream in streams}
    readers = {group.kind for stream in streams for group in stream.groups} - {GroupKind.CONSUMERS}
    roles = [RoleName.WORKER] if kinds & {StreamKind.STREAM, StreamKind.QUEUE} else []
    roles += [RoleName.TASKS] if StreamKind.TASKS in kinds else []
    return [*roles, *([RoleName.BALANCER] if services else []), *([RoleName.SPARK] if readers else [])]
