"""The message every peer carries: about 200 bytes of JSON."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def message(number: int) -> Message:
    """Returns the message with this number; `ts` is filled in where latency is measured."""
    return {
        "id": number,
        "ts": 0.0,
        "type": "order.created",
        "user": f"user-{number % 1000:06d}@example.com",
        "items": [{"sku": "SKU-00112233", "qty": 2}, {"sku": "SKU-99887766", "qty": 1}],
        "note": "x" * 30,
    }
