"""Writes docs/reference/cli.md from the commands themselves; with --check, tells whether it is fresh."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from penstock.cli.app import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
JSON_NAMES = PAGE.parents[2] / "tests" / "helpers" / "json_names.json"
HEAD = """\
# The command line

Every command of `penstock`, as `penstock COMMAND --help` shows it. This page is generated from the commands: change
them, then run `make reference`.

* **Where.** `--url`, else the variable `PENSTOCK_URL`, else `task_queue.url` of the [settings](configuration.md), of
  which `--config` names the file. Every command that connects to a server takes these two. Commands of pipelines use
  the `url` in the pipeline file before the variable and the settings, and `--url` before all.
* **Output.** Results go to standard output, messages to standard error. Commands that run until they are stopped
  (`worker`, `consume`, `exporter`) print their progress to standard output, and only warnings and errors to standard
  error. `--json` prints one object per line, with stable names; times are in ISO 8601. Tables are for people; in a
  pipe no column is cut.
* **Durations** are `500ms`, `30s`, `1h30m` or `'10 minutes'`. **Times** are `2026-11-15T12:00Z`, in UTC unless they
  name a zone, milliseconds since 1970, or how long ago: `2h`.
* **Ids** may be shortened to a unique prefix, such as their milliseconds. Where a stream has more than 100,000 dead
  letters, pass the whole id of a record.
* **Exit codes**: 0 success, 1 failure, 2 invalid arguments or settings, 3 something does not exist or is
  unhealthy, 130 Ctrl-C.
* **Completion**: `penstock --install-completion`.
* Every command takes `-v` (`--verbose`), which logs more, `-q` (`--quiet`), which prints only results and errors, and
  `--help`.
"""
EVERYWHERE = {"verbose", "quiet", "help", "url", "config"}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that name it, those with commands below them left out."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, child in below.items():
        yield from leaves(child, (*path, name))


def page() -> str:
    """Return the page."""
    shown: dict[str, list[str]] = {}
    hidden: list[str] = []
    for path, command in leaves(typer.main.get_command(app)):
        if command.hidden or path[:2] == ("queue", "dlq"):
            hidden.append(f"`penstock {' '.join(path)}`")
        else:
            shown.setdefault(path[0], []).append(_section(path, command))
    parts = [HEAD, *(part for name in shown for part in [*_heading(name, shown[name]), *shown[name]])]
    if hidden:
        parts.append("## Other names\n\nAliases that users of other queues may know: " + ", ".join(hidden) + ".\n")
    return "\n".join(parts)


def _heading(name: str, sections: list[str]) -> list[str]:
    return [] if sections[0].startswith("## ") else [f"## {name}\n"]


def _section(path: tuple[str, ...], command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join(["penstock", *path, *map(_placeholder, arguments)])
    level = "##" if len(path) == 1 else "###"
    lines = [f"{level} {' '.join(path)}\n", f"```text\n{usage} [OPTIONS]\n```\n", _text(command.help), ""]
    rows = [(_spelled(each), each) for each in [*arguments, *options] if each.name not in EVERYWHERE]
    if rows:
        lines += ["| argument or option | meaning | default |", "|---|---|---|"]
        lines += [f"| {spelled} | {_cell(each.help or '')} | {_default(each)} |" for spelled, each in rows]
        lines.append("")
    for variant, names in _names_in_json(" ".join(path)):
        lines += [f"`--json`{variant} prints {', '.join(f'`{name}`' for name in names)}.", ""]
    return "\n".join(lines)


def _names_in_json(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the names that a command prints, and with which arguments."""
    for what, names in json.loads(JSON_NAMES.read_text()).items():
        more = what.removeprefix(name)
        if not more or (more.startswith(" ") and not more[1].islower()):  # `--causes`, `SERVICE`: no other command
            yield (f" with `{more.strip()}`" if more else ""), [each for each in names if "." not in each]


def _text(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _placeholder(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_placeholder(parameter)}`"
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return _cell(parameter.show_default)
    default = parameter.default
    if default is None or default == "" or default is False or callable(default):
        return ""
    return f"`{getattr(default, 'value', default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page, or compare it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="write nothing; code 1 if the page is stale")
    text = page()
    if not arguments.parse_args().check:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE} is stale: run `make reference`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
