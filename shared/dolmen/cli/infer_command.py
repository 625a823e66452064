"""``dolmen infer``: how a file is meant to be read."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Any

from typer import Argument, Option

from dolmen.cli.dialect_options import with_dialect
from dolmen.cli.inputs import INPUT_HELP, open_inputs
from dolmen.cli.options import InputFormat, Json, app
from dolmen.cli.output import print_json, print_text
from dolmen.errors import InputError


@app.command()
@with_dialect
def infer(
    file: Annotated[str, Argument(help=f"{INPUT_HELP}.")],
    form: InputFormat = None,
    as_yaml: Annotated[bool, Option("--yaml", help="Print a declaration of the table, for `dolmen apply`.")] = False,
    table: Annotated[str, Option("--table", help="The table's name in it; by default the file's.")] = "",
    dialect: Any = None,
    as_json: Json = False,
) -> None:
    """Show how a file is meant to be read: its format and dialect, its columns, and what was assumed.

    Options say what is known already.
    """
    if as_yaml and as_json:
        raise InputError("give one of --yaml and --json")
    with open_inputs([file], form, dialect, again=True) as [source]:
        found = source.infer()
    if as_json:
        print_json(found.facts())
    elif as_yaml:
        print_text(found.declaration(table or _table_name(file)).rstrip("\n"))
    else:
        print_text(str(found))


def _table_name(file: str) -> str:
    """A name for a table, by the name of a file."""
    stem = PurePath(file.rsplit("/", 1)[-1]).name.partition(".")[0].lower()
    name = re.sub(r"[^a-z0-9_]+", "_", stem).strip("_")[:64]
    return name if name and file != "-" else "data"
