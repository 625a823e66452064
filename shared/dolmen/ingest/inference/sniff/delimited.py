"""Finds the dialects of a delimited text (CSV and its like) from its beginning.

1. A text that is plainly not such a table (HTML, Markdown, JSON, logs, aligned columns) is refused, with advice.
2. Each delimiter, quote and escape that may be meant is tried: the strict reader splits the first 64 KiB into records
   by these signs. Comments, preamble and the table's width follow from the records.
3. A trial's score is the consistency of its records times that of its cells (as in van den Burg et al., Wrangling
   messy CSV files by detecting row and type patterns, 2019, which clevercsv implements), times the delimiter's prior.
4. The best trials are checked against the whole sample. Notes say which rows are lost, and what was assumed.

No library is used: none says what it assumes, or splits records as the strict reader does.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dolmen.base.records import replace
from dolmen.base.units import KIB, count_text
from dolmen.errors import InputError
from dolmen.format.dialect import Dialect
from dolmen.format.ingest_properties import FORMATS, FileKind
from dolmen.ingest.formats.delimited.csv_records import Records
from dolmen.ingest.formats.text_blocks import count_lines
from dolmen.ingest.inference.candidate import Candidate
from dolmen.ingest.inference.header_evidence import TYPED, ColumnKind, find_header, kind_of_cell
from dolmen.ingest.inference.other_texts import refuse_aligned, refuse_logs, refuse_other_texts
from dolmen.ingest.inference.sniff.delimited_reading import DelimitedReading, line_offset
from dolmen.ingest.inference.sniff.delimited_trials import CLOSE, FOOTER_LINES, PLAIN, PRIORS, DialectTrial, find_trials

_FEWEST_ROWS = 3
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
    """The dialect of a trial, with the header and ragged records that the sample shows; two for an assumed header."""
    signs, names = trial.signs, tuple[str, ...]()
    file_kind: FileKind = kind if kind in ("csv", "tsv") else "tsv" if signs.delimiter == "\t" else "csv"
    common = [*notes, *trial.notes]
    found: dict[str, Any] = {
        "delimiter": signs.delimiter,
        "quote": signs.quote,
        "escape": signs.escape,
        "comment": signs.comment,
        "trim": signs.trim,
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
    if signs.trim and "trim" not in known:
        common.append("spaces around fields and their quotes are not part of them")
    if _lacks_fields(trial, text, whole, common):
        found["ragged"] = "fill"
    common += _doubts(trial, whole)
    headers: list[tuple[bool, str | None]] = [(True, None)]
    if "header" in known:
        headers = [(known["header"], None)]
    elif trial.field_names:
        names = trial.field_names
        headers = [(False, "a comment, #Fields, names the columns; there is no header")]
    else:
        headers = _find_headers(trial)
    for header, note in headers:
        own = common if note is None else [*common, note]
        if header and trial.table and (numbered := note_numbered_names(trial.cells[0])):
            found["names"] = "number"
            own = [*own, numbered]
        dialect = Dialect(**(found | {"header": header} | dict(known)))
        if dialect.delimiter == FORMATS[file_kind].delimiter:
            dialect = replace(dialect, delimiter=None)
        found.pop("names", None)
        yield Candidate(file_kind, dialect, tuple(own), names=names)


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
    yield from note_odd_rows(rows, whole)


def note_odd_rows(rows: Sequence[Sequence[str]], whole: bool) -> Iterator[str]:
    """Notes on records that may not be rows of the table; ``whole``: whether the last one is the last of the file."""
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
        notes.append("repeated names are numbered")
    return f"the header: {', '.join(notes)}" if notes else None


_HEAD_BYTES = 64 * KIB
_MOST_CANDIDATES = 4
_CLOSE_IF_ALL_FIT = 0.5
"""Takes the place of ``CLOSE`` for a plain delimiter with which all records have the same number of fields."""
_SEP_LINE = re.compile(rb'"?sep=([^\r\n"])"?[,;\t]*(\r\n|\n|\r)', re.IGNORECASE)
_DOUBLES = ("||", "::", "~|~", "|~|", "^|^", "~~", ";;", "^^", "##", "@@", "$$")


def sniff_delimited(sample: bytes, *, whole: bool, known: Mapping[str, Any], kind: FileKind | None) -> list[Candidate]:
    """The dialects that fit the beginning of a text, the best first, and of equal ones the plainer first.

    Args:
        sample: UTF-8, from the start of the file.
        whole: whether that is all of it.
        known: attributes of ``Dialect`` that the user set.
        kind: csv or tsv if the file's name or the user says so.

    Raises InputError for a text that is no table, or has nothing in it; the caller adds the file's name.
    """
    text = sample.removeprefix(BOM_UTF8)
    if not text.strip(b" \t\r\n\0"):
        raise InputError("it is empty: it needs at least a line to infer columns from")
    head, is_all = _head(text, whole)
    decoded = head.decode(errors="replace")
    # What need not be found: ``known``, and what an Excel "sep=" line says.
    fixed = {name: value for name, value in known.items() if name != "delimiter" or value is not None}
    if not fixed.keys() & {"delimiter", "skip_lines", "comment"}:
        refuse_other_texts(decoded)
    notes = list[str]()
    if (zero := text.find(b"\0")) >= 0:
        notes.append(f"line {count_lines(text[:zero]) + 1} has a zero byte: it is part of the value")
    if (sep := _SEP_LINE.match(head)) and "skip_lines" not in fixed:
        sign = sep[1].decode(errors="replace")
        if sign in PRIORS and fixed.get("delimiter", sign) == sign:
            fixed |= {"delimiter": sign, "skip_lines": 1}
            notes.append(f"line 1 is Excel's sep={sign}: it is skipped")
    is_free = "delimiter" not in fixed
    if is_free and (double := _doubled_delimiter(decoded)):
        raise InputError(f"{double!r} seems to separate its fields: replace it by one character, such as a tab")
    best = _best(find_trials(head, is_all, fixed), head, decoded, is_free)
    if best and (around := _lines_around_first_broken_record(best[0], text, len(head))):
        head = head[: head.rfind(b"\n", 0, _HEAD_BYTES // 2) + 1] + around  # both parts must fit
        best = _best(find_trials(head, False, fixed), head, decoded, is_free)
    if not best and "skip_lines" in known and is_all and not head[line_offset(head, known["skip_lines"]) :]:
        raise InputError(f"it has no line after the {known['skip_lines']:,} that are skipped (--skip-lines)")
    if not best:
        raise InputError("no delimiter separates its lines into fields: give one (--delimiter)")
    close = [best[0], *(trial for trial in best[1:] if _is_tie(trial, best[0]))][:_MOST_CANDIDATES]
    candidates = list[Candidate]()
    for trial in _without_same_readings(close):
        candidates += candidates_of(trial, text, whole=whole, known=known, kind=kind, notes=notes)
    return candidates


def _head(text: bytes, whole: bool) -> tuple[bytes, bool]:
    """The part to look at closely: whole lines, unless there is only one; and whether it is the whole file."""
    if len(text) <= _HEAD_BYTES:
        if whole:
            return text, True
        end = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1
        return (text[:end] if end else text), False
    end = max(text.rfind(b"\n", 0, _HEAD_BYTES), text.rfind(b"\r", 0, _HEAD_BYTES)) + 1
    if not end:
        feed, lone = text.find(b"\n", _HEAD_BYTES) + 1, text.find(b"\r", _HEAD_BYTES) + 1
        end = min(filter(None, (feed, lone)), default=len(text))
    return text[:end], whole and end == len(text)


def _lines_around_first_broken_record(trial: DialectTrial, text: bytes, head_bytes: int) -> bytes | None:
    """Lines around the first broken record of the sample, if it comes after the head; None if there is none."""
    if len(text) <= head_bytes or trial.broken:
        return None
    start = line_offset(text, trial.skip_lines)
    problem = Records.of(text[start:], trial.signs, blank_lines_count=False).layout.problem
    if problem is None or not problem.ends:
        return None
    begin = text.rfind(b"\n", head_bytes, max(head_bytes, start + problem.offset - _HEAD_BYTES // 8)) + 1 or head_bytes
    return text[begin : text.rfind(b"\n", begin, begin + _HEAD_BYTES // 2) + 1] or None


def _best(trials: list[DialectTrial], head: bytes, decoded: str, is_free: bool) -> list[DialectTrial]:
    """The trials to choose from. Raises InputError if the text looks like something that none of them reads."""
    if named_by_comment := [trial for trial in trials if trial.field_names]:
        return named_by_comment
    multi_column = [trial for trial in trials if trial.width > 1]
    one_column = [trial for trial in trials if trial.width == 1]
    if named := [trial for trial in multi_column if trial.names_columns]:
        multi_column, one_column = [*named, *(trial for trial in multi_column if trial not in named)], []
    fitting = [trial for trial in multi_column if trial.fits]
    if is_free and not (fitting and fitting[0].delimiter in PLAIN and fitting[0].consistency > 0.8):
        refuse_logs(decoded)
        refuse_aligned(decoded)
    if named and fitting and multi_column[0].score > fitting[0].score:
        return multi_column  # to raise its error is better than to return values that keep their quotes
    if fitting and one_column and one_column[0].score > fitting[0].score:
        is_table = fitting[0].has_proven_header and not one_column[0].is_typed
        return fitting if is_table else [one_column[0], *fitting]
    return fitting or one_column or multi_column


def _is_tie(trial: DialectTrial, best: DialectTrial) -> bool:
    """Whether a trial is about as likely as the best one. A single column never is, because it would fit any text."""
    is_whole = trial.consistency == 1 and not trial.preamble_records and trial.delimiter in PLAIN
    return trial.width > 1 and trial.score >= (_CLOSE_IF_ALL_FIT if is_whole else CLOSE) * best.score


def _doubled_delimiter(text: str) -> str | None:
    """A delimiter of several characters, as in ``a||b`` or ``1::2``, that is in each line equally often."""
    lines = [line for line in text.splitlines()[:100] if line.strip()]
    for double in _DOUBLES:
        counts = {line.count(double) for line in lines}
        if len(lines) > 1 and len(counts) == 1 and 0 not in counts:
            sign = double[0]
            is_pure = all(line.count(sign) == 2 * line.count(double) for line in lines)
            if len(double) == 3 or (is_pure and not lines[0].endswith(double)):
                return double
    return None


def _without_same_readings(trials: list[DialectTrial]) -> list[DialectTrial]:
    """Keeps the plainest of the trials that read the same cells."""
    kept = list[DialectTrial]()
    for trial in trials:
        for index, other in enumerate(kept):
            if trial.cells == other.cells and (trial.short, trial.long) == (other.short, other.long):
                if _plainness(trial) < _plainness(other):
                    kept[index] = trial
                break
        else:
            kept.append(trial)
    return kept


def _plainness(trial: DialectTrial) -> tuple[int, ...]:
    """A key that is smaller the plainer a trial's dialect is."""
    return (
        trial.signs.trim,
        trial.signs.comment is not None,
        trial.skip_lines,
        trial.signs.quote != '"',
        trial.signs.escape is not None,
        list(PRIORS).index(trial.delimiter) if trial.delimiter in PRIORS else 99,
    )
