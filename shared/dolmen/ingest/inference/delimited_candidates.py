"""The dialects of a trial that fits, and the notes for people: what costs a row, and what was assumed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dolmen.base.units import count_text
from dolmen.format.dialect import Dialect
from dolmen.format.ingest_properties import FORMATS, FileKind
from dolmen.ingest.formats.csv_records import Records
from dolmen.ingest.inference.candidate import Candidate
from dolmen.ingest.inference.delimited_reading import DelimitedReading, line_offset
from dolmen.ingest.inference.delimited_trials import FOOTER_LINES, DialectTrial
from dolmen.ingest.inference.header_evidence import find_header
from dolmen.ingest.inference.rough_kinds import TYPED, ColumnKind, kind_of_cell

_FEWEST_ROWS = 3
_SPACED = re.compile(r" +\".*\"$", re.DOTALL)
_TOTAL = re.compile(r"\W*((grand|sub)[ -]?)?(totals?|sums?|summe|gesamt|\d+ rows?)\b", re.IGNORECASE)


def candidates_of(
    trial: DialectTrial,
    text: bytes,
    *,
    whole: bool,
    known: Mapping[str, Any],
    kind: FileKind | None,
    notes: Sequence[str],
) -> Iterator[Candidate]:
    """The dialect of a trial, with the header and ragged records that the sample shows; two if the header is assumed.

    Args:
        text: the sample. The trial was made with its beginning.
        notes: what was found before.
    """
    signs = trial.signs
    file_kind: FileKind = kind if kind in ("csv", "tsv") else "tsv" if signs.delimiter == "\t" else "csv"
    common = [*notes, *trial.notes]
    found: dict[str, Any] = {
        "delimiter": signs.delimiter,
        "quote": signs.quote,
        "escape": signs.escape,
        "comment": signs.comment,
        "skip_lines": trial.skip_lines,
    }
    if trial.width == 1 and "delimiter" not in known:
        common.append("no delimiter was found: each line is one field")
    if trial.header_is_short:
        common.append(
            f"line {trial.skip_lines} has {trial.width - 1} names for the rows' {trial.width} fields: it is skipped, "
            "and the columns are numbered; write one more name, and it is the header"
        )
    elif trial.preamble_records:
        lines = "line is" if trial.skip_lines == 1 else f"{trial.skip_lines:,} lines are"
        common.append(f"the first {lines} skipped: the table begins on line {trial.first_line}")
    if signs.escape is not None and "escape" not in known:
        common.append(f"{signs.escape!r} makes the next character literal: {signs.escape}n is the letter n")
    if _lacks_fields(trial, text, whole, common):
        found["ragged"] = "fill"
    common += _doubts(trial, whole)
    headers: list[tuple[bool, str | None]] = [(True, None)]
    headers = [(known["header"], None)] if "header" in known else _find_headers(trial)
    for header, note in headers:
        own = common if note is None else [*common, note]
        if header and trial.table and (numbered := note_numbered_names(trial.cells[0])):
            found["names"] = "number"
            own = [*own, numbered]
        dialect = Dialect(**(found | {"header": header} | dict(known)))
        if dialect.delimiter == FORMATS[file_kind].delimiter:
            dialect = replace(dialect, delimiter=None)
        found.pop("names", None)
        yield Candidate(file_kind, dialect, tuple(own))


def _find_headers(trial: DialectTrial) -> list[tuple[bool, str | None]]:
    """Whether there is a header, with a note if nothing proves it; then the contrary, too."""
    if trial.header_is_short:
        return [(False, None)]
    if not trial.table:
        return [(True, None)]
    return find_header(trial.cells[0], [*trial.cells[1:], *trial.short_cells]).choices(f"line {trial.first_line}")


def _lacks_fields(trial: DialectTrial, text: bytes, whole: bool, notes: list[str]) -> bool:
    """Whether records of the sample lack fields at their end, and the rest of them fits. Notes what they are."""
    if trial.width == 1:
        return False
    short, long, ends_short, may_fill = trial.short, trial.long, trial.ends_short, trial.short_records_may_be_filled
    if len(text) > len(trial.reading.data) + line_offset(text, trial.skip_lines):
        end = len(text) if whole else text.rfind(b"\n") + 1 or len(text)
        body = text[line_offset(text, trial.skip_lines) : end]
        records = Records.of(body, trial.signs, blank_lines_count=False)
        widths = records.fields if records.layout.problem is None else records.fields[: _count_good(records)]
        short, long = int((widths < trial.width).sum()), int((widths > trial.width).sum())
        tail = int((widths[-FOOTER_LINES:] < trial.width).sum())
        ends_short = whole and 0 < short == tail
        if short and not long and not ends_short:
            reading = DelimitedReading.of(body, trial.signs, whole)
            may_fill = trial.fits_short(reading, [at for at, width in enumerate(reading.widths) if width < trial.width])
    if ends_short and short <= FOOTER_LINES and not long:
        lines = "line has" if short == 1 else f"{short} lines have"
        notes.append(
            f"the last {lines} fewer fields than the others: a footer is no row (--on-bad-row quarantine leaves it out)"
        )
    elif short and not long and may_fill:
        records_lack = count_text(short, "record of the sample lacks", "records of the sample lack")
        notes.append(f"{records_lack} fields at the end: they are NULL")
        return True
    elif short or long:
        records_have = count_text(short + long, "record of the sample has", "records of the sample have")
        notes.append(f"{records_have} another number of fields than {trial.width}")
    return False


def _count_good(records: Records) -> int:
    """The number of records before the first broken one."""
    problem = records.layout.problem
    return len(records.ends) if problem is None else int(np.searchsorted(records.ends, problem.offset, side="right"))


def _doubts(trial: DialectTrial, whole: bool) -> Iterator[str]:
    """Notes on cells that look odd."""
    rows = trial.cells
    if trial.broken:
        yield f"{count_text(trial.broken, 'record')} of the sample cannot be parsed: the quotes do not match"
    if trial.signs.quote is not None and any(_SPACED.match(cell) for row in rows for cell in row):
        yield "fields begin with a space, then a quote: such quotes are part of the value; remove the spaces"
    yield from note_odd_rows(rows, whole)


def note_odd_rows(rows: Sequence[Sequence[str]], whole: bool) -> Iterator[str]:
    """Notes on rows of a table that may be none; ``whole``: whether the last one is the last of the file."""
    if len(rows) > _FEWEST_ROWS:
        below = [ColumnKind.of([row[number] for row in rows[2:]]) for number in range(len(rows[0]))]
        typed = [number for number, kind in enumerate(below) if kind.kind in TYPED]
        if typed and all(kind_of_cell(rows[1][number]) == kind_of_cell(rows[0][number]) == "text" for number in typed):
            yield "the record after the header seems to be a second header, such as units: it is a row"
    if whole and len(rows) >= _FEWEST_ROWS and _TOTAL.match(next((cell for cell in rows[-1] if cell.strip()), "")):
        yield "the last record looks like a total: it is a row"


def note_numbered_names(first: Sequence[str]) -> str | None:
    """A note on the names of a header that get numbers; None if none does."""
    names = [cell.strip().lower() for cell in first]
    empty, named = names.count(""), [name for name in names if name]
    notes = []
    if empty:
        notes.append(count_text(empty, "column without a name is numbered", "columns without a name are numbered"))
    if len(set(named)) < len(named):
        notes.append("names that are there twice are numbered")
    return f"the header: {', '.join(notes)}" if notes else None
