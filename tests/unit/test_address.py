"""Redis URLs are understood, or refused with an error that helps and keeps the password secret."""

from __future__ import annotations

import pickle
import traceback
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.redis.address import Address, parse_url


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://localhost", Address("single", (("localhost", 6379),))),
        ("redis://", Address("single", (("localhost", 6379),))),
        ("redis://:7000", Address("single", (("localhost", 7000),))),
        ("  redis://h:1/2\n", Address("single", (("h", 1),), db=2)),
        ("REDIS://h", Address("single", (("h", 6379),))),
        ("redis://h/", Address("single", (("h", 6379),))),
        ("redis://h?db=3", Address("single", (("h", 6379),), db=3)),
        ("redis://:pw@h:1", Address("single", (("h", 1),), password="pw")),
        ("redis://:@h:1", Address("single", (("h", 1),))),
        ("redis://u@h:1", Address("single", (("h", 1),), username="u")),
        ("redis://u:p%40%2F%3A%25@h", Address("single", (("h", 6379),), username="u", password="p@/:%")),
        ("redis://u:p@ss:w0rd@h", Address("single", (("h", 6379),), username="u", password="p@ss:w0rd")),
        ("redis://u:a+b@h", Address("single", (("h", 6379),), username="u", password="a+b")),
        ("rediss://u:p@h:6380/1", Address("single", (("h", 6380),), db=1, username="u", password="p", tls=True)),
        ("redis://[::1]:7000/4", Address("single", (("::1", 7000),), db=4)),
        ("redis://[fe80::1%25eth0]", Address("single", (("fe80::1%eth0", 6379),))),
        ("unix:///run/redis.sock", Address("unix", path="/run/redis.sock")),
        ("unix:///run/my%20redis.sock?db=2", Address("unix", path="/run/my redis.sock", db=2)),
        ("unix://u:p@/run/r.sock", Address("unix", path="/run/r.sock", username="u", password="p")),
        ("unix:///run/a@b.sock", Address("unix", path="/run/a@b.sock")),
        ("redis+cluster://n1:7000,n2:7001", Address("cluster", (("n1", 7000), ("n2", 7001)))),
        ("redis+cluster://n1:7000/0", Address("cluster", (("n1", 7000),))),
        (
            "rediss+cluster://u:p@[::1]:7000,n2",
            Address("cluster", (("::1", 7000), ("n2", 6379)), username="u", password="p", tls=True),
        ),
        ("redis+sentinel://s1/main", Address("sentinel", (("s1", 26379),), service_name="main")),
        (
            "redis+sentinel://u:p@s1:1,s2:2/my%20main/3",
            Address("sentinel", (("s1", 1), ("s2", 2)), db=3, username="u", password="p", service_name="my main"),
        ),
        ("rediss+sentinel://s1/main", Address("sentinel", (("s1", 26379),), service_name="main", tls=True)),
        ("embedded://", Address("embedded")),
        ("embedded:///var/lib/data", Address("embedded", path="/var/lib/data")),
        ("embedded://?prefix=x", Address("embedded", options={"prefix": "x"})),
    ],
)
def test_a_url_is_understood(url: str, address: Address) -> None:
    assert parse_url(url) == address


