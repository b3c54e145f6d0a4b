"""What a client of redis-py was told is told to the connections that are made in its place."""

from __future__ import annotations

import redis

from penstock.sync.redis.from_driver import client_of


def test_the_checks_of_certificates_by_ocsp_are_taken_along() -> None:
    client = redis.Redis(ssl=True, ssl_validate_ocsp=True, ssl_ca_path="/etc/ca")
    options = client_of(client).settings.tls_options
    assert (options["ssl_validate_ocsp"], options["ssl_ca_path"]) == (True, "/etc/ca")
