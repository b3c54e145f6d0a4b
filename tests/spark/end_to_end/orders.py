"""Payloads as classes, for the option payloadModel: Spark's Python imports them by this name."""

from __future__ import annotations

from pydantic import BaseModel


class Order(BaseModel):
    """An order."""

    number: int
    customer: str
    total: float | None = None
