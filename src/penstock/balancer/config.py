"""The settings of a balancer, the name of its consumer and its metrics recorder."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from penstock.errors import ConfigurationError
from penstock.events import EventSink
from penstock.keys import CONSUMER_PREFIX, MAX_NAME, check_name
from penstock.number_checks import check_number
from penstock.policy import doubling

_WHOLE = (
    "lbs_recovery_count", "ksp_chan_size", "output_chan_size", "lease_ms", "heartbeat_interval_ms",
    "recovery_interval_ms",
)  # fmt: skip
_MAY_BE_NONE = ("capacity", "max_deliveries")
_MIN_KSP_TIMEOUT_S = 60


def consumer_id(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return `redis-consumer-<name>`, from the given name, or POD_NAME, or POD_IP.

    It is the value of the locks, so no two running processes may share it, in Python or Go.
    """
    name = given if given is not None else environment.get("POD_NAME") or environment.get("POD_IP")
    if not name:
        raise ConfigurationError(
            "pod name or pod IP is missing: give id=..., or set the environment variable POD_NAME or POD_IP"
        )
    check_name("id", name, MAX_NAME - len(CONSUMER_PREFIX))
    return name if name.startswith(CONSUMER_PREFIX) else f"{CONSUMER_PREFIX}{name}"


class MetricsRecorder:
    """Records a balancer's metrics: subclass it and override what you need; by default, nothing is recorded.

    The nine methods are those of the Go client's recorder, in Python's spelling. They are called from several threads
    and must return quickly.
    """

    def record_startup_recovery(self, count: int, duration_s: float) -> None:
        """The first sweep ended; it found this number of streams without an owner."""

    def record_claim(self, stream: str, is_success: bool, duration_s: float) -> None:
        """A claim ended; one that came too late is not a success."""

    def record_lock_acquired(self, stream: str, is_success: bool) -> None:
        """This consumer tried to lock a new stream."""

    def record_locks_extended(self, count: int, lost: int) -> None:
        """A heartbeat ended."""

    def record_lock_released(self, stream: str, is_success: bool) -> None:
        """A stream was finished or handed over."""

    def record_processing_started(self, stream: str) -> None:
        """This consumer started to own a stream."""

    def record_processing_ended(self, stream: str, duration_s: float) -> None:
        """This consumer stopped owning a stream."""

    def record_ksp_received(self, count: int) -> None:
        """The server sent this number of hints."""

    def record_ksp_dropped(self, count: int) -> None:
        """This number of hints was dropped for lack of room; the next sweep finds these streams."""


_LOGGER, _NO_RECORDER = logging.getLogger("penstock.balancer"), MetricsRecorder()


@dataclass(frozen=True)
class RetryConfig:
    """How to retry failed reads: the number of tries in a row (-1: unlimited), with delays that double."""

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
                f"max_retry_delay={self.max_retry_delay} must be at least "
                f"initial_retry_delay={self.initial_retry_delay}"
            )

    def delay_s(self, failures: int) -> float | None:
        """Return the delay after a number of failures in a row; None = stop retrying."""
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
    heartbeat_interval_ms: int
    lease_ms: int
    recovery_interval_ms: int
    capacity: int | None
    max_deliveries: int | None
    on_event: EventSink | None


@dataclass(frozen=True, kw_only=True)
class BalancerConfig:
    """Settings of a `StreamBalancer`, with the names of redis-stream-client-go where it has the same ones."""

    lbs_idle_time: float = 40.0  # only validated: Go peers use their own, and our heartbeats keep entries far below it
    lbs_recovery_count: int = 1_000
    ksp_chan_size: int = 500
    ksp_chan_timeout: float = 600.0
    output_chan_size: int = 500
    force_config_override: bool = False  # without effect: flags of the server are merged, never overwritten
    retry_config: RetryConfig = RetryConfig()
    logger: logging.Logger = _LOGGER
    metrics_recorder: MetricsRecorder = _NO_RECORDER
    heartbeat_interval_ms: int = 1_000
    lease_ms: int = 2_000
    recovery_interval_ms: int = 5_000
    capacity: int | None = None
    max_deliveries: int | None = None
    on_event: EventSink | None = None

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
        if self.ksp_chan_timeout < _MIN_KSP_TIMEOUT_S:
            raise ConfigurationError(f"ksp_chan_timeout={self.ksp_chan_timeout} must be at least 60 seconds")
        self._check_times()

    def _check_times(self) -> None:
        if self.heartbeat_interval_ms * 2 > self.lease_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} must be at most half of "
                f"lease_ms={self.lease_ms}; otherwise one late heartbeat loses all streams: use "
                f"{self.lease_ms // 2} or less"
            )
        if self.lbs_idle_time * 1000 < self.lease_ms * 2:
            raise ConfigurationError(
                f"lbs_idle_time={self.lbs_idle_time} must be at least twice lease_ms={self.lease_ms}: "
                f"{self.lease_ms * 2 / 1000} seconds"
            )

    @property
    def refreshed_idle_ms(self) -> int:
        """The idle time that a heartbeat gives to owned entries.

        Above the lock's TTL, which a Go peer requires when the lock expires, and below the time after which a newly
        started Go peer takes entries without checking the lock.
        """
        return self.lease_ms * 3 // 2

    @property
    def peer_ttl_ms(self) -> int:
        """How long a consumer counts as alive after its last heartbeat."""
        return self.lease_ms + self.heartbeat_interval_ms
