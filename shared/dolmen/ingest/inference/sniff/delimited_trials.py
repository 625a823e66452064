"""Tries delimiters, quotes and escapes on the beginning of a text, and weighs how well each fits."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dolmen.base.records import replace
from dolmen.base.units import count_text
from dolmen.format.schema import number_names
from dolmen.ingest.formats.delimited.csv_records import Signs
from dolmen.ingest.formats.text_blocks import count_lines
from dolmen.ingest.inference.header_evidence import TYPED, ColumnKind, find_header, kind_of_cell, quality_of_cell
from dolmen.ingest.inference.sniff.delimited_reading import DelimitedReading, line_offset

PRIORS = {
    **dict.fromkeys(",\t;|", 1.0),
    **{chr(code): 1.0 for code in range(1, 32) if chr(code) not in "\t\n\v\f\r\x1b"},
    **dict.fromkeys("^~", 0.95),
    ":": 0.75,
    " ": 0.7,
    **dict.fromkeys("!#&*%$@", 0.55),
}
"""How likely each sign is a delimiter, before the text is seen."""
PLAIN = ",\t;|"
CLOSE = 0.85  # a trial with this share of the best one's score is close to it
_COMMENTS = ("##", "#", "//", "%", "--", "!", ";")
_BLANK_LINE = re.compile(rb"(?:(?<=\n)|(?<=\r)(?!\n))[ \t]*(?:\r\n|\n|\r)")
_MOST_PREAMBLE = 100
# how many records, columns and cells of a trial are weighed
_ROWS, _COLUMNS = 200, 60
_CELLS, _FEWEST_ROWS = 6000, 20
_MOST_LINES = 2000  # the most lines in which delimiters are counted
_QUOTED = re.compile(rb'"[^"]*"')
_FIELDS = re.compile(rb"^#Fields:[ \t]*(.*)", re.MULTILINE)
_SPACED = re.compile(r' +".*" *|".*" +', re.DOTALL)
FOOTER_LINES = 3
_ONE_COLUMN_FACTOR, _ONE_TYPED_COLUMN_FACTOR = 0.62, 0.72
"""Factors of the score of a single column, and of one whose values are all numbers, times or Booleans."""
_LEAST_OTHER_SHARE = 0.6
"""If the first line has names, at least this share of the records must have another width to overrule it."""
_LEAST_HEADER_SHARE = 0.3
"""If the first line has names, its width is the table's if at least this share of the records has it."""
_NAME = re.compile(r"[^\W\d](?:[\w .()/%#-]{0,60}[\w)%])?")
_EMPTY_COLUMN_QUALITY = 0.6
_SURE_VALUES = 2  # a column with this many values of one kind has no values of another kind
_ANY = ColumnKind("text", 0.0, 0)


