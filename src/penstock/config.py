"""The settings of a consumer: one frozen value, validated once."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, fields

from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.number_checks import check_number
from penstock.policy import AttemptLimits, Backoff

_NO_NUMBERS = {"group", "worker_name", "dlq_stream", "dlq_group", "handle_signals"}
_MAY_BE_ZERO = {"block_ms", "shutdown_grace_ms", "max_stream_size", "retry_jitter"}
PREFETCH_BATCHES = 10
MAX_WORKER_NAME = 64
_LONGEST_HEARTBEAT_MS = 15_000


@dataclass(frozen=True)
class ConsumerConfig:
    """Settings of a `StreamConsumer`.

    `min_idle_claim_ms` is the lease: a message whose holder has not renewed it for that long goes to another consumer.
    Durations are in milliseconds. None means derived from the others; see the properties.
    """

    group: str
    worker_name: str | None = None
    dlq_stream: str | None = None
    dlq_group: str | None = None
    batch_size: int = 100
    block_ms: int = 5_000
    min_idle_claim_ms: int = 10_000
    max_deliveries: int = 3
    max_stream_size: int = 100_000
    max_claim_passes: int | None = None
    max_attempts: int | None = None
    concurrency: int | None = None
    prefetch: int | None = None
    heartbeat_interval_ms: int | None = None
    recovery_interval_ms: int | None = None
    retry_initial_delay_ms: int | None = None
    retry_max_delay_ms: int = 60_000
    retry_jitter: float = 0.1
    handler_timeout_ms: int | None = None
    shutdown_grace_ms: int = 10_000
    retention_interval_ms: int = 30_000
    consumer_ttl_ms: int = 600_000
    handle_signals: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_name("group", self.group)
        for name in ("worker_name", "dlq_stream", "dlq_group"):
            value = getattr(self, name)
            if value is not None:
                check_name(name, value)
        self._check_numbers()
        if self.heartbeat_interval_ms is not None and self.heartbeat_interval_ms * 3 > self.min_idle_claim_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} must be at most a third of the lease, "
                f"min_idle_claim_ms={self.min_idle_claim_ms}; otherwise one missed heartbeat loses the lease: "
                f"use {self.min_idle_claim_ms // 3} or less"
            )
        if self.prefetch is not None and self.prefetch < self.batch_size:
            raise ConfigurationError(f"prefetch={self.prefetch} must be at least batch_size={self.batch_size}")
        if self.retry_jitter > 1:
            raise ConfigurationError(f"retry_jitter={self.retry_jitter} must be between 0 and 1")

    def _check_numbers(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in _NO_NUMBERS and not (value is None and item.default is None):
                is_whole, may_be_zero = item.name != "retry_jitter", item.name in _MAY_BE_ZERO
                check_number(item.name, value, is_whole=is_whole, may_be_zero=may_be_zero)

    @property
    def lease_ms(self) -> int:
        """How long a message stays with a consumer that has stopped renewing its lease."""
        return self.min_idle_claim_ms

    @property
    def effective_heartbeat_ms(self) -> int:
        """How often leases are renewed, in ms."""
        return self.heartbeat_interval_ms or usual_heartbeat_ms(self.min_idle_claim_ms)

    @property
    def effective_recovery_ms(self) -> int:
        """How often the consumer looks for messages of dead consumers."""
        return self.recovery_interval_ms or max(1, self.min_idle_claim_ms // 2)

    @property
    def max_prefetch(self) -> int:
        """The most messages that may wait in the process."""
        return self.prefetch or self.batch_size * PREFETCH_BATCHES

    @property
    def limits(self) -> AttemptLimits:
        """How often a message may be delivered and attempted."""
        return AttemptLimits(self.max_deliveries, self.max_attempts)

    @property
    def backoff(self) -> Backoff:
        """How long a failed message waits."""
        initial = self.retry_initial_delay_ms or min(1_000, self.min_idle_claim_ms)
        return Backoff(initial, max(self.retry_max_delay_ms, initial), self.retry_jitter)

    def resolved_worker_name(self) -> str:
        """Return the given name, or a new unique one."""
        return self.worker_name or unique_worker_name(self.group)


def usual_heartbeat_ms(lease_ms: int) -> int:
    """Return how often a lease is renewed unless configured: a quarter of it, and 15 s at most.

    However long leases are, a consumer that is silent for a minute counts as dead.
    """
    return max(1, min(lease_ms // 4, _LONGEST_HEARTBEAT_MS))


def unique_worker_name(group: str, hostname: str | None = None, pid: int | None = None) -> str:
    """Return `<group>_<hostname>_<pid and 8 random digits, in hex>`, at most 64 characters long.

    The group is cut first, down to one character, then the hostname; the unique part stays whole. Without
    `hostname` and `pid` those of this process are taken.
    """
    process = os.getpid() if pid is None else pid
    # Drawn from the system and not from `random`: forked workers share its state and would get the same name.
    unique = f"{process:x}{secrets.token_hex(4)}"
    room = MAX_WORKER_NAME - len(unique) - len("__")
    # Keep the end of the hostname, where the pods of a deployment differ.
    host = (hostname or socket.gethostname() or "localhost")[-(room - 1) :]
    return f"{group[: room - len(host)]}_{host}_{unique}"
