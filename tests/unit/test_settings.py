"""Settings: who wins, where each value came from, what is refused, and what is never shown."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingsError
from penstock.settings import Settings, flag, json_schema
from penstock.settings.binding import lines_of
from penstock.settings.masking import masked, masked_text, secrets_of, without_secrets
from penstock.settings.settings import TABLES, keys_of

SEED = """\
# as in the text that Penstock comes from
[task_queue]
provider = "redis"
url      = "rediss://peagen:pa55@broker.internal:6379/0"
idle_ms  = 50_000
max_retry = 4

[result_backend]
provider = "fs"
root     = ".peagen/results"
compress = true                 # gzip .msgpack files
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "penstock.toml") -> Path:
        (tmp_path / name).write_text(text)
        return Path(name)

    return write


def origins(settings: Settings) -> dict[str, str]:
    return {setting.name: str(setting.origin) for setting in settings.all}


def test_without_anything_the_defaults_hold(write: Any) -> None:
    settings = Settings.load(environment={})
    assert settings == Settings()
    assert set(origins(settings).values()) == {"default"}
    assert [setting.name for setting in settings.all] == [
        f"{table}.{key}" for table in TABLES for key in keys_of(table)
    ]


def test_the_file_of_the_seed_is_understood(write: Any) -> None:
    write(SEED)
    settings = Settings.load(environment={})
    assert settings.task_queue.url == "rediss://peagen:pa55@broker.internal:6379/0"
    assert (settings.task_queue.idle_ms, settings.task_queue.max_retry) == (50_000, 4)
    assert (settings.result_backend.root, settings.result_backend.compress) == (".peagen/results", True)
    assert origins(settings)["task_queue.url"] == "penstock.toml:4"
    assert origins(settings)["result_backend.compress"] == "penstock.toml:11"


@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=3)))
def test_flags_win_over_the_environment_which_wins_over_the_file(write: Any, present: tuple[bool, bool, bool]) -> None:
    in_file, in_environment, in_flags = present
    write("[task_queue]\nidle_ms = 1\n" if in_file else "")
    variables = {"PENSTOCK__TASK_QUEUE__IDLE_MS": "2"} if in_environment else {}
    flags = [flag("task_queue.idle_ms", "3", "--idle-ms")] if in_flags else []
    settings = Settings.load(environment=variables, flags=flags)
    found = settings.task_queue.idle_ms, origins(settings)["task_queue.idle_ms"]
    if in_flags:
        assert found == (3, "--idle-ms")
    elif in_environment:
        assert found == (2, "environment variable PENSTOCK__TASK_QUEUE__IDLE_MS")
    elif in_file:
        assert found == (1, "penstock.toml:2")
    else:
        assert found == (60_000, "default")


def test_the_file_may_be_named(write: Any, tmp_path: Path) -> None:
    write("[task_queue]\nidle_ms = 1\n")
    write("[task_queue]\nidle_ms = 2\n", "other.toml")
    write("[task_queue]\nidle_ms = 3\n", "third.toml")
    assert Settings.load(environment={"PENSTOCK_CONFIG": "other.toml"}).task_queue.idle_ms == 2
    assert Settings.load("third.toml", environment={"PENSTOCK_CONFIG": "other.toml"}).task_queue.idle_ms == 3
    with pytest.raises(SettingsError, match=r"the settings file nowhere\.toml does not exist"):
        Settings.load("nowhere.toml", environment={})
    with pytest.raises(SettingsError, match="environment variable PENSTOCK_CONFIG: the settings file"):
        Settings.load(environment={"PENSTOCK_CONFIG": "nowhere.toml"})


