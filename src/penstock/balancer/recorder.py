"""Where a balancer's numbers go: the nine methods of the Go client's recorder, in Python's spelling."""

from __future__ import annotations


class MetricsRecorder:
    """Is told what happens, and records nothing: derive from it and override what you count.

    Called from several threads, must return at once.
    """

    def record_startup_recovery(self, count: int, duration_s: float) -> None:
        """The first sweep is done and found so many streams without an owner."""

    def record_claim(self, stream: str, is_success: bool, duration_s: float) -> None:
        """A claim was answered; one that came too late is no success."""

    def record_lock_acquired(self, stream: str, is_success: bool) -> None:
        """The lock of a new stream was asked for."""

    def record_locks_extended(self, count: int, lost: int) -> None:
        """A heartbeat is done."""

    def record_lock_released(self, stream: str, is_success: bool) -> None:
        """A stream was finished or handed over."""

    def record_processing_started(self, stream: str) -> None:
        """The ownership of a stream begins."""

    def record_processing_ended(self, stream: str, duration_s: float) -> None:
        """The ownership of a stream ends."""

    def record_ksp_received(self, count: int) -> None:
        """So many hints came from the server."""

    def record_ksp_dropped(self, count: int) -> None:
        """So many hints were dropped for want of room; the next sweep finds what they told."""
