"""Payload bytes to typed Arrow columns; needs pyarrow, but neither pyspark nor a JVM."""

from penstock.spark.payload.decoder import Decoded, Form, MalformedPayload, Mode, PayloadFormat, decode
from penstock.spark.payload.schema import parse_ddl, to_ddl

__all__ = [
    "Decoded",
    "Form",
    "MalformedPayload",
    "Mode",
    "PayloadFormat",
    "decode",
    "parse_ddl",
    "to_ddl",
]