def test_a_provider_has_a_table_of_its_own(write: Any) -> None:
    write(
        '[result_backend]\nprovider = "s3"\n[result_backend.s3]\nurl = "s3://b"\n[result_backend.s3.client_options]\nx = 1\n'
    )
    variables = {
        "PENSTOCK__RESULT_BACKEND__S3__TIMEOUT_S": "2.5",
        "PENSTOCK__RESULT_BACKEND__S3__SECRET_ACCESS_KEY": "0123",
        "PENSTOCK__RESULT_BACKEND__S3__REGION": "eu-1",
        "PENSTOCK__RESULT_BACKEND__S3__ALLOW_HTTP": "true",
        "PENSTOCK__RESULT_BACKEND__POSTGRES__DSN": "host=h",
    }
    settings = Settings.load(environment=variables)
    assert settings.result_backend.options == {
        "url": "s3://b",
        "client_options": {"x": 1},
        "timeout_s": 2.5,
        "secret_access_key": "0123",
        "region": "eu-1",
        "allow_http": True,
    }
    assert origins(settings)["result_backend.s3.client_options"] == "penstock.toml:5"
    assert "result_backend.postgres.dsn" in origins(settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[task_queue]\nidel_ms = 1",
            r"penstock.toml:2: task_queue.idel_ms is unknown: did you mean 'idle_ms'\? available:",
        ),
        ("[taskqueue]\nurl = 'x'", r"penstock.toml:2: the table \[taskqueue\] is unknown: did you mean 'task_queue'"),
        ("task_queue = 3", "penstock.toml:1: task_queue must be a table"),
        ("[empty]", r"penstock.toml:1: the table \[empty\] is unknown"),
        (
            "[task_queue.redsi]\nx = 1",
            r"penstock.toml:2: \[task_queue.redsi\] does not match a provider: did you mean 'redis'",
        ),
        ("[task_queue]\nidle_ms = '1'", "penstock.toml:2: task_queue.idle_ms='1' must be a whole number"),
        ("[task_queue]\nidle_ms = true", "penstock.toml:2: task_queue.idle_ms=True must be a whole number"),
        ("[task_queue]\nidle_ms = 0", "penstock.toml:2: task_queue.idle_ms=0 must be 1 or more"),
        ("[task_queue]\nmax_retry = -1", "penstock.toml:2: task_queue.max_retry=-1 must be 0 or more"),
        ("[task_queue]\nurl = ''", "penstock.toml:2: task_queue.url='' must not be empty"),
        ("[result_backend]\ncompress = 'yes'", "penstock.toml:2: result_backend.compress='yes' must be true or false"),
        ("[result_backend]\nroot = 1", "penstock.toml:2: result_backend.root=1 must be a string"),
        (
            "[task_queue]\nurl_file = 'nowhere'",
            "penstock.toml:2: task_queue.url_file='nowhere' cannot be read: No such",
        ),
        ("[task_queue]\nurl_file = 1", "penstock.toml:2: task_queue.url_file must be the path of a file"),
        (
            "[task_queue]\nurl = 'a'\nurl_file = 'secret'",
            "penstock.toml:3 .*task_queue.url is given twice, also by penstock.toml:2",
        ),
        ("[task_queue]\nurl_file = 'two_lines'", "must contain exactly one line"),
        ("[task_queue", "penstock.toml is not valid TOML: "),
        pytest.param(f"x = {'9' * 5_000}", "penstock.toml is not valid TOML: ", id="digits"),
        pytest.param(f"x = {'[' * 10_000}", "penstock.toml is not valid TOML: ", id="brackets"),
        ('[task_queue]\nurl_file = "a\\u0000b"', "cannot be read: embedded null byte"),
        ("[task_queue]\nprovider.x = 1", "penstock.toml:2: "),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(write: Any, text: str, message: str) -> None:
    write("redis://u:pa55@h\n", "secret")
    write("a\nb\n", "two_lines")
    write(text)
    with pytest.raises(SettingsError, match=message) as error:
        Settings.load(environment={})
    assert "\n" not in str(error.value)
    assert "pa55" not in str(error.value)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "PENSTOCK__TASK_QUEUE__IDEL_MS",
            "1",
            "environment variable PENSTOCK__TASK_QUEUE__IDEL_MS: .*did you mean 'idle_ms'",
        ),
        ("PENSTOCK__TASK_QUEUE__IDLE_MS", "soon", "task_queue.idle_ms='soon' must be a whole number"),
        ("PENSTOCK__RESULT_BACKEND__COMPRESS", "perhaps", "must be true or false"),
        ("PENSTOCK__TASKS__URL", "x", r"the table \[tasks\] is unknown"),
        ("PENSTOCK__URL", "x", "PENSTOCK__URL is not a setting: write PENSTOCK__<TABLE>__<KEY>"),
        ("PENSTOCK__TASK_QUEUE____X", "x", "is not a setting"),
        ("PENSTOCK__TASK_QUEUE__URL", " ", "must not be empty"),
    ],
)
def test_a_mistake_in_the_environment_is_told_with_its_name(
    write: Any, variable: str, value: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.load(environment={variable: value})


def test_other_variables_are_left_alone(write: Any) -> None:
    assert Settings.load(environment={"PENSTOCKS__A__B": "1", "PENSTOCK_HOME": "x"}) == Settings()


@pytest.mark.parametrize(("text", "value"), [("true", True), ("ON", True), ("1", True), ("No", False), ("0", False)])
def test_flags_of_the_environment_have_many_spellings(write: Any, text: str, value: bool) -> None:
    assert Settings.load(environment={"PENSTOCK__RESULT_BACKEND__COMPRESS": text}).result_backend.compress is value


def test_a_secret_may_lie_in_a_file(write: Any) -> None:
    write("redis://u:pa55@h:1/0\n", "url")
    write("pa55word\r\n", "password")
    write("[task_queue]\nurl_file = 'url'\n[task_queue.redis]\npassword_file = 'password'\nssl_key_file = 'a path'\n")
    settings = Settings.load(environment={})
    assert settings.task_queue.url == "redis://u:pa55@h:1/0"
    assert settings.task_queue.options == {"password": "pa55word", "ssl_key_file": "a path"}
    assert origins(settings)["task_queue.url"] == "penstock.toml:2 (file url)"
    over = Settings.load(environment={"PENSTOCK__TASK_QUEUE__URL": "redis://other"})
    assert over.task_queue.url == "redis://other"


def test_secrets_are_shown_nowhere(write: Any) -> None:
    write(
        SEED
        + "[task_queue.redis]\npassword = 'pa55'\napi_key = 'pa55'\nnested = {token = 'pa55', list = ['r://:pa55@h']}\n"
    )
    settings = Settings.load(environment={})
    shown = json.dumps([setting.shown for setting in settings.all])
    assert "pa55" not in f"{settings!r} {settings} {settings.all!r} {shown}"
    assert settings.task_queue.options["password"] == "pa55"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://u:p@h/0", "redis://u:***@h/0"),
        ("redis://:p@h", "redis://:***@h"),
        ("redis://p@h", "redis://***@h"),
        ("redis://u:p@ss/w@h", "redis://u:***@h"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("host=h password=p dbname=d", "host=h password=*** dbname=d"),
        ("host=h password='p q' dbname=d", "host=h password=*** dbname=d"),
        ("postgresql://h/d?user=u&password=p&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("plain text", "plain text"),
        ("host=h password=a&b dbname=d", "host=h password=*** dbname=d"),
        ('Driver=x;Server=h;Uid=u;Pwd="a b";', "Driver=x;Server=h;Uid=u;Pwd=***;"),
        ("Driver=x;Server=h;Uid=u;PWD={a b};Db=d", "Driver=x;Server=h;Uid=u;PWD=***;Db=d"),
        ("Driver=x;Pwd=abc;def", "Driver=x;Pwd=***"),
        (
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=ab+/c==",
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=***",
        ),
        (
            "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=k=",
            "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=***",
        ),
        ("https://a.blob/c?sv=1&sig=a%2Bb&se=2", "https://a.blob/c?sv=1&sig=***&se=2"),
        ("https://h/?api_key=a&x=1&access_token=b", "https://h/?api_key=***&x=1&access_token=***"),
        ("https://h/?apikey=a", "https://h/?apikey=***"),
        (
            "aws_secret_access_key=a aws_session_token=b region=c",
            "aws_secret_access_key=*** aws_session_token=*** region=c",
        ),
        ("encryption_key=a client-secret=b x=c", "encryption_key=*** client-secret=*** x=c"),
        ("jdbc:oracle:thin:scott/tiger@//h:1521/x", "jdbc:oracle:thin:scott/***@//h:1521/x"),
        ("jdbc:oracle:thin:scott/t@i/ger@h:1521:x", "jdbc:oracle:thin:scott/***@h:1521:x"),
        ("jdbc:oracle:thin:@h:1521:x", "jdbc:oracle:thin:@h:1521:x"),
        ("jdbc:sqlserver://h;user=sa;password=p;encrypt=true", "jdbc:sqlserver://h;user=sa;password=***"),
        ("jdbc:mysql://u:p@h/d?sslKeyPassword=q&x=1", "jdbc:mysql://u:***@h/d?sslKeyPassword=***&x=1"),
        (
            "key=order-7 monkey=1 design=2 sortkey=3 keyfile=/a ssl_keyfile=/b",
            "key=order-7 monkey=1 design=2 sortkey=3 keyfile=/a ssl_keyfile=/b",
        ),
    ],
)
def test_passwords_in_urls_and_connection_strings_are_masked(text: str, shown: str) -> None:
    assert masked_text(text) == shown


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Z", "C"]), min_size=12))
def test_no_password_survives_the_mask(password: str) -> None:
    assert password not in masked_text(f"redis://someone:{password}@host:6379/0")
    assert password not in str(masked("password", password))
    assert password in secrets_of({"url": f"redis://someone:{password}@host"})


def test_the_parts_of_a_connection_string_are_secrets_too() -> None:
    assert "a b" in secrets_of({"dsn": "host=h password='a b'"})
    assert "tiger" in secrets_of({"url": "jdbc:oracle:thin:scott/tiger@h"})
    assert "x%2B" in secrets_of({"url": "https://a/c?sig=x%2B&se=2"})


def test_a_percent_encoded_password_is_masked_as_libraries_show_it_too() -> None:
    secrets = secrets_of({"dsn": "postgresql://u:se%40%27cret@h/d"})
    assert without_secrets("no login with se@'cret (se%40%27cret)", secrets) == "no login with *** (***)"


def test_lines_are_found_around_texts_and_inline_tables() -> None:
    text = '[a]\nx = """\ny = 1\n"""\ny = 2 # z = 3\n["b" . c]\nd.e = 1\ninline = {k = 1}\n'
    assert lines_of(text) == {
        ("a",): 1,
        ("a", "x"): 2,
        ("a", "y"): 5,
        ("b", "c"): 6,
        ("b", "c", "d", "e"): 7,
        ("b", "c", "inline"): 8,
    }


def test_the_schema_knows_what_the_settings_know() -> None:
    schema = json_schema()
    assert schema["additionalProperties"] is False
    for table in TABLES:
        properties = schema["properties"][table]["properties"]
        assert schema["properties"][table]["additionalProperties"] is False
        for name, default in keys_of(table).items():
            assert properties[name]["default"] == default
    assert set(schema["properties"]["task_queue"]["properties"]) == {
        *keys_of("task_queue"),
        "url_file",
        "redis",
        "stub",
    }
    assert schema["properties"]["result_backend"]["properties"]["s3"]["additionalProperties"] is True
    json.dumps(schema)


@pytest.mark.parametrize("name", ["", "x", "a.b.c.d", ".x"])
def test_a_flag_must_name_a_setting(name: str) -> None:
    with pytest.raises(SettingsError, match="write --set <table>"):
        flag(name, "x")
