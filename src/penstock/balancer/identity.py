"""Who a consumer of a balanced service is."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.errors import ConfigurationError
from penstock.keys import CONSUMER_PREFIX, MAX_NAME, check_name


def consumer_id(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return `redis-consumer-<name>`, from the given name, or POD_NAME, or POD_IP.

    Locks hold this text, so no two running processes may share it: neither two of ours nor one of ours and a Go pod.
    """
    name = given if given is not None else environment.get("POD_NAME") or environment.get("POD_IP")
    if not name:
        raise ConfigurationError(
            "pod name or pod IP is missing: give id=..., or set the environment variable POD_NAME or POD_IP"
        )
    check_name("id", name, MAX_NAME - len(CONSUMER_PREFIX))
    return name if name.startswith(CONSUMER_PREFIX) else f"{CONSUMER_PREFIX}{name}"
