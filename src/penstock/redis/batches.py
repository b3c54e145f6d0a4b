"""Many commands in few round trips, in batches between which the server serves other clients."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.errors import GroupLost, PenstockError, PermissionDenied, TransientError
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.reading import Question, read_many
from penstock.redis.scripts import script
from penstock.redis.translate import ScriptMissing

# The server executes the commands of one write without serving other clients in between.
_TOGETHER = 100
# As opposed to "access" to a key, which the user may lack for one stream and have for another.
_OF_A_COMMAND = re.compile(r"(?:to|can't) run ")

Call = tuple[Sequence[str], Sequence[bytes | str | int]]  # keys and arguments of a script


async def ask(client: StreamClient, questions: Sequence[Question]) -> list[Reply]:
    """Ask questions that only read; return the replies in their order, an error about a key in place of its reply.

    Raises what a server that is busy or loading says: it would look as if the keys did not exist.
    """
    replies: list[Reply] = []
    for start in range(0, len(questions), _TOGETHER):
        replies += await read_many(client, questions[start : start + _TOGETHER])
    for reply in replies:
        if isinstance(reply, TransientError) and not isinstance(reply, GroupLost | ScriptMissing):
            raise reply
    return replies


async def run_many(client: StreamClient, name: str, calls: Sequence[Call]) -> list[Reply]:
    """Run a script that only reads for many keys; return the replies as ask() does.

    Raises PermissionDenied if the user may not run the script at all.
    """
    wanted = script(name)
    questions: list[Question] = [(keys[0], ("EVALSHA", wanted.sha, len(keys), *keys, *args)) for keys, args in calls]
    replies = await ask(client, questions[:1])
    if replies and isinstance(replies[0], ScriptMissing):
        replies = await _with_script(client, name, questions[:1])
    replies += await ask(client, questions[1:])
    if any(isinstance(reply, ScriptMissing) for reply in replies):  # another node of a cluster
        replies = await _with_script(client, name, questions)
    for reply in replies:
        if isinstance(reply, PermissionDenied) and _OF_A_COMMAND.search(str(reply)):
            raise reply
    return replies


async def _with_script(client: StreamClient, name: str, questions: Sequence[Question]) -> list[Reply]:
    for connection in await client.to_masters():
        await client.load(connection, [script(name)])
    return await ask(client, questions)


def number_or(reply: Reply, default: int = 0) -> int:
    """Return a reply that is a number; the default for an error about the key."""
    return default if isinstance(reply, PenstockError) or reply is None else int(reply)
