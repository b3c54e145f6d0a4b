"""What Spark pickles into tasks beside data sources: functions over the rows of a pipeline, a replay or an archive."""

from __future__ import annotations

from typing import Any

from penstock.spark import shipment


class Carried:
    """Brings Penstock's code along while that goes with the jobs of this process; by reference otherwise."""

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        """Say how this is pickled."""
        return shipment.reduced(self) or super().__reduce_ex__(protocol)
