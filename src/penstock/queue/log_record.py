"""What the logs of completed and failed messages say beside the fields of a message."""

from __future__ import annotations

from penstock import dead_letter_record
from penstock.queue.claim import Claim


def log_record(claim: Claim, error: BaseException | None) -> list[str | int]:
    """Return what a log says of a message beside its own fields."""
    record: list[str | int] = ["log_id", claim.entry_id, "log_attempts", claim.attempts]
    if error is not None:
        record += ["log_error", dead_letter_record.class_of(error), "log_error_text", dead_letter_record.said_by(error)]
    return record
