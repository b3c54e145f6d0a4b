"""Entry of a child process: loads the adapter that the params name and plays its role."""

from __future__ import annotations

import importlib

from bench.peers import async_publishing, blocking_publishing
from bench.peers.adapter import Adapter, AsyncAdapter, BlockingAdapter
from bench.peers.params import from_environment


def main() -> None:
    """Publishes or works, as the driver asked."""
    params = from_environment()
    adapter: Adapter = importlib.import_module(f"bench.peers.{params.adapter}").ADAPTER(params)
    if params.role == "work":
        adapter.work()
    elif isinstance(adapter, AsyncAdapter):
        adapter.run(async_publishing.serve(adapter))
    elif isinstance(adapter, BlockingAdapter):
        blocking_publishing.serve(adapter)


if __name__ == "__main__":
    main()
