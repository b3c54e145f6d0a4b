"""Servers, what the doctor has found, and everything at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.ops.model.balancer import ServiceInfo
from penstock.ops.model.streams import StreamInfo
from penstock.ops.model.tasks import TaskQueueInfo


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One server; None = it does not say."""

    address: str
    product: str
    version: str
    role: str
    uptime_s: int
    used_memory: int
    max_memory: int  # 0 = no limit
    peak_memory: int
    eviction_policy: str | None
    is_append_only: bool | None
    fsync: str | None
    snapshots: bool | None  # whether snapshots are taken by rule
    unsaved_changes: int
    last_save_ok: bool
    replicas: int
    min_replicas: int | None
    clients: int
    blocked_clients: int
    ops_per_s: int
    keys: int
    keyspace_events: str | None
    is_cluster: bool
    clock_skew_s: float  # how far the server's clock is ahead of this machine's
    cpu_s: float = 0.0  # used by its main thread since it started


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# The pages that findings refer to, with their titles: an installed package has no copy of the documentation.
PAGES = {
    "explanation/delivery-guarantees.md": "Delivery guarantees",
    "explanation/leases-and-fencing.md": "Leases and fencing",
    "how-to/balancer.md": "Share whole streams out over consumers",
    "how-to/cluster-sentinel-tls.md": "Connect to a cluster, to Sentinel, with TLS",
    "how-to/dead-letters.md": "Work with dead letters",
    "how-to/deploy-many-workers.md": "Deploy many workers",
    "how-to/retention-and-full-streams.md": "Retention and full streams",
    "how-to/rights.md": "Give each program only the rights it needs",
    "how-to/worker.md": "Run task workers",
    "reference/consumer-config.md": "ConsumerConfig",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What the doctor has found."""

    check: str  # its stable name
    severity: Severity
    where: str  # server, stream, group, ...
    what: str
    fix: str = ""
    link: str = ""  # a page of the documentation

    @property
    def page(self) -> str:
        """The page about it, by its title."""
        return f'"{PAGES[self.link]}" in the documentation' if self.link else ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all streams."""

    streams: int = 0
    entries: int = 0
    groups: int = 0
    consumers: int = 0
    pending: int = 0
    lag: int = 0
    is_lag_exact: bool = True
    retries_waiting: int = 0
    dead_letters: int = 0
    oldest_unread_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything at one moment."""

    at_ms: int
    streams: tuple[StreamInfo, ...]
    totals: Totals
    servers: tuple[ServerInfo, ...] = ()
    task_queues: tuple[TaskQueueInfo, ...] = ()
    services: tuple[ServiceInfo, ...] = ()
    names: int = 0  # number of streams; more than len(streams) if a limit was given


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """A stream at one moment, for a chart."""

    at_ms: int
    length: int
    lag: int
    pending: int
    dead_letters: int
    in_per_s: float | None  # None = not known, as in the first sample
    out_per_s: float | None  # of the fastest group; None = of no group known, for lags that are bounds


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything at one moment, for a chart; `error` says why there are no numbers."""

    at_ms: int
    totals: Totals
    in_per_s: float = 0.0  # of the streams whose rates are known
    out_per_s: float = 0.0
    used_memory: int = 0
    max_memory: int = 0
    ops_per_s: int = 0
    clients: int = 0
    error: str = ""
    number: int = 0  # grows by one with each sample; times may stand still or go back when a clock is set
