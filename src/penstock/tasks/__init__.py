"""Tasks: named pieces of work on a queue, workers that do them, and one result for each."""

from penstock.errors import Skip, TaskTimeout
from penstock.task import Priority, Result, Status, Task
from penstock.tasks.handlers import Handlers, Limits, Rate, Retry, TaskHandler
from penstock.tasks.listed import DeadTask, PendingTask
from penstock.tasks.queue import TaskQueue
from penstock.tasks.redis_queue import RedisTaskQueue
from penstock.tasks.schedule import CronRule, Schedule
from penstock.tasks.stub import StubQueue
from penstock.tasks.worker import InlineWorker, Worker, WorkerReport

__all__ = [
    "CronRule",
    "DeadTask",
    "Handlers",
    "InlineWorker",
    "Limits",
    "PendingTask",
    "Priority",
    "Rate",
    "RedisTaskQueue",
    "Result",
    "Retry",
    "Schedule",
    "Skip",
    "Status",
    "StubQueue",
    "Task",
    "TaskHandler",
    "TaskQueue",
    "TaskTimeout",
    "Worker",
    "WorkerReport",
]