@dataclass(slots=True)
class DialectTrial:
    """The head, as split into records by some signs. Its table may follow a preamble of other records."""

    signs: Signs
    skip_lines: int  # the lines to skip, as in ``Dialect``; without a preamble those that the user set
    first_line: int  # the number of the table's first line, from 1
    first_record: int  # the index of the table's first record in ``reading``
    preamble_records: int  # the number of records in the preamble, including broken ones
    width: int  # the number of fields that most records of the table have
    reading: DelimitedReading
    consistency: float  # about the share of the table's records that have this width
    # short, long: the number of records that have fewer fields, and more
    short: int
    long: int
    broken: int  # the number of records whose quotes do not match
    notes: list[str]
    # cells of a sample of the good records, each with whether it was quoted. This and all below are set by ``_weigh``.
    table: list[tuple[list[str], list[bool]]] = field(default_factory=list)
    kinds: dict[int, ColumnKind] = field(default_factory=dict)  # the kinds of values by column index
    score: float = 0.0
    is_typed: bool = False  # whether there is one column, and its values are all numbers, times or Booleans
    header_is_short: bool = False  # whether the preamble is a header that lacks one name
    ends_short: bool = False  # whether all short records are at the end, so that they may be a footer
    short_records_may_be_filled: bool = True

    @property
    def fits(self) -> bool:
        if self.delimiter in PLAIN:
            return self.consistency >= 0.6
        return self.consistency >= 0.9 and len(self.reading.starts) > 1  # `12:30` alone is a value

    @property
    def bound(self) -> float:
        """The most that its score can be."""
        breadth = 1 - 0.5 / self.width if self.width > 1 else _ONE_COLUMN_FACTOR
        preamble = 0.75 if self.preamble_records else 1.0
        broken = 0.955 if self.broken else 1.0
        return self.consistency**3 * breadth * preamble * broken * PRIORS.get(self.delimiter, 0.5)

    @property
    def names_columns(self) -> bool:
        """Whether the first line names several columns, and enough records have as many fields."""
        if (
            self.width == 1
            or self.preamble_records
            or self.delimiter not in PLAIN
            or self.consistency < _LEAST_HEADER_SHARE
        ):
            return False
        return _are_names(self.reading.cells(self.first_record)[0])

    @property
    def has_proven_header(self) -> bool:
        return self.width > 2 and _is_header(self.reading, self.width, self.first_record)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names in the comment ``#Fields:`` of W3C's extended log format, as IIS and CloudFront write it; or none.

        Source: https://www.w3.org/TR/WD-logfile.html
        """
        is_log = self.signs.comment == "#" and self.delimiter in "\t "
        comment = _FIELDS.search(self.reading.data) if is_log else None
        names = comment[1].decode(errors="replace").split() if comment else []
        return tuple(names) if len(names) == self.width and number_names(names) == names else ()

    @property
    def delimiter(self) -> str:
        return self.signs.delimiter

    def fits_short(self, reading: DelimitedReading, short: Sequence[int]) -> bool:
        """Whether the cells that short records do have are of the kinds of their columns."""
        if _has_literal_quotes(self.signs, reading.data):
            return False  # a quote may have cut the record
        for index in short[:_ROWS]:
            cells = reading.cells(index)[0]
            others = [sign for sign in PLAIN if sign != self.delimiter]
            if len(cells) == 1 and any(cells[0].count(sign) == self.width - 1 for sign in others):
                return False  # it has another delimiter
            for number, cell in enumerate(cells):
                kind = self.kinds.get(number, _ANY)
                is_sure = kind.kind in TYPED and kind.values >= _SURE_VALUES and kind.share > 0.99
                if is_sure and kind_of_cell(cell) not in (kind.kind, "null"):
                    return False
        return True

    @property
    def cells(self) -> list[list[str]]:
        return [cells for cells, _ in self.table]

    @property
    def short_cells(self) -> list[list[str]]:
        """The cells of the first records that lack fields, filled up with empty ones."""
        short = [at for at, width in enumerate(self.reading.widths) if at > self.first_record and width < self.width]
        rows = [self.reading.cells(at)[0] for at in short[:_FEWEST_ROWS]]
        return [[*row, *[""] * (self.width - len(row))] for row in rows]


def find_trials(head: bytes, is_all: bool, fixed: Mapping[str, Any]) -> list[DialectTrial]:
    """The trials whose score may be the best or close to it, the best first."""
    trials = list(_trials(head, is_all, fixed))
    if any(t.consistency == 1 and not t.preamble_records and t.width > 1 and t.delimiter in PLAIN for t in trials):
        trials = [replace(t, consistency=t.consistency / 2) if t.preamble_records else t for t in trials]
    weighed = list[DialectTrial]()
    for trial in sorted(trials, key=lambda trial: trial.bound, reverse=True):
        is_far = weighed and trial.bound < CLOSE * max(each.score for each in weighed)
        if is_far and trial.width > 1 and not (trial.names_columns or trial.has_proven_header or trial.field_names):
            continue
        _weigh(trial)
        weighed.append(trial)
    return sorted(weighed, key=lambda trial: trial.score, reverse=True)


def _trials(head: bytes, is_all: bool, fixed: Mapping[str, Any]) -> Iterator[DialectTrial]:
    delimiters = [fixed["delimiter"]] if fixed.get("delimiter") else _delimiters_in(head)
    for delimiter in delimiters:
        for quote, escape in _quotings(head, delimiter, fixed):
            for trim in _trimmings(head, delimiter, quote, fixed):
                trial = _try(head, is_all, Signs(delimiter, quote, escape, None, trim), fixed)
                if trial is not None:
                    yield trial
    if not fixed.get("delimiter"):
        unused = next((sign for sign in (*PLAIN, "\x01", "\x1f", "^", "~") if sign.encode() not in head), None)
        if unused is not None:
            for quote, escape in _quotings(head, unused, fixed):
                trial = _try(head, is_all, Signs(unused, quote, escape, None, fixed.get("trim", False)), fixed)
                if trial is not None:
                    yield trial


def _delimiters_in(head: bytes) -> list[str]:
    """Signs that are in enough of the lines to separate fields."""
    unquoted = _QUOTED.sub(b'""', head)  # quoted fields may span most of the lines
    texts = [head, unquoted] if unquoted.count(b"\n") < head.count(b"\n") else [head]
    if head.startswith(b"#") and (rest := b"\n".join(line for line in head.splitlines() if line[:1] != b"#")):
        texts.append(rest)  # there may be more comments than records
    samples = [[line for line in text.splitlines() if line.strip()][:_MOST_LINES] for text in texts]
    has_quotes = b'"' in head or b"'" in head
    return [
        sign
        for sign in PRIORS
        if sign.encode() in head and any(_may_separate(sign, lines, has_quotes) for lines in samples)
    ]


def _may_separate(sign: str, lines: list[bytes], has_quotes: bool) -> bool:
    """Whether a sign is in enough of the lines."""
    counts = [line.count(sign.encode()) for line in lines]
    has = sum(count > 0 for count in counts)
    if not has:
        return False
    common = max(set(counts) - {0}, key=counts.count)
    needed = 0.2 if sign in PLAIN else 0.6
    common_share = counts.count(common) / len(counts)
    return has >= needed * len(lines) and (sign in PLAIN or common_share >= 0.5 or has_quotes)


def _quotings(head: bytes, delimiter: str, fixed: Mapping[str, Any]) -> Iterator[tuple[str | None, str | None]]:
    """Quotes and escapes that the text may be written with, the plainest first."""
    sign = delimiter.encode()
    escapes: list[str | None] = [fixed["escape"]] if "escape" in fixed else [None]
    escaped = (b'"', b"'", b"\n", b"\r", sign)
    if "escape" not in fixed and b"\\" in head and any(b"\\" + each in head for each in escaped):
        escapes.append("\\")

    def begins_field(quote: bytes) -> bool:
        spaces = b"" if delimiter == " " else b" *"  # else a run of spaces is searched from each of them
        return re.search(rb"(?:^|[\r\n]|" + re.escape(sign) + b")" + spaces + quote, head) is not None

    quotes: list[str | None] = [fixed["quote"]] if "quote" in fixed else ['"']
    if "quote" not in fixed:
        if begins_field(b"'"):
            quotes.append("'")
        if begins_field(b'"'):
            quotes.append(None)
    for quote in quotes:
        for escape in escapes:
            if delimiter not in (quote, escape):
                yield quote, escape


def _trimmings(head: bytes, delimiter: str, quote: str | None, fixed: Mapping[str, Any]) -> tuple[bool, ...]:
    """The values of ``trim`` to try: both if spaces stand between delimiters and quotes."""
    if "trim" in fixed:
        return (fixed["trim"],)
    if quote is None or delimiter == " ":
        return (False,)
    sign, mark = re.escape(delimiter), re.escape(quote)
    spaced = re.search(rf"(?:^|[\r\n]|{sign}) +{mark}|{mark} +(?:{sign}|[\r\n]|$)".encode(), head)
    return (False, True) if spaced else (False,)


def _try(head: bytes, is_all: bool, signs: Signs, fixed: Mapping[str, Any]) -> DialectTrial | None:
    """Splits the head by these signs, and finds comments and preamble. None if no record is left."""
    skipped = int(fixed.get("skip_lines", 0))
    data = head[line_offset(head, skipped) :]
    if not data:
        return None
    comment = fixed.get("comment")
    reading = DelimitedReading.of(data, replace(signs, comment=comment), is_all)
    notes = list[str]()
    if "comment" not in fixed:
        comment = _find_comment(reading)
        if comment is not None:
            before = len(reading.starts)
            reading = DelimitedReading.of(data, replace(signs, comment=comment), is_all)
            count = max(before - len(reading.starts), 1)
            notes.append(f"lines that begin with {comment!r} are comments: {count_text(count, 'line')} of the sample")
    if not reading.starts:
        return None
    width, start = _find_table(reading, skip="skip_lines" not in fixed)
    broken = sum(at > reading.starts[start] for at in reading.broken)
    line = skipped + count_lines(data[: reading.starts[start]]) + 1
    preamble = start + len(reading.broken) - broken
    if preamble and "skip_lines" not in fixed:
        skipped = line - 1
    widths = np.array(reading.widths[start:])
    good = float((widths == width).sum())
    if widths[0] == width == max(widths) and not _has_literal_quotes(signs, data):
        good += 0.7 * float((widths < width).sum())  # below a full header, records may lack fields
    total = len(widths) + broken + min(preamble, len(widths)) * 0.2
    return DialectTrial(
        signs=reading.signs,
        skip_lines=skipped,
        first_line=line,
        first_record=start,
        preamble_records=preamble,
        width=width,
        reading=reading,
        consistency=good / total if len(widths) > 1 or not preamble else 0.0,  # one record alone is no table
        short=int((widths < width).sum()),
        long=int((widths > width).sum()),
        broken=broken,
        notes=notes,
    )


def _find_comment(reading: DelimitedReading) -> str | None:
    """The sign with which comments begin; None if there are none."""
    data, signs, widths = reading.data, reading.signs, reading.widths
    begins = {data[start : start + 2] for start in reading.starts}
    for comment in _COMMENTS:
        code = comment.encode()
        if comment[0] in (signs.delimiter, signs.quote, signs.escape):
            continue
        if not any(begin.startswith(code) for begin in begins):
            continue
        marked = [index for index, start in enumerate(reading.starts) if data.startswith(code, start)]
        is_marked = set(marked)
        others = [index for index in range(len(widths)) if index not in is_marked]
        if not others:
            continue
        width = _common_width([widths[index] for index in others])
        same = [index for index in marked if widths[index] == width]
        if not same:
            return comment
        first = others[0]
        if same == [first - 1] and comment != "##":
            # '#id,name' right above the data is its header, unless a header follows.
            below = [reading.cells(index)[0] for index in others[1:20] if widths[index] == width]
            if below and widths[first] == width:
                evidence = find_header(reading.cells(first)[0], below)
                if evidence.header and evidence.certainty == "proven":
                    return comment
            continue
        is_on_top = marked[-1] < first
        if is_on_top and comment != "!" and widths[first] == width > 1 and _is_header(reading, width, first):
            return comment
        if width == 1:
            if is_on_top and comment != "!":
                return comment
        elif len(same) < len(marked):
            kinds = [kind_of_cell(reading.cells(index)[0][0]) for index in others[:50]]
            if kinds.count("text") < len(kinds) / 2 or is_on_top:
                return comment
    return None


def _common_width(widths: Sequence[int]) -> int:
    """The number of fields that most records have; more fields count more, because one field needs no delimiter."""
    counts = dict.fromkeys(widths, 0)
    for width in widths:
        counts[width] += 1
    return max(counts, key=lambda width: (counts[width] * (width - 0.7) / width, width))


def _find_table(reading: DelimitedReading, *, skip: bool) -> tuple[int, int]:
    """The number of fields of the table's records, and the index of its first one."""
    widths = reading.widths
    width = _common_width(widths)
    if widths[0] > width and max(widths) == widths[0] and len(widths) > 1:
        if skip and 1 < width == widths[1] and widths.count(widths[0]) == 1 and _is_header(reading, width, 1):
            return width, 1  # a title with delimiters of its own
        return widths[0], 0  # short records below a full header
    if not skip or width == 1:
        return width, 0
    start = next((index for index, each in enumerate(widths[:_MOST_PREAMBLE]) if each == width), None)
    if start is None:
        return width, 0
    is_rare_width = (
        start and widths.count(width) < _LEAST_OTHER_SHARE * len(widths) and 2 * widths.count(1) < len(widths)
    )
    if is_rare_width and reading.signs.delimiter in PLAIN and _are_names(reading.cells(0)[0]):
        return widths[0], 0  # the error names the records that don't fit
    start = _skip_titles(reading, width, start)
    # A title of the same width, set off by a blank line.
    blank = _BLANK_LINE.search(reading.data, reading.starts[0])
    if blank is not None:
        before = bisect_left(reading.starts, blank.start())
        same, is_near = widths[:before].count(width), start < before <= 10 and 2 * before < len(widths)
        if is_near and same < before and (same <= 1 or _is_header(reading, width, before)):
            start = before
    return width, start


