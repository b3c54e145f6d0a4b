"""The contract of gateways, for those of the sync half; all other helpers for tests are in `penstock.testing`."""

from penstock.sync.testing.gateway_contract import GatewayContract

__all__ = ["GatewayContract"]
