"""Payload bytes to typed Arrow columns; needs pyarrow, but neither pyspark nor a JVM."""

from penstock.spark.payload.avro import from_avro_schema
from penstock.spark.payload.ddl import parse_ddl, to_ddl
from penstock.spark.payload.decoding import Decoded, Form, MalformedPayload, Mode, PayloadFormat, decode
from penstock.spark.payload.schemas import from_json_schema, from_model, infer

__all__ = [
    "Decoded",
    "Form",
    "MalformedPayload",
    "Mode",
    "PayloadFormat",
    "decode",
    "from_avro_schema",
    "from_json_schema",
    "from_model",
    "infer",
    "parse_ddl",
    "to_ddl",
]