def _are_names(cells: Sequence[str]) -> bool:
    """Whether the cells may be names of several columns; empty cells may be anywhere."""
    names = [cell.strip() for cell in cells if cell.strip()]
    return len(set(names)) > 1 and all(map(_NAME.fullmatch, names))


def _has_literal_quotes(signs: Signs, data: bytes) -> bool:
    """Whether quotes are read as text although they may enclose fields. In TSV they often do not."""
    return signs.quote is None and signs.delimiter != "\t" and b'"' in data


def _is_header(reading: DelimitedReading, width: int, at: int) -> bool:
    """Whether a record certainly names the columns of the records below it."""
    below = [index for index in range(at + 1, min(len(reading.widths), at + 20)) if reading.widths[index] == width]
    if reading.widths[at] != width or not below:
        return False
    evidence = find_header(reading.cells(at)[0], [reading.cells(index)[0] for index in below])
    return evidence.header and evidence.certainty == "proven"


def _skip_titles(reading: DelimitedReading, width: int, start: int) -> int:
    """The first record after titles (one field, the others blank) if it names all columns, else ``start``."""
    for index in range(start, min(len(reading.widths), start + _MOST_PREAMBLE)):
        cells = reading.cells(index)[0]
        filled = sum(bool(cell.strip()) for cell in cells)
        if reading.widths[index] == width and filled == width:
            is_header = len(set(cells)) == width and _are_names(cells)
            return index if is_header and index + 1 < len(reading.widths) else start
        if filled > 1:
            break
    return start


