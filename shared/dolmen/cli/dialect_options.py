"""The options that say how a file's values are written: declared once, for every command that reads files."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from typer import Option

from dolmen.format.dialect import parse_attributes

_Text = str | None
_Texts = list[str] | None

_OPTIONS: dict[str, Any] = {
    "delimiter": Annotated[_Text, Option("--delimiter", help="What separates the fields of CSV: ';', '|', tab.")],
    "quote": Annotated[_Text, Option("--quote", help="What is around fields of CSV; none: nothing is.")],
    "escape": Annotated[_Text, Option("--escape", help="What makes the next character of CSV literal, as '\\'.")],
    "comment": Annotated[_Text, Option("--comment", help="Skip lines of CSV that begin with this, as '#'.")],
    "skip_lines": Annotated[
        int | None, Option("--skip-lines", help="Skip this many lines, or rows of a sheet, before the header.", min=0)
    ],
    "header": Annotated[
        bool | None, Option("--header/--no-header", help="Whether CSV, or a sheet, has a header.", show_default=False)
    ],
    "names": Annotated[_Text, Option("--names", help="number: number names that are missing or there twice; strict.")],
    "ragged": Annotated[_Text, Option("--ragged", help="fill: fields of CSV that a row lacks are NULL; reject.")],
    "nulls": Annotated[_Texts, Option("--null", help="An unquoted text of CSV that is NULL, as NA; repeatable.")],
    "decimal": Annotated[_Text, Option("--decimal", help="The decimal mark in CSV: '.' or ','.")],
    "thousands": Annotated[_Text, Option("--thousands", help="What is between groups of three digits in CSV.")],
    "booleans": Annotated[_Texts, Option("--boolean", help="Texts of CSV for true and false, as yes/no; repeatable.")],
    "timestamp_formats": Annotated[
        _Texts,
        Option("--time-format", help="How times are written, as %d/%m/%Y %H:%M, or epoch_ms; repeatable."),
    ],
    "encoding": Annotated[_Text, Option("--encoding", help="utf-8, utf-16, windows-1252, latin-1, ...")],
    "json_rows": Annotated[
        _Text, Option("--json-rows", help="Where rows of JSON are: lines, values, or a path such as detail.items.")
    ],
    "sheet": Annotated[_Text, Option("--sheet", help="The sheet of a workbook.")],
}
"""By attribute of ``Dialect``."""


def with_dialect(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of dialects, in place of its parameter ``dialect``.

    The command gets the attributes of ``Dialect`` that were given, by name.
    """
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name == "dialect":
            parameters += [
                inspect.Parameter(each, parameter.kind, default=None, annotation=annotation)
                for each, annotation in _OPTIONS.items()
            ]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    def run(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in _OPTIONS}
        given = {name: value for name, value in values.items() if value not in (None, [])}
        if "nulls" in given:
            given["nulls"] = list(dict.fromkeys(["", *given["nulls"]]))
        command(**arguments, dialect=parse_attributes(given))

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run
