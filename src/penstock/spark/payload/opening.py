"""Opens signed or encrypted payloads of rows, on the driver and in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import NotAuthentic
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.link import Link

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REFUSED = "refused"  # column: why a payload is not authentic, else null


def without_keys(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the file of keys, for what reads or writes payloads as they are."""
    return {name: value for name, value in options.items() if name.lower() != "protectionfile"}


def opened_rows(rows: DataFrame, link: Link | None, stream: str | None = None) -> DataFrame:
    """Return rows with opened payloads, and the column `refused`; without keys the payloads stay as they are."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    if link is None or link.protection_file is None:
        return rows.withColumn(REFUSED, f.lit(None).cast("string"))
    schema = StructType([*rows.schema.fields]).add(REFUSED, StringType())
    return rows.mapInArrow(Opening(link, stream), schema)


@dataclass(frozen=True)
class Opening(Shipped):
    """Opens payloads that were protected for one stream, or each for the stream of its row."""

    link: Link
    stream: str | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with their payloads, null for one that is not authentic, and why it is not."""
        for batch in batches:
            data, refused = self._opened(batch)
            yield _with_data(batch, data).append_column(REFUSED, pa.array(refused, pa.string()))

    def opened(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with their payloads, null for one that is not authentic; without keys, as they are."""
        return batch if self.link.protection_file is None else _with_data(batch, self._opened(batch)[0])

    def _opened(self, batch: pa.RecordBatch) -> tuple[list[bytes | None], list[str | None]]:
        client = self.link.client()
        protection = client.protection
        assert protection is not None
        data: list[bytes | None] = []
        refused: list[str | None] = []
        named = [self.stream] * batch.num_rows if self.stream is not None else batch.column("stream").to_pylist()
        given = (batch.column(name).to_pylist() for name in ("message_id", "data"))
        for stream, message_id, raw in zip(named, *given, strict=True):
            payload, why = None, None
            try:
                if raw is not None:
                    payload = protection.open(raw, client.keys(stream).stream, message_id or "")
            except NotAuthentic as error:
                why = str(error)
            data.append(payload)
            refused.append(why)
        return data, refused


def _with_data(batch: pa.RecordBatch, data: list[bytes | None]) -> pa.RecordBatch:
    return batch.set_column(
        batch.schema.get_field_index("data"), batch.schema.field("data"), pa.array(data, pa.binary())
    )
