"""What each role needs of a server: commands, keys and channels, as rules of its access control list.

The commands of scripts are read from the scripts themselves: they run with the rights of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.errors import ConfigurationError
from penstock.keys import AUDIT_STREAM, MUTEX_KEY_SEP, BalancerKeys, QueueKeys, StreamKeys, TaskKeys
from penstock.redis.scripts import names, script

NEWER = frozenset({"WAITAOF"})  # than the oldest server that is supported
_CALL = re.compile(r"call\(\s*'([A-Z]+)'(?:\s*,\s*'([A-Z]+)')?")
_CONTAINERS = ("XGROUP", "XINFO", "MEMORY")
_SCRIPTS = ("EVALSHA", "EVAL", "SCRIPT LOAD")
_CONNECTING = ("PING", "SELECT", "CLIENT ID", "CLIENT SETNAME", "CLIENT SETINFO")
_AVAILABLE_WITH = {"CLIENT SETINFO": "WAITAOF"}  # servers list the commands that they know, but not always subcommands
_CLUSTER_COMMANDS = ("CLUSTER SLOTS", "CLUSTER NODES", "ASKING")
_READING = (
    "XLEN", "XRANGE", "XREVRANGE", "XPENDING", "XINFO STREAM", "XINFO GROUPS", "XINFO CONSUMERS", "TIME", "TYPE",
    "EXISTS", "GET", "PTTL", "HGET", "HMGET", "HGETALL", "HLEN", "ZCARD", "ZMSCORE", "ZRANGE", "ZSCORE", "SMEMBERS",
)  # fmt: skip
_INSPECTING = ("SCAN", "HSCAN", "ZSCAN", "MEMORY USAGE", "INFO")  # SCAN shows the names of all keys
_DURABLE = ("WAIT", "WAITAOF", "INFO", "COMMAND INFO")
_CONSUMING = (
    "XREADGROUP", "XACK", "XADD", "XDEL", "XTRIM", "XGROUP CREATE", "XGROUP DELCONSUMER", "SET", "DEL",
    "CLIENT UNBLOCK",
)  # fmt: skip
_NOTICES = ("__keyevent@{db}__:expired", f"__keyspace@{{db}}__:*{MUTEX_KEY_SEP}*")


class RoleName(StrEnum):
    """Who a user of Redis is."""

    PRODUCER = "producer"
    WORKER = "worker"
    TASKS = "tasks"
    BALANCER = "balancer"
    SPARK = "spark"
    READONLY = "readonly"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Place:
    """What the user is for; names may be patterns such as `orders:*`."""

    streams: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    dead_letters: tuple[str, ...] = ()
    prefix: str = ""
    db: int = 0
    is_cluster: bool = False


@dataclass(frozen=True)
class Rights:
    """The rules of one user."""

    commands: frozenset[str]
    keys: tuple[str, ...]
    channels: tuple[str, ...] = field(default=())

    def rules(self, known: Iterable[str]) -> list[str]:
        """Return the rules in the order in which ACL SETUSER takes them, for a server that knows these commands.

        Passwords do not change: a new user has none and cannot log in until one is set.
        """
        available = {name.upper() for name in known}
        allowed = sorted(
            name for name in self.commands if _AVAILABLE_WITH.get(name, name.partition(" ")[0]) in available
        )
        return [
            "on", "resetkeys", "resetchannels", "-@all",
            *(f"~{key}" for key in self.keys),
            *(f"&{channel}" for channel in self.channels),
            *(f"+{name.lower().replace(' ', '|')}" for name in allowed),
        ]  # fmt: skip

    @property
    def command_names(self) -> list[str]:
        """The commands to look up on the server, which may not know them."""
        return sorted({_AVAILABLE_WITH.get(name, name.partition(" ")[0]) for name in self.commands})


def rights_of(role: RoleName, place: Place) -> Rights:
    """Return the least that a role needs; raise ConfigurationError if it is not said where."""
    commands = {*_CONNECTING, *_SCRIPTS, *_COMMANDS[role], *(_CLUSTER_COMMANDS if place.is_cluster else ())}
    for name in names():
        if _uses(role, name):
            commands |= commands_of(name)
    if role is RoleName.SPARK and any("*" in stream for stream in place.streams):
        commands.add("SCAN")  # which shows the names of all keys
    channels = [each.format(db=place.db) for each in _NOTICES] if role is RoleName.BALANCER else []
    keys = tuple(dict.fromkeys(re.sub(r"\s", "?", key) for key in _keys(role, place)))  # no rule may hold a space
    # A server refuses the whole line if a pattern comes after that of all keys.
    return Rights(frozenset(commands), ("*",) if "*" in keys else keys, tuple(channels))


_COMMANDS: dict[RoleName, tuple[str, ...]] = {
    RoleName.PRODUCER: _DURABLE,
    RoleName.WORKER: (*_READING, *_CONSUMING, *_DURABLE),
    RoleName.TASKS: (*_READING, *_CONSUMING, "HDEL", "BLMOVE", "SMISMEMBER"),
    RoleName.BALANCER: (
        *_READING, *_CONSUMING, "XREAD", "HDEL", "PSUBSCRIBE", "PUNSUBSCRIBE", "SUBSCRIBE", "UNSUBSCRIBE",
    ),
    RoleName.SPARK: (
        *_READING, *_DURABLE, "XADD", "XDEL", "XGROUP CREATE", "XGROUP SETID", "SADD", "EXPIRE", "HSETNX",
    ),
    RoleName.READONLY: (*_READING, *_INSPECTING),
    RoleName.OPERATOR: (
        *_READING, *_INSPECTING, *_CONSUMING, "XCLAIM", "XGROUP SETID", "HDEL", "HSETNX",
        "SMISMEMBER",
    ),
}  # fmt: skip
# Of the scripts a reader has those without a write: they need no more than he may do anyway.
_FOLDERS: dict[RoleName, tuple[str, ...]] = {
    RoleName.WORKER: ("shared", "streams", "queue"),
    RoleName.TASKS: ("shared", "streams", "queue", "tasks"),
    RoleName.BALANCER: ("shared", "balancer"),
    RoleName.SPARK: ("shared", "spark"),
    RoleName.READONLY: (),
    RoleName.OPERATOR: ("shared", "streams", "queue", "tasks", "balancer", "ops"),
}


def _uses(role: RoleName, name: str) -> bool:
    """Return whether a role calls a script."""
    if role is RoleName.PRODUCER:
        return name == "streams/publish"
    return name.partition("/")[0] in _FOLDERS[role] and not name.startswith("queue/import_")


def commands_of(name: str) -> set[str]:
    """Return the commands that a script calls."""
    found = _CALL.findall(script(name).source)
    return {f"{word} {sub}" if word in _CONTAINERS and sub else word for word, sub in found}


def missing_commands(rights: Rights, rules: str) -> list[str]:
    """Return the commands that a role needs and a user lacks, by the rules that ACL GETUSER shows.

    Only what is certain: a rule about a category of commands other than all of them decides nothing.
    """
    words = rules.lower().split()
    lacking = []
    for name in sorted(name for name in rights.commands if _AVAILABLE_WITH.get(name, name) not in NEWER):
        command = name.lower().replace(" ", "|")
        may: bool | None = False
        for word in words:
            sign, what = word[:1], word[1:]
            if what == "@all" or what in {command, command.partition("|")[0]}:
                may = sign == "+"
            elif what.startswith("@"):
                may = None
        if may is False:
            lacking.append(name)
    return lacking


def _keys(role: RoleName, place: Place) -> list[str]:
    found: list[str] = []
    sees_all = role in (RoleName.READONLY, RoleName.OPERATOR)
    if sees_all or role in (RoleName.PRODUCER, RoleName.WORKER, RoleName.SPARK):
        found += [key for stream in place.streams for key in _stream_keys(role, stream, place)]
    if sees_all or role is RoleName.TASKS:
        found += [key for queue in place.queues for key in _queue_keys(queue, place)]
    if sees_all or role is RoleName.BALANCER:
        found += [key for service in place.services for key in _service_keys(service, place)]
    if role is RoleName.SPARK:
        found += [*(key for queue in place.queues for key in _queue_keys(queue, place)), "{penstock}:spark:*"]
    if not [key for key in found if key != "{penstock}:spark:*"]:
        option = {RoleName.TASKS: "--queue", RoleName.BALANCER: "--service"}.get(role, "--stream")
        raise ConfigurationError(
            f"name the keys that the role {role} may use: {option} NAME, where NAME may be a pattern"
        )
    if sees_all:  # what operators did, which the dashboard writes and shows
        audit = StreamKeys.of(AUDIT_STREAM, place.prefix)
        found += [audit.stream, _keys_of(audit)]
    if role is not RoleName.PRODUCER:
        found += [key for name in place.dead_letters for key in (name, _keys_of(StreamKeys(name)))]
    return found


def _stream_keys(role: RoleName, stream: str, place: Place) -> list[str]:
    keys = StreamKeys.of(stream, place.prefix)
    if role is RoleName.PRODUCER:
        return [keys.stream, keys.producer("*"), keys.dedup("*")]
    dead = StreamKeys(keys.default_dead_letters())
    found = [keys.stream, _keys_of(keys), dead.stream, _keys_of(dead)]
    if role is RoleName.SPARK:
        return found
    queue = QueueKeys(keys.stream)  # a message queue is a stream with logs
    return [*found, queue.completed, queue.failed, queue.dead_letter, _keys_of(StreamKeys(queue.dead_letter))]


def _queue_keys(name: str, place: Place) -> list[str]:
    keys = TaskKeys.of(name, place.prefix, place.is_cluster)
    lanes = keys.tasks("*")
    return [lanes.stream, _keys_of(lanes), keys.results, keys.dead, f"{keys.index.removesuffix('index')}*"]


def _service_keys(service: str, place: Place) -> list[str]:
    keys = BalancerKeys.of(service)
    base = f"{keys.owners.removesuffix('owners')}*"
    found = [keys.stream, base, keys.dead_letters]
    for stream in place.streams or ("*",):  # the data streams
        found += [stream, keys.lock(stream, "*"), keys.position(stream)]
        found.append(keys.dead_letters_of(stream, is_cluster=place.is_cluster))
    return found


def _keys_of(keys: StreamKeys) -> str:
    """Return the pattern of all keys that belong to a stream."""
    return keys.producer("*").replace(":producer:*", ":*")


def as_line(words: Iterable[str]) -> str:
    """Return words as redis-cli reads them."""
    return " ".join(
        word if re.fullmatch(r"[^\s\"'\\]+", word) and word.isprintable() else _quoted(word) for word in words
    )


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    # A terminal would carry out control characters, and redis-cli would end the line at some of them.
    return '"' + "".join(char if char.isprintable() else _as_bytes(char) for char in escaped) + '"'


def _as_bytes(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())
