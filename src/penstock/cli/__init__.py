"""The command `penstock`."""

from __future__ import annotations


def main() -> int:
    """Run the command line."""
    raise SystemExit("penstock: no command yet")
