"""Helpers for tests: real servers, a proxy that breaks the way to them, and the contract of gateways."""

from penstock.testing.fault_proxy import FaultProxy
from penstock.testing.faults import Fault
from penstock.testing.gateway_contract import GatewayContract
from penstock.testing.servers import TEST_SERVERS, Cluster, ServerKind, ServerMissing

__all__ = ["TEST_SERVERS", "Cluster", "Fault", "FaultProxy", "GatewayContract", "ServerKind", "ServerMissing"]
