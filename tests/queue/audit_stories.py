"""The stories of the audit: between them they send every command that a queue can send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.errors import FatalError, QueueFull, Snooze
from tests.helpers.aio import eventually
from tests.queue.audit import Stage
from tests.queue.scenes import FAILED, GROUP, QUEUE, always_ahead, at_most_once, pending, take

Story = Callable[[Stage], Awaitable[None]]
STORIES: dict[str, Story] = {}


def story(tell: Story) -> Story:
    """Puts a story on the list."""
    STORIES[tell.__name__] = tell
    return tell


@story
async def publish_once(stage: Stage) -> None:
    queue = stage.queue()
    for message in ("a", "b", {"n": 1}):
        await stage.do(queue.publish, message)


@story
async def publish_twice(stage: Stage) -> None:
    queue = stage.queue()
    for message in ("a", "a", "b", "a"):
        await stage.do(queue.publish, message)


@story
async def publish_plain(stage: Stage) -> None:
    queue = stage.queue(deduplication=False)
    for message in ("a", "a"):
        await stage.do(queue.publish, message)


@story
async def complete(stage: Stage) -> None:
    queue = stage.queue()
    for message in ("a", "b"):
        await stage.do(queue.publish, message)
        await stage.end(await stage.take(queue))
    await stage.do(take, queue)


@story
async def complete_and_take_ahead(stage: Stage) -> None:
    queue = stage.queue(always_ahead)
    for message in ("a", "b", "c", "d", "e"):
        await stage.do(queue.publish, message)
    for _ in range(5):
        await stage.end(await stage.take(queue))
    await stage.do(take, queue)


@story
async def take_ahead_and_leave(stage: Stage) -> None:
    queue = stage.queue(always_ahead)
    for message in ("a", "b", "c"):
        await stage.do(queue.publish, message)
    await stage.end(await stage.take(queue))
    await stage.do(queue.drain, 1.0)
    other = stage.queue()
    for _ in range(2):
        await stage.end(await stage.take(other))


@story
async def take_ahead_and_pause(stage: Stage) -> None:
    queue = stage.queue(always_ahead)
    for message in ("a", "b", "c"):
        await stage.do(queue.publish, message)
    await stage.end(await stage.take(queue))
    slots = queue._gateway._consumer_of(QUEUE).slots  # type: ignore[attr-defined]
    await eventually(lambda: slots._return_thread is None)
    for _ in range(2):
        await stage.end(await stage.take(queue))


@story
async def complete_with_a_log(stage: Stage) -> None:
    queue = stage.queue(enable_completed_queue=True, max_completed_length=1)
    for message in ("a", "b"):
        await stage.do(queue.publish, message)
        await stage.end(await stage.take(queue))


@story
async def complete_with_a_log_that_refuses(stage: Stage) -> None:
    stage.raw.set("orders::completed", "no stream")
    queue = stage.queue(enable_completed_queue=True)
    await stage.do(queue.publish, "a")
    await stage.end(await stage.take(queue))
    stage.raw.delete("orders::completed")


@story
async def fail_and_try_again(stage: Stage) -> None:
    queue = stage.queue()
    await stage.do(queue.publish, "a")
    for error in (ValueError("failed"), Snooze(0.01), KeyboardInterrupt(), None):
        await stage.end(await stage.take(queue), error)


@story
async def fail_with_a_log(stage: Stage) -> None:
    queue = stage.queue(enable_failed_queue=True, max_failed_length=5)
    await stage.do(queue.publish, "a")
    for error in (ValueError("failed"), ValueError("failed"), None):
        await stage.end(await stage.take(queue), error)


@story
async def fail_for_good(stage: Stage) -> None:
    queue = stage.queue(on_failure="terminal")
    await stage.do(queue.publish, "a")
    await stage.end(await stage.take(queue), ValueError("failed"))
    logged = stage.queue(on_failure="terminal", enable_failed_queue=True)
    await stage.do(queue.publish, "b")
    await stage.end(await stage.take(logged), ValueError("failed"))


@story
async def dead_letters(stage: Stage) -> None:
    queue = stage.queue(max_delivery_count=2)
    await stage.do(queue.publish, "a")
    await stage.end(await stage.take(queue), FatalError("failed"))
    await stage.do(queue.publish, "b")
    for _ in range(2):
        await stage.end(await stage.take(queue), ValueError("failed"))
    await stage.do(queue.publish, "a")  # its key is free again


@story
async def redrive(stage: Stage) -> None:
    queue = stage.queue(max_delivery_count=1)
    for message in ("a", "b", "c"):
        await stage.do(queue.publish, message)
        await stage.end(await stage.take(queue), ValueError("failed"))
    await stage.do(queue.redrive_dead_letters, 2)
    await stage.end(await stage.take(queue))
    await stage.do(queue.redrive_dead_letters)


@story
async def look_and_purge(stage: Stage) -> None:
    queue = stage.queue(enable_completed_queue=True, enable_failed_queue=True, max_delivery_count=1)
    for message, error in (("a", None), ("b", ValueError("failed")), ("c", None), ("d", ValueError("failed"))):
        await stage.do(queue.publish, message)
        await stage.end(await stage.take(queue), error)
    for message in ("e", "f", "g"):
        await stage.do(queue.publish, message)
    held = await stage.take(queue)
    await stage.do(queue.stats)
    for source in ("pending", "processing", "completed", "failed", "dead_letter"):
        await stage.do(queue.peek, 5, source=source)
    for target in ("pending", "completed", "failed", "dead_letter"):
        await stage.do(queue.purge, target=target)
    await stage.do(queue._gateway.trim_queue, FAILED, 1)
    await stage.end(held)


@story
async def count_beside_another_group(stage: Stage) -> None:
    queue = stage.queue()
    await stage.do(queue.publish, "a")
    stage.raw.xgroup_create(QUEUE, "archive", "0")
    await stage.do(queue.publish, "b")
    await stage.end(await stage.take(queue))
    await stage.do(queue.stats)


@story
async def recover(stage: Stage) -> None:
    queue = stage.queue()
    await stage.do(queue.publish, "a")
    await stage.take(queue)
    stage.age()
    await stage.take(queue)
    stage.age()
    await stage.end(await stage.take(queue))


@story
async def recover_for_the_last_time(stage: Stage) -> None:
    queue = stage.queue(max_delivery_count=1)
    for message in ("a", "b"):
        await stage.do(queue.publish, message)
    await stage.take(queue)
    stage.age()
    await stage.end(await stage.take(queue))


@story
async def recover_what_is_gone(stage: Stage) -> None:
    queue = stage.queue()
    await stage.do(queue.publish, "a")
    await stage.take(queue)
    stage.age()
    stage.raw.xdel(QUEUE, *pending(stage.raw))
    await stage.do(queue.publish, "b")
    await stage.end(await stage.take(queue))


@story
async def undecodable(stage: Stage) -> None:
    stage.raw.xadd(QUEUE, {"data": b"\xff\xfe"})
    queue = stage.queue()
    await stage.do(queue.publish, "a")
    await stage.end(await stage.take(queue))


@story
async def stale(stage: Stage) -> None:
    queue = stage.queue(enable_completed_queue=True)
    await stage.do(queue.publish, "a")
    late = await stage.take(queue)
    stage.age()
    held = await stage.take(queue)
    await stage.end(late)
    await stage.end(held)


@story
async def renew(stage: Stage) -> None:
    queue = stage.queue()
    await stage.do(queue.publish, "a")
    held = await stage.take(queue)
    await stage.do(queue._gateway.renew_message_lease, QUEUE, held.message, held.token)
    stage.raw.xclaim(QUEUE, GROUP, "thief", 0, list(pending(stage.raw)), justid=True)
    await stage.do(queue._gateway.renew_message_lease, QUEUE, held.message, held.token)


@story
async def renew_what_vanished(stage: Stage) -> None:
    queue = stage.queue()
    await stage.do(queue.publish, "a")
    held = await stage.take(queue)
    stage.raw.xdel(QUEUE, *pending(stage.raw))
    await stage.do(queue._gateway.renew_message_lease, QUEUE, held.message, held.token)
    await stage.end(held)


@story
async def drop_the_oldest(stage: Stage) -> None:
    queue = stage.queue(max_pending_length=2, pending_overload_policy="drop_oldest")
    for message in ("a", "b", "c", "d", "a"):
        await stage.do(queue.publish, message)


@story
async def drop_nothing_that_is_in_hand(stage: Stage) -> None:
    queue = stage.queue(max_pending_length=1, pending_overload_policy="drop_oldest")
    await stage.do(queue.publish, "a")
    held = await stage.take(queue)
    try:
        await stage.do(queue.publish, "b")
    except QueueFull:
        stage.results.append("full")
    await stage.end(held)


@story
async def reject(stage: Stage) -> None:
    queue = stage.queue(max_pending_length=1)
    await stage.do(queue.publish, "a")
    try:
        await stage.do(queue.publish, "b")
    except QueueFull:
        stage.results.append("full")


@story
async def once_only(stage: Stage) -> None:
    queue = stage.queue(make=at_most_once)
    for message, error in (("a", None), ("b", ValueError("failed"))):
        await stage.do(queue.publish, message)
        await stage.end(await stage.take(queue), error)


@story
async def lose_the_group(stage: Stage) -> None:
    queue = stage.queue()
    for message in ("a", "b"):
        await stage.do(queue.publish, message)
    await stage.end(await stage.take(queue), ValueError("failed"))
    stage.raw.xgroup_destroy(QUEUE, GROUP)
    for _ in range(2):
        await stage.end(await stage.take(queue))


@story
async def chores(stage: Stage) -> None:
    queue = stage.queue()
    for message in ("a", "b"):
        await stage.do(queue.publish, message)
    stage.raw.xgroup_create(QUEUE, "archive", "0")
    await stage.end(await stage.take(queue))
    stage.raw.xgroup_destroy(QUEUE, "archive")  # now nobody needs what it kept
    gateway: Any = queue._gateway
    for consumer in gateway._consumers.values():
        consumer._janitor._next_s = 0.0
    await stage.end(await stage.take(queue))


@story
async def drain(stage: Stage) -> None:
    queue = stage.queue()
    await stage.do(queue.publish, "a")
    await stage.end(await stage.take(queue))
    await stage.do(queue.drain, 1.0)
