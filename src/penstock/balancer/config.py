"""How a balancer behaves: one frozen value, checked once, cross-field rules side by side."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypedDict

from penstock.balancer.recorder import MetricsRecorder
from penstock.errors import ConfigurationError
from penstock.number_checks import check_number
from penstock.policy import doubling

_WHOLE = (
    "lbs_recovery_count", "ksp_chan_size", "output_chan_size", "heartbeat_ms", "lock_ttl_ms", "sweep_interval_ms",
)  # fmt: skip
_MAY_BE_NONE = ("capacity", "max_deliveries")
_LEAST_KSP_TIMEOUT_S = 60
_LOGGER, _NO_RECORDER = logging.getLogger("penstock.balancer"), MetricsRecorder()


@dataclass(frozen=True)
class RetryConfig:
    """What to do when reading fails: so many tries in a row (-1: without end), with delays that double."""

    max_retries: int = 5
    initial_retry_delay: float = 0.1
    max_retry_delay: float = 30.0

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        if self.max_retries != -1:
            check_number("max_retries", self.max_retries, may_be_zero=True)
        for name in ("initial_retry_delay", "max_retry_delay"):
            check_number(name, getattr(self, name), is_whole=False)
        if self.max_retry_delay < self.initial_retry_delay:
            raise ConfigurationError(
                f"max_retry_delay={self.max_retry_delay} must not be below "
                f"initial_retry_delay={self.initial_retry_delay}"
            )

    def delay_s(self, failures: int) -> float | None:
        """Return how long to wait after so many failures in a row; None = give up."""
        if 0 <= self.max_retries < failures:
            return None
        return doubling(self.initial_retry_delay, failures, self.max_retry_delay)


class BalancerOptions(TypedDict, total=False):
    """The fields of BalancerConfig as keywords of StreamBalancer, for type checkers."""

    lbs_idle_time: float
    lbs_recovery_count: int
    ksp_chan_size: int
    ksp_chan_timeout: float
    output_chan_size: int
    force_config_override: bool
    retry_config: RetryConfig | None
    logger: logging.Logger | None
    metrics_recorder: MetricsRecorder | None
    heartbeat_ms: int
    lock_ttl_ms: int
    sweep_interval_ms: int
    capacity: int | None
    max_deliveries: int | None


@dataclass(frozen=True, kw_only=True)
class BalancerConfig:
    """Settings of a `StreamBalancer`. Those that redis-stream-client-go has too are named after its options."""

    lbs_idle_time: float = 40.0  # checked only: Go peers go by theirs, our heartbeats keep entries far below it
    lbs_recovery_count: int = 1_000
    ksp_chan_size: int = 500
    ksp_chan_timeout: float = 600.0
    output_chan_size: int = 500
    force_config_override: bool = False  # without effect: flags of the server are merged, never overwritten
    retry_config: RetryConfig = RetryConfig()
    logger: logging.Logger = _LOGGER
    metrics_recorder: MetricsRecorder = _NO_RECORDER
    heartbeat_ms: int = 1_000
    lock_ttl_ms: int = 2_000
    sweep_interval_ms: int = 5_000
    capacity: int | None = None
    max_deliveries: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        for name in _WHOLE:
            check_number(name, getattr(self, name))
        for name in _MAY_BE_NONE:
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        for name in ("lbs_idle_time", "ksp_chan_timeout"):
            check_number(name, getattr(self, name), is_whole=False)
        if not isinstance(self.retry_config, RetryConfig):
            raise ConfigurationError(f"retry_config must be a RetryConfig, not {type(self.retry_config).__name__}")
        if self.ksp_chan_timeout < _LEAST_KSP_TIMEOUT_S:
            raise ConfigurationError(f"ksp_chan_timeout={self.ksp_chan_timeout} must be at least 60 seconds")
        self._check_times()

    def _check_times(self) -> None:
        if self.heartbeat_ms * 2 > self.lock_ttl_ms:
            raise ConfigurationError(
                f"heartbeat_ms={self.heartbeat_ms} must be at most half of lock_ttl_ms={self.lock_ttl_ms}, else one "
                f"late heartbeat costs every stream: use {self.lock_ttl_ms // 2} or less"
            )
        if self.lbs_idle_time * 1000 < self.lock_ttl_ms * 2:
            raise ConfigurationError(
                f"lbs_idle_time={self.lbs_idle_time} must be at least twice lock_ttl_ms={self.lock_ttl_ms}: "
                f"{self.lock_ttl_ms * 2 / 1000} seconds"
            )

    @property
    def refreshed_idle_ms(self) -> int:
        """The idle time that a heartbeat gives to owned entries.

        Above the lock's TTL, which a Go peer demands at the moment the lock expires, and below the time after which a
        Go newcomer takes entries without asking for the lock.
        """
        return self.lock_ttl_ms * 3 // 2

    @property
    def peer_ttl_ms(self) -> int:
        """How long a consumer counts as alive after its last heartbeat."""
        return self.lock_ttl_ms + self.heartbeat_ms
