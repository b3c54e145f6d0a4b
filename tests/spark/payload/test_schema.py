"""Spark's DDL to Arrow and back, with the types that Spark itself expects."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from penstock.errors import ConfigurationError
from penstock.spark.payload import parse_ddl, to_ddl
from penstock.spark.runtime.versions import arrow_schema
from tests.spark.limits import HAS_LIMITS

_ITEM = spark.StructType(
    [spark.StructField("sku", spark.StringType(), nullable=False), spark.StructField("qty", spark.IntegerType())]
)


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("boolean", spark.BooleanType()),
        ("byte", spark.ByteType()),
        ("tinyint", spark.ByteType()),
        ("short", spark.ShortType()),
        ("smallint", spark.ShortType()),
        ("int", spark.IntegerType()),
        ("INTEGER", spark.IntegerType()),
        ("long", spark.LongType()),
        ("bigint", spark.LongType()),
        ("float", spark.FloatType()),
        ("real", spark.FloatType()),
        ("double", spark.DoubleType()),
        ("string", spark.StringType()),
        ("varchar(10)", spark.StringType()),
        ("binary", spark.BinaryType()),
        ("date", spark.DateType()),
        ("timestamp", spark.TimestampType()),
        ("timestamp_ltz", spark.TimestampType()),
        ("timestamp_ntz", spark.TimestampNTZType()),
        ("void", spark.NullType()),
        ("decimal", spark.DecimalType(10, 0)),
        ("dec(5)", spark.DecimalType(5, 0)),
        ("numeric ( 38 , 18 )", spark.DecimalType(38, 18)),
        ("array<int>", spark.ArrayType(spark.IntegerType())),
        ("map<string,bigint>", spark.MapType(spark.StringType(), spark.LongType())),
        ("struct<sku:string NOT NULL, qty int>", _ITEM),
        ("array<struct<sku string not null COMMENT 'x', qty: int>>", spark.ArrayType(_ITEM)),
        (
            "map<string,array<array<date>>>",
            spark.MapType(spark.StringType(), spark.ArrayType(spark.ArrayType(spark.DateType()))),
        ),
        ("struct<>", spark.StructType([])),
    ],
)
def test_a_type_is_the_arrow_type_that_spark_expects(ddl: str, expected: spark.DataType) -> None:
    expected_schema = arrow_schema(spark.StructType([spark.StructField("a", expected)]))
    assert expected_schema.equals(parse_ddl(f"a {ddl}"))
    assert expected_schema.equals(parse_ddl(f"struct<`a`:{ddl}>"))


def test_names_nullability_and_comments_are_those_of_spark() -> None:
    wanted = spark.StructType(
        [
            spark.StructField("a b", spark.LongType(), nullable=False, metadata={"comment": 'it\'s "x" \\ y'}),
            spark.StructField("c`d", spark.StringType()),
            spark.StructField("comment", spark.StringType()),
        ]
    )
    found = parse_ddl("""`a b`: bigint NOT NULL COMMENT 'it''s "x" \\\\ y', `c``d` string,\n comment string""")
    assert arrow_schema(wanted).equals(found, check_metadata=HAS_LIMITS)  # to Arrow, Spark 4.1 says no comments
    assert parse_ddl(to_ddl(found)).equals(found, check_metadata=True)


@pytest.mark.parametrize(
    ("ddl", "place"),
    [
        ("", "at character 1: the end"),
        ("struct<>", "needs at least one column"),
        ("a", "expected a type, at character 2: the end"),
        ("a itn, b int", "'itn' is not one of void, boolean"),
        ("a int,", "expected a column name, at character 7"),
        ("a int b int", "expected ',' or the end, at character 7: 'b int'"),
        ("a array<int", "expected '>', at character 12"),
        ("a map<string>", "expected ',', at character 13"),
        ("a decimal(39,0)", "precision from 1 to 38"),
        ("a decimal(3,4)", "precision from 1 to 38"),
        ("a decimal(3,1,1)", "precision from 1 to 38"),
        ("a decimal(x)", "expected a whole number, at character 11"),
        ("a char", "needs its length"),
        ("a interval day to second", "'interval' is not one of"),
        ("a variant", "'variant' is not one of"),
        ("a int NOT", "expected 'null'"),
        ("a int COMMENT x", "expected a quoted string, at character 15"),
        ("a void NOT NULL", "always null"),
        ("id int, Id int", "'Id' appears twice (Spark ignores case), at character 9"),
        ("a struct<x:int,X:int>", "'X' appears twice"),
        ("a-b int", "at character 2: '-b int'"),
        ("struct<a:int> x", "expected ',' or the end, at character 15"),
    ],
)
def test_what_cannot_be_read_is_shown(ddl: str, place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_ddl(ddl)
    assert place in str(caught.value)


@given(st.text(alphabet="ab<>(),:`' 10intsruc", max_size=30))
@settings(max_examples=500, deadline=None)
def test_any_text_gives_a_schema_or_a_configuration_error(ddl: str) -> None:
    try:
        schema = parse_ddl(ddl)
    except ConfigurationError:
        return
    assert parse_ddl(to_ddl(schema)).equals(schema)


def test_an_arrow_type_that_spark_lacks_is_refused_by_its_column() -> None:
    with pytest.raises(ConfigurationError, match=r"column a\.b: Spark has no type for Arrow's uint8"):
        to_ddl(pa.schema([("a", pa.struct([("b", pa.uint8())]))]))
    with pytest.raises(ConfigurationError, match="column at"):
        to_ddl(pa.schema([("at", pa.timestamp("ns"))]))
