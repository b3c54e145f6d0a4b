"""Whether a user may do what a role needs, or far more, as ACL DRYRUN says: no command is carried out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.errors import NotFound, PermissionDenied, ServerError, UnsupportedServer
from penstock.ops.model import Finding, Severity
from penstock.ops.rights import Place, RoleName, rights_of
from penstock.ops.server_findings import PAGE_OF_RIGHTS, not_examined
from penstock.redis.client import StreamClient
from penstock.redis.reading import ask

_ANY = "penstock-doctor"  # stands for what a pattern matches
_NO_ROLE_NEEDS = ("ACL SETUSER", "CONFIG SET", "FLUSHALL", "KEYS", "REPLICAOF", "SHUTDOWN")
_SHOWN = 8
_GLOB = re.compile(r"\\(.)|\[\^[^\]]*\]|\[(.)[^\]]*\]|([*?])")


async def role_findings(client: StreamClient, user: str, role: RoleName, place: Place) -> list[Finding]:
    """Return what a user lacks for a role, and what makes it far too powerful for it; raise NotFound without a user."""
    rights = rights_of(role, replace(place, db=client.settings.db, is_cluster=client.is_cluster))
    try:
        await client.call("", "ACL", "DRYRUN", user, "PING")
        calls = await _calls(client, [*rights.commands, *_NO_ROLE_NEEDS])
    except PermissionDenied:
        return [not_examined(f"user {user}", f"whether it has the rights of the role {role}", "ACL DRYRUN")]
    except UnsupportedServer:
        return [_too_old(user, role)]
    except ServerError as error:
        if "not found" not in str(error):
            raise
        raise NotFound(f"the server has no user {user!r}; list its users with ACL USERS") from None
    refused = await _refused(client, user, calls)
    # Every role uses its keys through scripts. Without the right to run them, the server says nothing about keys.
    keys = {key: ("EVALSHA", "x", "1", sample(key)) for key in (*rights.keys, _ANY) if "EVALSHA" not in refused}
    channels = {each: ("PSUBSCRIBE", each) for each in rights.channels if "PSUBSCRIBE" not in refused}
    refused_keys = await _refused(client, user, keys, b" access ")
    refused_channels = await _refused(client, user, channels, b" access ")
    lacking = [
        *_listed("commands", [name for name in refused if name in rights.commands]),
        *_listed("keys", [key for key in refused_keys if key in rights.keys]),
        *_listed("channels", refused_channels),
    ]
    found = [_lacks(user, role, lacking)] if lacking else []
    excess = [name for name in _NO_ROLE_NEEDS if name in calls and name not in refused]
    excess += ["all keys"] if keys and _ANY not in refused_keys and "*" not in rights.keys else []
    return [*found, *([_exceeds(user, role, excess)] if excess else [])]


async def _calls(client: StreamClient, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return a call of each command that the server knows, with as many arguments as it needs."""
    replies = await client.call("", "COMMAND", "INFO", *(name.lower().replace(" ", "|") for name in names))
    made = {}
    for name, reply in zip(names, replies, strict=True):
        if reply:
            words = name.split()
            made[name] = (*words, *[_ANY] * (abs(int(reply[1])) - len(words)))
    return made


async def _refused(
    client: StreamClient, user: str, calls: Mapping[str, Sequence[str]], what: bytes = b" run "
) -> list[str]:
    """Return what the user may not run, or, of keys and channels, not access."""
    replies = await ask(client, [("", ("ACL", "DRYRUN", user, *words)) for words in calls.values()])
    return [name for name, reply in zip(calls, replies, strict=True) if isinstance(reply, bytes) and what in reply]


def sample(pattern: str) -> str:
    """Return a key that a pattern matches, and hardly any pattern that is narrower."""
    return _GLOB.sub(lambda found: found[1] or found[2] or ("x" if found[3] == "?" else _ANY), pattern)


# --- findings -------------------------------------------------------------------------------------


def _listed(what: str, names: Sequence[str]) -> list[str]:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{what} {', '.join(names[:_SHOWN])}{more}"] if names else []


def _lacks(user: str, role: RoleName, lacking: Sequence[str]) -> Finding:
    what = f"may not use what the role {role} needs: {'; '.join(lacking)}"
    fix = f"apply the rights that `penstock acl --role {role}` prints for these names"
    return Finding("rights", Severity.ERROR, f"user {user}", what, fix, PAGE_OF_RIGHTS)


def _exceeds(user: str, role: RoleName, excess: Sequence[str]) -> Finding:
    what = f"may do far more than the role {role} needs: {', '.join(excess)}"
    fix = f"create a user with the rights that `penstock acl --role {role}` prints for these names"
    return Finding("rights", Severity.WARNING, f"user {user}", what, fix, PAGE_OF_RIGHTS)


def _too_old(user: str, role: RoleName) -> Finding:
    what = f"not examined: whether it has the rights of the role {role}; servers can tell since Redis 7.0"
    fix = f"compare ACL GETUSER {user} with what `penstock acl --role {role}` prints for these names"
    return Finding("not-examined", Severity.INFO, f"user {user}", what, fix, PAGE_OF_RIGHTS)
