"""How a batch is noted in an Iceberg table, by whichever library writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.spark.pipeline.batch_key import BatchKey

_PROPERTY = "penstock.batch"


@dataclass(frozen=True)
class BatchNote:
    """A batch of a sink. A property of the table holds the last one; the summary of its snapshot tells each."""

    key: BatchKey
    sink: str

    @property
    def name(self) -> str:
        """The name of the property."""
        return f"{_PROPERTY}.{self.key.query}.{self.sink}"

    @property
    def value(self) -> str:
        """Its value."""
        return str(self.key.number)

    def is_in(self, properties: Mapping[str, str]) -> bool:
        """Tell whether the batch, or a later one, is in the table that has these properties."""
        last = properties.get(self.name)
        return last is not None and int(last) >= self.key.number

    @property
    def wap_id(self) -> str:
        """What Iceberg's Java library publishes once, however often it is asked to."""
        return f"penstock.{self.key.query}.{self.sink}.{self.value}"

    @property
    def summary(self) -> dict[str, str]:
        """What the snapshot says of itself."""
        return {
            "penstock.query": self.key.query,
            "penstock.sink": self.sink,
            "penstock.batch": self.value,
            "wap.id": self.wap_id,
        }
