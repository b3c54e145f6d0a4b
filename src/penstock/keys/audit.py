"""The stream of what operators have done."""

from __future__ import annotations

# Stream: one entry before an action of the dashboard begins, and one when it has ended.
AUDIT_STREAM = "penstock-audit"
