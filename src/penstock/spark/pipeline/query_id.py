"""Which query this is, where Spark itself does not say it: its checkpoint does."""

from __future__ import annotations

import json

from penstock.errors import PenstockError
from penstock.spark.pipeline.files import joined, local_path


def query_id(checkpoint: str) -> str:
    """Return the id that Spark has given the query of a checkpoint, on a disk of this machine."""
    place = local_path(joined(checkpoint, "spark", "metadata"))
    try:
        if place is None:
            raise PenstockError(f"checkpoint {checkpoint} is on no disk of this machine")
        return str(json.loads(place.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError) as error:
        raise PenstockError(
            f"which query this is cannot be read in the checkpoint ({error}): through Spark Connect it must lie on a "
            "disk that client, server and executors share"
        ) from None