def _weigh(trial: DialectTrial) -> None:
    """Sets the cells and the score of a trial, and what its ragged records may be."""
    reading, width, start = trial.reading, trial.width, trial.first_record
    widths = reading.widths[start:]
    good = [start + index for index, each in enumerate(widths) if each == width]
    most = max(_FEWEST_ROWS, min(_ROWS, _CELLS // width))
    if len(good) > most:
        half = most // 2
        good = [*good[:half], *good[half : -1 : max(1, (len(good) - half) // half)], good[-1]]
    trial.table = [reading.cells(index) for index in good]
    body = trial.table[1:] if len(trial.table) > 2 else trial.table
    columns = range(width) if width <= _COLUMNS else range(0, width, width // _COLUMNS)
    qualities = list[float]()
    for number in columns:
        cells = [(cells[number], quoted[number]) for cells, quoted in body]
        found = [quality_of_cell(cell, quoted, trial.delimiter) for cell, quoted in cells if cell.strip()]
        trial.kinds[number] = kind = ColumnKind.of([cell for cell, _ in cells])
        unity = kind.share if kind.kind != "text" else max(kind.share, 0.9)
        qualities.append(sum(found) / len(found) * (0.7 + 0.3 * unity) if found else _EMPTY_COLUMN_QUALITY)
    quality = sum(qualities) / len(qualities)
    below = [kind_of_cell(cell) for cells, _ in trial.table[1:] for cell in cells]
    trial.is_typed = width == 1 and bool(below) and all(kind in (*TYPED, "null") for kind in below)
    trial.score = trial.bound * quality**3 * _quote_factor(trial)
    if trial.is_typed:
        trial.score *= _ONE_TYPED_COLUMN_FACTOR / _ONE_COLUMN_FACTOR
    if _spans_lines(trial):
        trial.score *= 0.5
    # Ragged records: at the end they may be a footer; elsewhere they may lack fields, if what they have fits.
    if trial.short and not trial.long:
        short = [start + index for index, each in enumerate(widths) if each < width]
        tail = next(index for index, each in enumerate(reversed(widths)) if each == width)
        trial.ends_short = tail == len(short) and tail <= FOOTER_LINES and len(widths) > tail + 1
        trial.short_records_may_be_filled = trial.fits_short(reading, short)
    # A first line that lacks one field: R writes such headers, and rows may end with a delimiter.
    if start == 1 and reading.widths[0] == width - 1 and width > 2:
        is_next = count_lines(reading.data[reading.ends[0] : reading.starts[1]]) == 1
        trial.header_is_short = is_next and all(kind_of_cell(name) not in TYPED for name in reading.cells(0)[0])


def _spans_lines(trial: DialectTrial) -> bool:
    """Whether a quoted cell holds lines that look like records."""
    return trial.width > 1 and any(
        quoted
        and "\n" in cell.rstrip("\n")
        and any(line.count(trial.delimiter) >= trial.width - 1 for line in cell.splitlines())
        for cells, flags in trial.table
        for cell, quoted in zip(cells, flags, strict=True)
    )


def _quote_factor(trial: DialectTrial) -> float:
    """Less than 1 if cells seem to be quoted in another way than the trial reads them, and for uncommon signs."""
    quote = trial.signs.quote
    cells = [(cell, quoted) for row, flags in trial.table for cell, quoted in zip(row, flags, strict=True)]
    has_quoted = any(quoted for _, quoted in cells)
    odd = 0.0
    for cell, quoted in cells:
        if quoted or not cell:
            continue
        if quote == '"' and _SPACED.fullmatch(cell):
            odd += 1
        if cell[0] not in "\"'" and cell[-1] not in "\"'":
            continue
        for sign, weight in (('"', 1.0), ("'", 0.0 if has_quoted else 0.7)):
            opens, closes = cell.startswith(sign), len(cell) > 1 and cell.endswith(sign)
            if opens and closes:
                is_doubled = sign == "'" and sign in cell[1:-1] and sign not in cell[1:-1].replace(2 * sign, "")
                odd += 5 if is_doubled else weight
            elif sign == '"' != quote and (opens or (closes and not cell[-2].isdigit())):
                odd += 0.6
    if trial.delimiter not in PLAIN:  # a quote after a plain delimiter speaks for that delimiter
        odd += sum(not quoted and f'{sign}"' in cell for cell, quoted in cells for sign in PLAIN)
    factor = 1 - 0.5 * min(1.0, odd / max(1, len(cells)) * 3)
    if (
        quote is None
        and trial.delimiter != "\t"
        and any(len(cell) > 1 and cell[0] == '"' == cell[-1] for cell, _ in cells)
    ):
        factor *= 0.05  # some fields are quoted as a whole, so a quote without its partner is damage
    if quote == "'" and not has_quoted:
        factor *= 0.8
    escape = trial.signs.escape
    if escape is not None:
        others = rf"{re.escape(escape)}[^{re.escape(escape + (quote or '') + trial.delimiter)}\r\n]"
        factor *= 0.85 if re.search(others.encode(), trial.reading.data) else 0.97
    elif quote is not None and any("\\" + quote in cell for cell, quoted in cells if not quoted):
        factor *= 0.9
    return factor * (0.97 if quote != '"' else 1) * (0.85 if trial.signs.trim else 1)
