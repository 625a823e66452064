"""COPY: rows of a table or a query to a file, and rows of a file into a table, on the paths that the caller allows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from dolmen.base.records import replace
from dolmen.errors import InputError, short_repr
from dolmen.format.dialect import Dialect, parse_attributes
from dolmen.format.ingest_properties import FileKind, parse_kind
from dolmen.format.manifest import TableEntry
from dolmen.format.types import quote_name
from dolmen.ingest.formats.export import export_file, export_object
from dolmen.ingest.formats.formats import detect, read
from dolmen.ingest.formats.source_file import Format, ReadOptions, SourceFile
from dolmen.ingest.inference.inference import infer_file, opener
from dolmen.sql.queries import Queries
from dolmen.sql.statements import table_name
from dolmen.sql.tokens import SqlReader
from dolmen.store import store_of_object
from dolmen.transactions.transaction import Transaction, unit_of

ANY_URL = "://"  # in ``files``, it allows the objects of all URLs
_SYNONYMS = {"delim": "delimiter", "sep": "delimiter", "nullstr": "nulls", "null": "nulls", "skip": "skip_lines"}
"""DuckDB's names of options by dolmen's."""

_AS_WRITTEN = {"header": (True,), "delimiter": (",",), "delim": (",",), "sep": (",",)}
"""Options of COPY ... TO for CSV, with the values that say what it writes."""


def run_copy(
    transaction: Transaction,
    queries: Queries,
    reader: SqlReader,
    files: Mapping[str, Mapping[str, str] | None],
    request: str | None,
    *,
    is_alone: bool,
) -> pa.Table | None:
    """Runs ``COPY table FROM 'file'``, or ``COPY table TO 'file'``, which returns the number of rows.

    Args:
        files: the files and directories that may be read and written, or URLs that objects' URLs begin with, each with
            its ``storage_options``; None = the connection of the database.
        is_alone: whether no other statement of the text changes anything: otherwise it may run again.

    Raises:
        InputError: the path is not allowed, or its format is unknown; and as the methods and the file's reader do.
    """
    name, query, writes = _source_or_target(reader)
    [path] = queries.scalars([reader.until("(", "WITH")])
    reader.take("WITH")
    options = dict(reader.items(_option)) if reader.word() == "(" else {}
    if writes and (unknown := sorted(options.keys() - {"format", *_AS_WRITTEN})):
        raise InputError(
            f"COPY ... TO takes FORMAT, HEADER and DELIMITER, not {', '.join(unknown)}: for the rest use dolmen scan "
            "-o, which also writes folders (--partition-by)"
        )
    values = dict(zip(options, queries.scalars(list(options.values())), strict=True))
    if not reader.is_done:
        raise reader.error("nothing more is expected")
    storage_options, store = _options_of(path, files), unit_of(transaction).context.store
    name_of_format = values.pop("format", None)
    kind = parse_kind(None if name_of_format is None else str(name_of_format).lower(), "FORMAT ")
    if writes:
        format = detect(Path(path).name, kind)
        _check_written(format, values)
        rows = queries.run(query).stream()
        if (found := store_of_object(path, storage_options, store)) is None:
            return pa.table({"Count": [export_file(rows, Path(path), format)]})
        if not is_alone:
            raise InputError("COPY ... TO an object must be alone: a text that changes tables may run more than once")
        return pa.table({"Count": [export_object(rows, *found, format)]})
    table = queries.target(transaction, name)
    entry = unit_of(transaction).entry(table.name)
    write = table.insert if entry.primary_key else table.append
    write(_read(*opener(path, storage_options, store), kind, values, entry), request=request)
    return None


def _source_or_target(reader: SqlReader) -> tuple[str, str, bool]:
    """The table, if one is named; a query of its rows, or of others; and whether they are written to a file."""
    if reader.word() == "(":
        name, query = "", "FROM " + _group(reader)
    else:
        name = table_name(reader)
        query = f"FROM {quote_name(name)}"
        if reader.word() == "(":
            query = f"SELECT {', '.join(map(quote_name, reader.items(SqlReader.name)))} {query}"
    writes = reader.take("TO")
    if not writes:
        reader.expect("FROM")
    if not name and not writes:
        raise reader.error("rows are copied from a file into a table: name it")
    if not writes and query.startswith("SELECT"):
        raise reader.error("the file names its columns: leave the list out")
    return name, query, writes


def _check_written(format: Format, values: Mapping[str, Any]) -> None:
    """Raises InputError for an option of COPY ... TO that says anything but what is written."""
    if wrong := [name for name, value in values.items() if format.kind != "csv" or value not in _AS_WRITTEN[name]]:
        raise InputError(
            f"COPY ... TO {format.kind}: {wrong[0]}={values[wrong[0]]} can't be chosen; CSV has names in its first "
            "line, and commas"
        )


def _group(reader: SqlReader) -> str:
    first = reader.peek()
    reader.group()
    return reader.since(first)


def _option(reader: SqlReader) -> tuple[str, str]:
    """An option and its value as SQL: a word without quotes is text, and no value is TRUE."""
    name = reader.name().lower()
    token = reader.peek()
    if token is None or token.text == ",":
        return name, "TRUE"
    if token.kind == "word" and token.upper not in ("TRUE", "FALSE", "NULL"):
        return name, f"'{reader.next().text}'"
    return name, reader.until(",")


def _options_of(path: Any, files: Mapping[str, Mapping[str, str] | None]) -> Mapping[str, str] | None:
    """The options of a path that is allowed, or is in an allowed directory. Raises InputError for any other."""
    if not isinstance(path, str) or not path:
        raise InputError(f"COPY takes the path of a file as text, not {short_repr(path)}")
    allowed = [each for each in files if _is_in(path, each)]
    if not allowed:
        raise InputError(f"COPY: access to {path!r} is not allowed: allow it with db.sql(..., files=[...])")
    return files[max(allowed, key=len)]


def _is_in(path: str, allowed: str) -> bool:
    if "://" in path:
        is_below = "://" in allowed and ".." not in path.split("/") and path.startswith(allowed.rstrip("/") + "/")
        return is_below or allowed in (path, ANY_URL)
    target, directory = os.path.realpath(path), os.path.realpath(allowed)
    return "://" not in allowed and os.path.commonpath([target, directory]) == directory


def _read(
    name: str, open: Callable[[], BinaryIO], kind: FileKind | None, options: dict[str, Any], entry: TableEntry
) -> pa.RecordBatchReader:
    """The rows of a file, in the dialect that the table's settings say, or else that fits the file."""
    given = parse_attributes({_SYNONYMS.get(name, name): value for name, value in options.items()})
    own = Dialect.of(entry.properties)
    if own == Dialect():
        found = infer_file(open, name, kind=kind, known=given)
        dialect, format = found.dialect, found.file_format
    else:
        dialect, format = replace(own, **given), detect(name, kind)
    return read(SourceFile(open, format, name, ReadOptions.of_table(entry, dialect)), entry.schema.arrow)
