"""Writes the reference of all commands as Markdown: `make docs`.

    python scripts/command_reference.py build/commands.md

It asks the command line itself, so that no option can be missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from dolmen.cli.options import EXAMPLES
from dolmen.cli.run import command_line
from dolmen_simulator.command import app as simulator

_KINDS = {str: "text", int: "number", float: "number", list[str]: "text, repeatable", Path: "path"}


def reference() -> str:
    """The page."""
    # dolmen passes on all that follows "simulate"
    commands = {**command_line().commands, "simulate": typer.main.get_command(simulator)}
    origin = "Made from the command line itself. [The command line](cli.md) says how they work together."
    lines = ["# Commands and options", "", origin, ""]
    for name, command in sorted(commands.items()):
        lines += _describe(f"dolmen {name}", command, 2)
    return "\n".join(lines)


def _describe(name: str, command: Any, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {name}", "", _escape(_paragraphs(command.help or "")), "")
    if commands := getattr(command, "commands", None):
        for each, inner in sorted(commands.items()):
            yield from _describe(f"{name} {each}", inner, level + 1)
        return
    rows = [_row(parameter) for parameter in command.params if "completion" not in parameter.name]
    if rows:
        yield from ("| option | takes | meaning |", "|---|---|---|", *rows, "")
    if examples := EXAMPLES.get(name.removeprefix("dolmen ")):
        yield from ("```sh", *examples, "```", "")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name).strip("[]{}.").upper()
        what, takes = f"`{name}`", "one or more" if parameter.nargs == -1 else "one"
    else:
        what = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        takes = "" if parameter.is_flag else _KINDS[parameter.type_descriptor.annotation]
    meaning = [_escape(_paragraphs(parameter.help or ""))]
    if variable := getattr(parameter, "envvar", None):
        names = [variable] if isinstance(variable, str) else variable
        meaning.append("Default: " + ", ".join(f"`{name}`" for name in names) + ".")
    elif parameter.required:
        meaning.append("Required.")
    elif takes and parameter.default not in (None, "", ()) and not callable(parameter.default):
        meaning.append(f"Default: `{parameter.default}`.")
    return f"| {what} | {takes} | {' '.join(meaning).strip()} |"


def _paragraphs(text: str) -> str:
    """Joins lines that help breaks for the terminal."""
    plain = text.replace("\b\n", "").replace("\b", "")
    return "\n\n".join(" ".join(part.split()) for part in plain.split("\n\n")).strip()


def _escape(text: str) -> str:
    """Help is plain text: nothing in it may be taken for markup."""
    for character in "\\`*_<[|":
        text = text.replace(character, "\\" + character)
    return text


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(reference())
