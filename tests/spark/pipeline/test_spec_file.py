"""What stands in a pipeline file: variables, secrets in files, profiles, and the schema for editors. Without Spark."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigurationError
from penstock.settings.binding import Document
from penstock.spark.pipeline import Console, Delta, Parquet, Pipeline, Postgres, Rule
from penstock.spark.pipeline.spec_file import SpecFile, json_schema
from tests.docs.pages import ROOT, blocks

TEXT = """\
name = "orders"
checkpoint = "${DATA:-/data}/checkpoint"
max_lag = "${MAX_LAG}"
[source]
url = "redis://shop:${REDIS_PASS}@${HOST}:6379"
streams = ["${STREAM}", "returns"]
[[rule]]
check = "total >= 0"
action = "warn"
[[step]]
sql = "SELECT *, '$${kept}' AS mark FROM input"
name = "marked"
[[sink]]
name = "lake"
kind = "delta"
path = "/data/orders"
where = "total > 1"
options = { AWS_REGION = "eu", secret_access_key_file = "SECRET", ssl_ca_file = "/etc/ca.pem" }
[[sink]]
kind = "postgres"
dsn_file = "DSN"
table = "orders"
from = "source"
[profile.dev]
checkpoint = "/tmp/checkpoint"
[profile.dev.source]
url = "redis://localhost"
[profile.dev.sink.lake]
kind = "console"
[profile.dev.sink.postgres]
dsn = "postgresql://localhost/dev"
"""
VARIABLES = {"REDIS_PASS": "hunter2", "HOST": "redis", "STREAM": "orders", "MAX_LAG": "1_000"}


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "secret").write_text("s3cret\n")
    (tmp_path / "dsn").write_text("postgresql://shop:tiger@db/shop\n")
    return TEXT.replace("SECRET", str(tmp_path / "secret")).replace("DSN", str(tmp_path / "dsn"))


def read(text: str, **given: Any) -> Pipeline:
    return Pipeline.from_toml(text, "f.toml", **{"environment": VARIABLES, **given})


def test_variables_and_files_are_filled_in(text: str) -> None:
    pipeline = read(text)
    assert pipeline.checkpoint == "/data/checkpoint"
    assert pipeline.max_lag == 1000
    assert (pipeline.source.url, pipeline.source.streams) == ("redis://shop:hunter2@redis:6379", ("orders", "returns"))
    assert pipeline.rules == (Rule("total >= 0", "warn"),)
    assert pipeline.steps[0].sql == "SELECT *, '${kept}' AS mark FROM input"
    assert pipeline.sinks == (
        Delta(
            "/data/orders",
            options={"AWS_REGION": "eu", "secret_access_key": "s3cret", "ssl_ca_file": "/etc/ca.pem"},
            name="lake",
            where="total > 1",
        ),
        Postgres("postgresql://shop:tiger@db/shop", "orders", from_="source"),
    )


def test_no_secret_is_shown(text: str) -> None:
    pipeline = read(text)
    assert not re.search("hunter2|s3cret|tiger", repr(pipeline))
    said = pipeline.masked("no route to redis://shop:hunter2@redis, s3cret is wrong, FATAL: tiger, host eu")
    assert said == "no route to redis://shop:***@redis, *** is wrong, FATAL: ***, host eu"


def test_every_key_above_the_tables_may_be_in_a_file_as_the_schema_says(text: str, tmp_path: Path) -> None:
    (tmp_path / "place").write_text("/data/elsewhere\n")
    changed = text.replace('checkpoint = "${DATA:-/data}/checkpoint"', f'checkpoint_file = "{tmp_path}/place"')
    assert read(changed).checkpoint == "/data/elsewhere"
    assert "checkpoint_file" in json_schema()["properties"]
    with pytest.raises(ConfigurationError, match="chekpoint_file is unknown: did you mean 'checkpoint_file'"):
        read(changed.replace("checkpoint_file", "chekpoint_file"))


def test_a_variable_that_is_empty_has_its_default_as_in_a_shell(text: str) -> None:
    assert read(text, environment={**VARIABLES, "DATA": ""}).checkpoint == "/data/checkpoint"
    assert read(text, environment={**VARIABLES, "DATA": "/d"}).checkpoint == "/d/checkpoint"


@pytest.mark.parametrize("value", ["12345.50", "hunt\\er2", "it's hunter2", '["hunter2"]'])
def test_a_secret_of_the_wrong_type_is_not_shown(text: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "value").write_text(value)
    for line, environment in (
        (f'max_lag_file = "{tmp_path}/value"', VARIABLES),
        ('max_lag = "${LAG_TOKEN}"', {**VARIABLES, "LAG_TOKEN": value}),
        ('spark.token = ["${LAG_TOKEN}"]', {**VARIABLES, "LAG_TOKEN": value, "MAX_LAG": "1"}),
    ):
        with pytest.raises(ConfigurationError) as caught:
            read(text.replace('max_lag = "${MAX_LAG}"', line), environment=environment)
        assert not re.search("hunt|12345", str(caught.value))


def test_a_rule_is_known_by_its_condition_without_the_secrets_in_it(text: str) -> None:
    pipeline = read(text.replace("total >= 0", "word = '${REDIS_PASS}'"))
    assert [rule.label for rule in pipeline.all_rules()] == ["word = '***'"]
    assert pipeline.all_rules()[0].check == "word = 'hunter2'"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("${HOST}", "${HOTS}", "f.toml:5: [source] url: the environment variable HOTS is not set"),
        ("${HOST}", "${HO ST}", "f.toml:5: [source] url: write ${NAME} for an environment variable"),
        ("dsn_file =", 'dsn = "x"\ndsn_file =', "f.toml:22: [sink 2] dsn_file: dsn is given as well"),
        ("secret_access_key_file =", 'token_file = "/none", x =', "[sink 1] options.token_file='/none' cannot be read: No such"),
        ("${MAX_LAG}", "${HOST}", "f.toml:3: max_lag='redis' must be a whole number"),
        ('from = "source"', 'from = "marks"', "f.toml: sink 'postgres': from='marks' is not a step: did you mean 'marked'?"),
        ('action = "warn"', 'action = "drop"', "f.toml:9: [rule 1] action='drop' must be one of dead_letter, warn, fail"),
        ('where = "total > 1"', 'where = ""', "f.toml:17: [sink 1] where='' must not be empty"),
        ('name = "marked"', 'name = "marked"\nfrom = "later"', "f.toml: step 1: from='later' is not an earlier step"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(text: str, old: str, new: str, told: str) -> None:
    assert old in text
    with pytest.raises(ConfigurationError) as caught:
        read(text.replace(old, new, 1))
    assert told in str(caught.value)
    assert not re.search("hunter2|s3cret|tiger", str(caught.value))


def test_the_values_of_a_profile_stand_above_those_of_the_file(text: str) -> None:
    pipeline = read(text, profile="dev", environment={"STREAM": "orders", "MAX_LAG": "1"})
    assert (pipeline.checkpoint, pipeline.source.url) == ("/tmp/checkpoint", "redis://localhost")
    lake, postgres = pipeline.sinks
    assert lake == Console(name="lake", where="total > 1")
    assert postgres == Postgres("postgresql://localhost/dev", "orders", from_="source")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[profile.dev]", "[profile.prod]", "f.toml: [profile.dev] is unknown: "),
        ('checkpoint = "/tmp', 'chekpoint = "/tmp', "f.toml:25: chekpoint is unknown: did you mean 'checkpoint'?"),
        ("[profile.dev.sink.lake]", "[profile.dev.sink.lak]", "f.toml:28: sink 'lak' is unknown: did you mean 'lake'?"),
        ('url = "redis://localhost"', "url = 7", "f.toml:27: [source] url=7 must be a string"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_profile_is_told_with_its_own_place(text: str, old: str, new: str, told: str) -> None:
    assert old in text
    changed = text.replace(old, new, 1)
    if new == "[profile.prod]":
        changed = changed[: changed.index(new)] + "[profile.prod]\n"
    with pytest.raises(ConfigurationError) as caught:
        read(changed, profile="dev")
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("profile", ["x", None])
def test_a_profile_that_is_no_table_is_told(text: str, profile: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"f.toml:1: write a profile as a table, \[profile.<name>\]"):
        read('profile = "x"\n' + text[: text.index("[profile.dev]")], profile=profile)


@pytest.mark.parametrize(
    ("source", "has_url"),
    [('url = "${NOT_SET}"', True), ('url_file = "/nowhere"', True), ("", False)],
)
def test_another_server_replaces_that_of_the_file(source: str, has_url: bool) -> None:
    text = (
        f'name = "orders"\ncheckpoint = "/c"\nsink = [{{kind = "console"}}]\n[source]\nstreams = "orders"\n{source}\n'
    )
    spec = SpecFile(Document("orders.toml", text), None, {})
    assert spec.has_source_url == has_url
    url = "redis://ada:${x@localhost"
    spec.set_source_url(url)
    assert spec.pipeline().source.url == url


@pytest.mark.parametrize("source", ["", "source = 1\n", "source = 'url'\n"])
def test_a_file_without_a_table_for_the_source_is_told_whatever_the_server(source: str) -> None:
    spec = SpecFile(Document("orders.toml", source), None, {})
    assert not spec.has_source_url
    spec.set_source_url("redis://localhost")
    with pytest.raises(ConfigurationError, match="source"):
        spec.pipeline()


def test_the_schema_knows_what_a_file_may_say(text: str) -> None:
    schema = json_schema()
    properties = schema["properties"]
    assert schema["required"] == ["source", "sink"]
    assert {"name", "checkpoint", "source", "rule", "step", "sink", "spark", "profile", "lineage"} <= properties.keys()
    sinks = {each["properties"]["kind"]["const"]: each for each in properties["sink"]["items"]["anyOf"]}
    assert {"from", "where", "dsn", "dsn_file", "table"} <= sinks["postgres"]["properties"].keys()
    assert "from_" not in sinks["postgres"]["properties"]
    assert Parquet("/t").compression == sinks["parquet"]["properties"]["compression"]["default"]


def test_the_schema_takes_what_the_reader_takes(text: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())
    assert list(validator.iter_errors(tomllib.loads(text))) == []
    assert list(validator.iter_errors(tomllib.loads(re.sub(r'(?m)^url = "redis://shop.*$', "", text)))) == []
    wrong = text.replace("dsn_file", "dsm_file").replace('action = "warn"', 'action = "drop"')
    assert len(list(validator.iter_errors(tomllib.loads(wrong)))) == 2


_GUIDE = ROOT / "docs" / "how-to" / "pipelines.md"
_BLOCKS = [block for block in blocks(_GUIDE) if block.language == "text"]
_AROUND = {
    "name": 'name = "orders"\n',
    "checkpoint": 'checkpoint = "/data"\n',
    "[[sink]]": '[[sink]]\nkind = "console"\n',
}


@pytest.mark.parametrize("block", _BLOCKS, ids=lambda block: f"line {block.line}")
def test_what_the_guide_shows_can_be_read(block: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("postgresql://localhost/shop")
    text = re.sub(r"/run/secrets/\w+", str(tmp_path / "secret"), block.text)
    document = tomllib.loads(text)
    above = "".join(each for key, each in _AROUND.items() if key[0] != "[" and key not in document)
    if "source" in document:
        text = text.replace("[source]\n", '[source]\nstreams = "orders"\n' if "streams" not in text else "[source]\n")
    below = "" if "source" in document else '[source]\nurl = "redis://localhost"\nstreams = "orders"\n'
    below += "" if "sink" in document else _AROUND["[[sink]]"]
    if "watermark" not in document and "dedup" in document:
        above += 'watermark = "1m"\n'
    Pipeline.from_toml(above + text + below, environment={"REDIS_PASSWORD": "hunter2"})
    for profile in document.get("profile", {}):
        Pipeline.from_toml(above + text + below, profile=profile, environment={})
