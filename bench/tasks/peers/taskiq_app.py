"""The application that taskiq's command loads."""

from __future__ import annotations

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.tasks.peers.setting import NAME, URL

results = RedisAsyncResultBackend(URL, result_ex_time=3_600)
broker = RedisStreamBroker(URL, queue_name=NAME, consumer_group_name=NAME).with_result_backend(results)


@broker.task(task_name="noop")  # type: ignore[untyped-decorator]
async def noop(message: dict) -> int:  # type: ignore[type-arg] # read at run time by taskiq
    return 1
