"""What the tests take from Maven: the libraries that fit the Spark of requirements/lakehouse.txt, or iceberg.txt."""

from __future__ import annotations

_SDK = "2.35.4"  # the one that hadoop-aws is built with

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
# For Spark 4.1 alone. SQLite keeps a catalogue that PyIceberg can read as well.
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SQLITE = "org.xerial:sqlite-jdbc:3.53.4.0"
POSTGRES = "org.postgresql:postgresql:42.7.14"
S3A = (
    "org.apache.hadoop:hadoop-aws:3.5.0",  # the Hadoop that comes with Spark 4.2 and 4.3
    # Its parts that s3a uses: the bundle of all services would be ten times the size of Spark.
    *(f"software.amazon.awssdk:{part}:{_SDK}" for part in ("s3", "s3-transfer-manager", "sts")),
)
# What Spark has itself, and the bundle.
EXCLUDED = (
    "software.amazon.awssdk:bundle",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.parquet:parquet-hadoop",
)