def test_known_parameters_become_options_of_their_type() -> None:
    address = parse_url(
        "rediss://h?prefix=shop&client_name=my+worker%21&socket_timeout=2.5&socket_connect_timeout=1"
        "&ssl_ca_certs=/etc/ca.pem&ssl_certfile=c&ssl_keyfile=k&ssl_check_hostname=false"
    )
    assert address.options == {
        "prefix": "shop",
        "client_name": "my worker!",
        "socket_timeout": 2.5,
        "socket_connect_timeout": 1.0,
        "ssl_ca_certs": "/etc/ca.pem",
        "ssl_certfile": "c",
        "ssl_keyfile": "k",
        "ssl_check_hostname": False,
    }


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "must be a str, not NoneType"),
        ("", "no scheme: start it with one of redis://"),
        ("localhost:6379", "no scheme"),
        ("http://h", r"unknown scheme 'http'; .*available: redis://, rediss://, unix://, redis\+cluster://"),
        ("redis+clster://h", r"did you mean redis\+cluster://"),
        ("redis://h:port", "port .* must be a number from 1 to 65535"),
        ("redis://h:0", "port"),
        ("redis://h:65536", "port"),
        ("redis://h:" + "9" * 10_000, "port"),
        ("redis://h:-1", "port"),
        ("redis://h:٣", "port"),
        ("redis://h/zero", "database .* must be a number"),
        ("redis://h/0/1", "database"),
        ("redis://h/-1", "database"),
        ("redis://h?db=x", "database"),
        ("redis://h/1?db=2", "twice"),
        ("redis://a,b", r"several hosts needs the scheme redis\+cluster://"),
        ("redis://::1", r"IPv6 address in brackets"),
        ("redis://[::1", "host"),
        ("redis://[::1]x:1", "host"),
        ("redis://a b", "host"),
        ("redis+cluster://a,,b", "host"),
        ("redis+cluster://a:1,:2", "host"),
        ("redis+cluster://a/1", "only database 0"),
        ("redis+cluster://a?db=1", "db does not apply"),
        ("redis+sentinel://a", "has no service name: write .*service_name"),
        ("redis+sentinel://a/main/x", "database"),
        ("unix://", "has no socket path"),
        ("unix://run/redis.sock", "three slashes"),
        ("embedded://host", "must not have a host"),
        ("embedded://u:p@", "no users"),
        ("redis://h?protocol=3", "protocol .*Penstock chooses"),
        ("redis://h?password=x", "before the host"),
        ("redis://h?username=x", "before the host"),
        ("redis://h?socket_timout=1", "unknown parameter 'socket_timout'; did you mean socket_timeout"),
        ("redis://h?xyz=1", "unknown parameter 'xyz'; available: prefix, client_name"),
        ("redis://h?socket_timeout=0", "positive number of seconds"),
        ("redis://h?socket_timeout=nan", "positive number of seconds"),
        ("redis://h?socket_timeout=", "positive number of seconds"),
        ("redis://h?client_name=", "must not be empty"),
        ("redis://h?prefix=a&prefix=b", "prefix appears twice"),
        ("rediss://h?ssl_check_hostname=maybe", "true or false"),
        ("redis://h?ssl_ca_certs=x", "needs TLS: use the scheme rediss://"),
        ("redis://u:%ff@h", "not UTF-8"),
    ],
)
def test_a_wrong_url_is_refused_with_advice(url: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@h:1/2",
        "rediss://:hunter2@h",
        "redis://hunter2@h",  # the name, which is most often a password in the wrong place
        "redis+cluster://u:hunter2@a,[::1]:2",
        "redis+sentinel://u:hunter2@a/my%20main",
        "unix://:hunter2@/run/r.sock?db=1&prefix=x",
    ],
)
def test_the_text_of_an_address_shows_no_password(url: str) -> None:
    assert "hunter2" not in f"{parse_url(url)} {parse_url(url)!r}"


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2",
        "redis://:hunter2/x@h",
        "redis://user:hunter2?y@h",
        "redis://user:hunter2#z@h/0",
        "redis://user:12?hunter2=1@h",
        "redis://user:hunter2@h:port",
        "redis://user:hunter2@h/zero",
        "redis://user:hunter2@h?unknown=1",
        "redis://user:hunter2@a,b",
        "redis://user:hunter2@::1",
        "redis://h?password=hunter2",
        "rediss+sentinel://user:hunter2@h",
        "redis+cluster://user:hunter2@h/1",
        "unix://user:hunter2@host/path",
        "unix://user:hunter2/x@/path",
        "embedded://user:hunter2@",
        "nonsense://user:hunter2@h",
        "user:hunter2@h:6379",
        "redis://user:hunter2%ff@h",
    ],
)
def test_no_error_shows_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in "".join(traceback.TracebackException.from_exception(caught.value).format_exception_only())
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_an_address_can_be_hashed_and_sent_to_another_process() -> None:
    address = parse_url("redis://u:p@h/1?prefix=x")
    assert pickle.loads(pickle.dumps(address)) == address
    assert hash(address) == hash(parse_url("redis://u:p@h/1?prefix=x"))


names = st.text(min_size=1, max_size=20)
hosts = st.from_regex(r"\A[a-z][a-z0-9.-]{0,15}\Z") | st.ip_addresses().map(str)


@given(
    username=names,
    password=names,
    places=st.lists(st.tuples(hosts, st.integers(1, 65_535)), min_size=1, max_size=4),
    scheme=st.sampled_from(["redis+cluster", "rediss+cluster"]),
)
def test_any_quoted_login_and_hosts_come_back(
    username: str, password: str, places: list[tuple[str, int]], scheme: str
) -> None:
    listed = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places)
    address = parse_url(f"{scheme}://{quote(username, safe='')}:{quote(password, safe='')}@{listed}")
    assert (address.username, address.password, address.hosts) == (username, password, tuple(places))
    assert address.tls == scheme.startswith("rediss")


@given(
    password=st.text(alphabet=st.characters(codec="utf-8"), min_size=4, max_size=20),
    form=st.sampled_from(
        ["redis://u:{}@h/0", "redis://u:{}@h:x", "rediss://:{}@a,b", "unix://u:{}@/p", "redis://u:{}"]
    ),
)
def test_no_raw_password_is_ever_shown(password: str, form: str) -> None:
    assume(form != "redis://u:{}" or not password[0].isdigit())  # that may be a port
    url = form.format(password)
    assume(password not in form and password not in str(SAFE_WORDS))
    try:
        shown = repr(parse_url(url))
    except ConfigurationError as error:
        shown = str(error)
    assert password not in shown


def collect_messages() -> list[str]:
    """Return what is said anyway, so that a password which happens to be a part of it proves nothing."""
    messages = [repr(parse_url(url)) for url in ("redis://u:x@h/0", "unix://u:x@/p")]
    for url in (
        "redis://h:x",
        "redis://a,b",
        "redis://a@b/c@d",
        "redis://h/x",
        "unix://h/x",
        "redis://::",
        "redis://%ff",
    ):
        with pytest.raises(ConfigurationError) as caught:
            parse_url(url)
        messages.append(str(caught.value))
    return messages


SAFE_WORDS = collect_messages()


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    for url in (text, f"redis://{text}", f"redis+sentinel://{text}", f"unix:///{text}", f"redis://h?{text}"):
        try:
            address = parse_url(url)
        except ConfigurationError:
            continue
        assert address.hosts or address.kind in ("unix", "embedded")
