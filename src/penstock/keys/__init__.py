"""Defines every Redis key that Penstock uses.

All keys of one stream share its hash tag, so that one script may touch them in a cluster.
"""

from penstock.keys.balancer import CONSUMER_PREFIX, MUTEX_KEY_SEP, BalancerKeys
from penstock.keys.names import (
    MAX_NAME,
    check_dead_letters,
    check_name,
    check_same_slot,
    hash_tag,
    hashed_part,
    is_utf8,
)
from penstock.keys.queue import ListQueueKeys, QueueKeys
from penstock.keys.stream import StreamKeys
from penstock.keys.tasks import TaskKeys

# Stream of operators' actions in the dashboard: one entry before an action begins, and one after it has ended.
AUDIT_STREAM = "penstock-audit"

__all__ = [
    "AUDIT_STREAM",
    "CONSUMER_PREFIX",
    "MAX_NAME",
    "MUTEX_KEY_SEP",
    "BalancerKeys",
    "ListQueueKeys",
    "QueueKeys",
    "StreamKeys",
    "TaskKeys",
    "check_dead_letters",
    "check_name",
    "check_same_slot",
    "hash_tag",
    "hashed_part",
    "is_utf8",
]
