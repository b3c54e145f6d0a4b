"""What the logs of completed and failed messages say beside the fields of a message."""

from __future__ import annotations

from penstock.errors import text_of
from penstock.queue.claim import Claim

_MAX_TEXT = 2_000


def log_record(claim: Claim, error: BaseException | None) -> list[str | int]:
    """Return what a log says of a message beside its own fields."""
    record: list[str | int] = ["log_id", claim.entry_id, "log_attempts", claim.attempts]
    if error is not None:
        record += ["log_error", type(error).__name__, "log_error_text", text_of(error)[:_MAX_TEXT]]
    return record
