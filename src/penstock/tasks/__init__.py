"""Tasks: named pieces of work on a queue, workers that do them, and one result for each."""

from penstock.task import Priority, Result, Status, Task
from penstock.tasks.in_hand import InHand
from penstock.tasks.queue import TaskQueue
from penstock.tasks.redis_queue import RedisTaskQueue
from penstock.tasks.stub import StubQueue

__all__ = ["InHand", "Priority", "RedisTaskQueue", "Result", "Status", "StubQueue", "Task", "TaskQueue"]
