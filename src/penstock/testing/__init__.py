"""Helpers for tests against real servers: the servers themselves, and a proxy that breaks the way to them."""

from penstock.testing.fault_proxy import FaultProxy
from penstock.testing.faults import Fault
from penstock.testing.servers import TEST_SERVERS, Cluster, ServerKind, ServerMissing

__all__ = ["TEST_SERVERS", "Cluster", "Fault", "FaultProxy", "ServerKind", "ServerMissing"]
