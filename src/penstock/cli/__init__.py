"""The command `penstock`. Each group of commands is a module of its own, named after it and listed in app.py."""

from __future__ import annotations

_OF_THE_EXTRA = {"typer", "rich", "click"}


def main() -> None:
    """Run the command line."""
    try:
        from penstock.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_EXTRA:
            raise
        raise SystemExit(
            f"penstock: the command line needs {error.name}, which is not installed: pip install 'penstock[cli]'"
        ) from None
    run()
