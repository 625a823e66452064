"""Describes a file that could not be read by its table's properties, or by a command's options."""

from __future__ import annotations

import io
import re
from typing import Any

import pyarrow as pa
from msgspec import Struct

from dolmen.base.records import replace
from dolmen.errors import Error, InputError, LimitError, RowError, SchemaError
from dolmen.format.dialect import DIALECT_PROPERTIES, STRICT, Dialect, as_options, flag_of
from dolmen.format.ingest_properties import FORMATS
from dolmen.ingest.formats.source_file import RewindableFile, SourceFile
from dolmen.ingest.inference.candidate import Candidate, describe, format_name
from dolmen.ingest.inference.inference import ONE_FIELD
from dolmen.ingest.inference.sampled_file import SampledFile

_OF_VALUES = ("nulls", "decimal", "thousands", "booleans", "timestamp_formats")


class Hint(Struct, frozen=True):
    """A description of what a file looks like."""

    found: str  # as in ``';' separates the fields``
    options: str  # of the command line that read it so
    properties: dict[str, Any]  # of a table, likewise


def explain(source: SourceFile, error: Error) -> Hint | None:
    """Finds how a file seems to be written that could not be read; None if its options already say so.

    Reads the beginning of the file once more.
    """
    if not isinstance(error, InputError) or isinstance(error, LimitError):
        return None
    try:
        return _explain(source, error)
    except (Error, pa.ArrowException, ValueError):
        return None


def _explain(source: SourceFile, error: InputError) -> Hint | None:
    kind, own = source.format.kind, source.options.dialect
    if not FORMATS[kind].is_text and kind != "excel":
        return None
    known = {} if own.sheet is None else {"sheet": own.sheet}
    with source.open() as opened:
        reopen = RewindableFile(opened).reopen
        file = SampledFile(reopen, source.name, None, known, replace(source.options, dialect=STRICT), None)
        candidate = file.candidates()[0]
    if candidate.kind != kind and {candidate.kind, kind} != {"csv", "tsv"}:
        properties = {"ingest_format": candidate.kind, **candidate.dialect.properties()}
        options = f"--format {candidate.kind} {as_options(candidate.dialect.properties())}".rstrip()
        return Hint(format_name(candidate.kind), options, properties)
    found = candidate.dialect
    if candidate.kind != kind and found.delimiter is None:
        found = replace(found, delimiter=FORMATS[candidate.kind].delimiter)
    if FORMATS[kind].delimiter is not None and (found.delimiter or FORMATS[kind].delimiter) == source.delimiter:
        found = replace(found, delimiter=own.delimiter)
    elif found.delimiter is None:
        found = replace(found, delimiter=FORMATS[kind].delimiter)
    if FORMATS[kind].delimiter is not None:
        found = _with_values(file, replace(candidate, kind=kind, dialect=found), own, error)
    elif kind == "excel":
        found = replace(found, **{name: getattr(own, name) for name in _OF_VALUES})
    found = replace(found, names=own.names)  # the table has no column with a numbered name
    changed = [name for name in Dialect.__struct_fields__ if getattr(found, name) != getattr(own, name)]
    if not changed:
        return None
    own_words = set(describe(own))
    words = [text for text in describe(found) if text not in own_words] or ["it has the plain dialect"]
    if any(ONE_FIELD in note for note in candidate.notes):
        words = [ONE_FIELD if "separates the fields" in text else text for text in words]
    before = own.properties()
    properties = {name: value for name, value in found.properties().items() if before.get(name) != value}
    for name in before.keys() - found.properties().keys():  # it is plain in this
        properties[name] = DIALECT_PROPERTIES[name].default
    return Hint(", ".join(words), as_options(properties), properties)


def _with_values(file: SampledFile, candidate: Candidate, own: Dialect, error: InputError) -> Dialect:
    """The candidate's dialect, with what the cells of the sample prove if the error is of one of them."""
    same = replace(candidate.dialect, **{name: getattr(own, name) for name in _OF_VALUES})
    if not isinstance(error, RowError) or error.column is None:
        return same
    sample = SampledFile(lambda: io.BytesIO(file.whole_lines()), "sample", candidate.kind, {}, file.limits, None)
    proven = sample.read_whole(candidate, lambda _: None).dialect
    return replace(same, **{name: getattr(proven, name) for name in _OF_VALUES})


def with_hint(error: InputError, hint: Hint | None) -> InputError:
    """The error, with what the file looks like and the options that read it so, unless it names one itself."""
    own = re.findall(r"--[a-z-]+", str(error))
    if hint is None or any(flag_of(attribute) in own for attribute in Dialect.__struct_fields__):
        return error
    text = f"looks like {hint.found}: {hint.options}"
    if isinstance(error, RowError):
        return RowError(f"{error.reason}; {text}", file=error.file, line=error.line, row=error.row, column=error.column)
    if isinstance(error, SchemaError):
        return SchemaError(f"{error}; {text}", column=error.column)
    return InputError(f"{error}; {text}") if type(error) is InputError else error
