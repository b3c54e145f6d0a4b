"""The values that the Inspector returns, a file for each noun. They are shared by the async and the sync half.

Streams are named as the client names them, without its prefix. Times are ms since 1970, ages and durations seconds.
"""

from penstock.ops.model.balancer import BalancedStream, BalancerPeer, ServiceInfo
from penstock.ops.model.dead_letters import (
    DeadLetterFilter,
    DeadLetterInfo,
    DeadLetterStreamInfo,
    FailureGroup,
    FailureGroups,
    RedriveReport,
)
from penstock.ops.model.groups import (
    MAX_CONSUMERS,
    Consumer,
    ConsumerState,
    GroupLag,
    Pending,
    ReaderCommit,
    ReaderPosition,
    WorkerInfo,
)
from penstock.ops.model.health import Finding, Overview, Sample, ServerInfo, Severity, StreamPoint, Totals
from penstock.ops.model.page import Page
from penstock.ops.model.retention import Pin, RetentionInfo, RetentionPolicy, TrimReport
from penstock.ops.model.streams import Entry, FieldValue, GroupInfo, GroupKind, Payload, StreamInfo, StreamKind
from penstock.ops.model.tasks import QueueInfo, ScheduleInfo, TaskInfo, TaskQueueInfo, TaskState

__all__ = [
    "MAX_CONSUMERS",
    "BalancedStream",
    "BalancerPeer",
    "Consumer",
    "ConsumerState",
    "DeadLetterFilter",
    "DeadLetterInfo",
    "DeadLetterStreamInfo",
    "Entry",
    "FailureGroup",
    "FailureGroups",
    "FieldValue",
    "Finding",
    "GroupInfo",
    "GroupKind",
    "GroupLag",
    "Overview",
    "Page",
    "Payload",
    "Pending",
    "Pin",
    "QueueInfo",
    "ReaderCommit",
    "ReaderPosition",
    "RedriveReport",
    "RetentionInfo",
    "RetentionPolicy",
    "Sample",
    "ScheduleInfo",
    "ServerInfo",
    "ServiceInfo",
    "Severity",
    "StreamInfo",
    "StreamKind",
    "StreamPoint",
    "TaskInfo",
    "TaskQueueInfo",
    "TaskState",
    "Totals",
    "TrimReport",
    "WorkerInfo",
]
