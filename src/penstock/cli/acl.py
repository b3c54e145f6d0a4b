"""`penstock acl`: the rights that a user of Redis needs, and no more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from penstock.cli.command import Server
from penstock.cli.options import AsJson
from penstock.cli.shown import say
from penstock.ops.rights import NEWER, Place, RoleName, as_line, rights_of
from penstock.redis.address import parse_url
from penstock.redis.capabilities import known_commands
from penstock.shown import to_json

Names = list[str] | None


@dataclass(frozen=True)
class RolePlace:
    """What a user is for, as options say."""

    place: Place

    @classmethod
    def from_options(
        cls,
        stream: Annotated[
            Names,
            typer.Option(
                help="A stream or message queue, or a pattern such as 'orders:*'; for a balancer, its data streams."
            ),
        ] = None,
        queue: Annotated[Names, typer.Option(help="A task queue.")] = None,
        service: Annotated[Names, typer.Option(help="A balanced service.")] = None,
        dead_letters: Annotated[
            Names, typer.Option(help="A dead-letter stream that does not have its default name.")
        ] = None,
        prefix: Annotated[str, typer.Option(help="The key prefix of the clients, if any.")] = "",
    ) -> RolePlace:
        """Make it of the options."""
        return cls(
            Place(tuple(stream or ()), tuple(queue or ()), tuple(service or ()), tuple(dead_letters or ()), prefix)
        )


def acl(
    server: Server,
    names: RolePlace,
    role: Annotated[RoleName, typer.Option(help="The role of the user.")],
    user: Annotated[str | None, typer.Option(help="The name of the user.", show_default="penstock-<role>")] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="With --offline: the server is a Redis Cluster.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not connect to a server; assume the oldest supported version.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print an ACL SETUSER command with the least rights that a role needs, to be piped into redis-cli.

    It does not set or change a password. Options that name keys may be repeated.
    """
    if offline:
        rights = rights_of(role, replace(names.place, db=parse_url(server.url).db, is_cluster=cluster))
        known = set(rights.command_names) - NEWER
    else:
        with server.client() as client:
            rights = rights_of(role, replace(names.place, db=client.settings.db, is_cluster=client.is_cluster))
            words = rights.command_names
            known = set(known_commands(words, client.call("", "COMMAND", "INFO", *words)))
    name = user or f"penstock-{role.value}"
    rules = rights.rules(known)
    line = as_line(["ACL", "SETUSER", name, *rules])
    print(to_json({"user": name, "role": role.value, "rules": rules, "line": line}) if as_json else line)
    say(f"if the user is new, set a password as well: ACL SETUSER {name} '>...'")
