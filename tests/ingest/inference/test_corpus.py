"""Small files of many dialects, contents and kinds of damage: each is read as its writer meant it, or is refused.

The writer here is a few lines of its own, not a library's: it knows what each cell means. A whole file must give back
the header, the types and the text of each cell. A damaged one is refused, or the result says what was assumed.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dolmen
from dolmen.errors import InputError
from dolmen.ingest.formats.formats import read
from dolmen.ingest.formats.source_file import Format, ReadOptions, SourceFile
from dolmen.ingest.inference.inference import Inference

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or 20_261_129
DELIMITERS = [",", ";", "\t", "|", ":", " ", "^", "\x01"]
QUOTINGS = ["minimal", "all", "single", "escape"]
LINE_ENDS = ["\n", "\r\n", "\r"]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"]
FRAMES = ["plain", "no header", "title", "comments", "sep", "blank lines"]


@dataclass
class Column:
    """A column of truth: its name, the text of its cells, and what they are, as ``Inference`` should find them."""

    name: str
    cells: list[str]
    kind: str = "string"


def _column(rng: random.Random, kind: str, rows: int, number: int) -> Column:
    """A column of one kind; its values leave no doubt about the kind."""
    days = [date(rng.randrange(1970, 2060), rng.randrange(1, 13), rng.randrange(13, 29)) for _ in range(rows)]
    clock = [time(rng.randrange(24), rng.randrange(60), rng.randrange(60)) for _ in range(rows)]
    integers = [rng.randrange(-99_999, 99_999) for _ in range(rows)]
    words = ["Ann", "Bob Marley", "x y", "Über", "naïve", "café", "Ærø"]
    makers: dict[str, tuple[str, Any]] = {
        "id": ("int64", lambda at: str(at + 1)),
        "integer": ("int64", lambda at: str(integers[at])),
        "amount": ("double", lambda at: f"{integers[at] / 100:.2f}"),
        "code": ("string", lambda at: f"0{rng.randrange(10**6):06}"),
        "digits": ("string", lambda at: "9" * 39 + str(rng.randrange(10, 99))),
        "plus": ("string", lambda at: f"+49{rng.randrange(10**6):06}"),
        "day": ("date32[day]", lambda at: days[at].isoformat()),
        "german day": ("date32[day]", lambda at: days[at].strftime("%d.%m.%Y")),
        "american day": ("date32[day]", lambda at: days[at].strftime("%m/%d/%Y")),
        "month name": ("date32[day]", lambda at: days[at].strftime("%d %b %Y")),
        "moment": ("timestamp[us]", lambda at: f"{days[at].isoformat()} {clock[at].isoformat()}"),
        "boolean": ("bool", lambda at: ("true", "false")[at % 2]),
        "yes": ("bool", lambda at: ("yes", "no")[at % 2]),
        "word": ("string", lambda at: words[(at * 3 + number) % len(words)]),
        "nulls": ("int64", lambda at: "NA" if at % 3 == 1 else str(integers[at])),
        "empty": ("string", lambda at: "" if at % 2 else f"t{at}"),
        "scripts": ("string", lambda at: ["Привет", "東京", "שלום", "Ωmega", "né"][at % 5]),
        "signs": ("string", lambda at: ["a, b", "c; d", 'say "hi"', "it's", "e|f", "tab\there", "x:y"][at % 7]),
        "lines": ("string", lambda at: ["two\nlines", "one", "with, comma\nand line"][at % 3]),
    }
    found, make = makers[kind]
    return Column(f"{kind} {number}".replace(" ", "_"), [make(at) for at in range(rows)], found)


@dataclass
class Sheet:
    """A file and its truth."""

    name: str
    data: bytes
    columns: list[Column]
    header: bool = True
    delimiter: str = ","
    notes: set[str] = field(default_factory=set)


def _write_cell(cell: str, delimiter: str, quoting: str) -> str:
    quote = "'" if quoting == "single" else '"'
    special = [delimiter, quote, "\n", "\r", *("\\" * (quoting == "escape"))]
    if quoting != "all" and not any(sign in cell for sign in special) and cell == cell.strip():
        return cell
    inner = (
        cell.replace("\\", "\\\\").replace(quote, "\\" + quote)
        if quoting == "escape"
        else cell.replace(quote, 2 * quote)
    )
    return f"{quote}{inner}{quote}"


def write_sheet(
    rng: random.Random,
    kinds: Sequence[str],
    *,
    delimiter: str = ",",
    quoting: str = "minimal",
    line_end: str = "\n",
    encoding: str = "utf-8",
    frame: str = "plain",
    rows: int = 12,
) -> Sheet:
    """A file of columns of these kinds, the first of which are numbers, so that the header is proven."""
    columns = [_column(rng, kind, rows, number) for number, kind in enumerate(["id", "integer", *kinds])]
    for column in columns:
        if "NA" in column.cells and quoting == "all":
            column.kind = "string"  # in quotes it is text
    table = [[each.name for each in columns]] if frame != "no header" else []
    table += [list(row) for row in zip(*(each.cells for each in columns), strict=True)]
    lines = [delimiter.join(_write_cell(cell, delimiter, quoting) for cell in row) for row in table]
    above = {
        "title": ["Report of the whole year"],
        "comments": ["# made by hand", "# on a Monday"],
        "sep": [f"sep={delimiter}"],
        "blank lines": ["", ""],
    }.get(frame, [])
    text = "".join(line + line_end for line in [*above, *lines])
    return Sheet(
        f"{frame}, {delimiter!r}, {quoting}, {line_end!r}, {encoding}, {', '.join(kinds)}",
        text.encode(encoding),
        columns,
        header=frame != "no header",
        delimiter=delimiter,
    )


def infer(data: bytes, **given: Any) -> tuple[Inference, pa.Table]:
    """A file as inference reads it, and its rows as the strict reader then does."""
    found = dolmen.infer(io.BytesIO(data), format="csv", **given)
    options = ReadOptions(dialect=found.dialect)
    source = SourceFile(lambda: io.BytesIO(data), Format(found.format), "a.csv", options)
    return found, read(source, found.schema).read_all()


def text_of(value: Any, cell: str, found: Inference) -> str | None:
    """A value in the notation of its cell, as the dialect describes it; None if it does not give the text back."""
    if value is None:
        return cell if cell.strip() in ("", *found.dialect.nulls) else None
    if isinstance(value, str):
        return value.replace("\r\n", "\n").replace("\r", "\n")
    stripped = cell.strip()
    if isinstance(value, bool):
        pairs = [("true", "false"), ("1", "0"), *found.dialect.booleans]
        words = [pair[0 if value else 1].lower() for pair in pairs]
        return cell if stripped.lower() in words else None
    if isinstance(value, datetime | date | time):
        forms = [value.isoformat(), str(value)]
        if not isinstance(value, time):
            forms += [value.strftime(pattern) for pattern in found.dialect.timestamp_formats]
        return cell if stripped in forms else None
    plain = stripped
    if found.dialect.thousands:
        plain = plain.replace(found.dialect.thousands, "")
    plain = plain.replace(found.dialect.decimal, ".")
    if isinstance(value, int):
        return cell if plain == str(value) else None
    digits = re.sub(r"\.?0+$", "", plain) if "." in plain else plain
    shown = re.sub(r"\.0$", "", repr(value))
    return cell if digits in (shown, shown.replace("0.", ".", 1)) else None


def assert_is_the_truth(sheet: Sheet, found: Inference, rows: pa.Table) -> None:
    case = f"{sheet.name}\n{found}\n{sheet.data[:1500]!r}"
    assert found.dialect.header == sheet.header, case
    if sheet.header:
        assert found.schema.names == [each.name for each in sheet.columns], case
    assert rows.num_columns == len(sheet.columns), case
    for column, own, values in zip(sheet.columns, found.schema, rows.columns, strict=True):
        assert str(own.type) == column.kind, f"{column.name}: {case}"
        assert len(values) == len(column.cells), case
        for value, cell in zip(values.to_pylist(), column.cells, strict=True):
            assert text_of(value, cell, found) == cell, f"{column.name}: {value!r} of {cell!r}\n{case}"


TEXTS = ["code", "digits", "plus", "word", "empty", "signs", "lines"]
OTHERS = ["amount", "day", "german day", "american day", "month name", "moment", "boolean", "yes", "nulls"]


def whole_sheets() -> Iterator[Sheet]:
    """All pairs of the properties of a dialect, each with changing contents."""
    rng = random.Random(SEED)
    contents = itertools.cycle([[text, other] for text in TEXTS for other in OTHERS])
    frames = itertools.cycle(FRAMES)
    for delimiter, quoting, line_end in itertools.product(DELIMITERS, QUOTINGS, LINE_ENDS):
        for _ in range(3):
            kinds = next(contents)
            is_split = delimiter in (" ", ":") and quoting == "single"
            if is_split or (quoting in ("single", "escape") and "signs" not in kinds):
                kinds = ["word", "day"]  # nothing tells of the quotes then
            frame = next(frames)
            yield write_sheet(rng, kinds, delimiter=delimiter, quoting=quoting, line_end=line_end, frame=frame)
    for encoding, delimiter, line_end in itertools.product(ENCODINGS, DELIMITERS[:4], LINE_ENDS):
        kinds = [next(contents)[1], "scripts"]
        yield write_sheet(rng, kinds, delimiter=delimiter, line_end=line_end, encoding=encoding)
    for encoding, delimiter in itertools.product(["cp1252", "latin-1"], DELIMITERS[:4]):
        yield write_sheet(rng, ["word", next(contents)[1]], delimiter=delimiter, encoding=encoding)
    for text, other, frame in itertools.product(TEXTS, OTHERS, FRAMES[:4]):
        delimiter = ";" if frame == "comments" else ","
        yield write_sheet(rng, [other, text, text], delimiter=delimiter, frame=frame, rows=rng.randrange(5, 20))


WHOLE = list(whole_sheets())


@pytest.mark.parametrize("part", [*range(6), *(pytest.param(part, marks=pytest.mark.slow) for part in range(6, 20))])
def test_a_whole_file_is_read_as_it_was_written(part: int) -> None:
    sheets = WHOLE[part::20]
    for sheet in sheets:
        assert_is_the_truth(sheet, *infer(sheet.data))


def test_the_corpus_is_large() -> None:
    assert len({sheet.data for sheet in WHOLE}) > 600


# Damage: the file is refused, or what was lost or assumed is said, or nothing is lost.


def _cut_lines(data: bytes, at: int) -> list[bytes]:
    lines = data.splitlines(keepends=True)
    return [*lines[:at], *lines[at + 1 :]]


def _replace_line(data: bytes, at: int, old: bytes, new: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    assert old in lines[at]
    return b"".join([*lines[:at], lines[at].replace(old, new, 1), *lines[at + 1 :]])


DAMAGE = {
    "a field too many": lambda data, sign: _replace_line(data, 5, sign, sign * 2),
    "two fields too many in several lines": lambda data, sign: _replace_line(
        _replace_line(data, 5, sign, sign * 3), 8, sign, sign * 3
    ),
    "an unclosed quote": lambda data, sign: _replace_line(data, 5, sign, sign + b'"'),
    "text after a quote": lambda data, sign: _replace_line(data, 5, sign, sign + b'"x"y' + sign),
    "a zero byte": lambda data, sign: _replace_line(data, 5, sign, sign + b"\0"),
    "zero bytes at the end": lambda data, sign: data + b"\0" * 100,
    "another delimiter in a line": lambda data, sign: b"".join(
        line.replace(sign, b"|" if sign != b"|" else b";") if at == 5 else line
        for at, line in enumerate(data.splitlines(keepends=True))
    ),
    "another delimiter in the second half": lambda data, sign: b"".join(
        line.replace(sign, b"|" if sign != b"|" else b";") if at > 6 else line
        for at, line in enumerate(data.splitlines(keepends=True))
    ),
    "a character that is cut": lambda data, sign: data.rstrip(b"\n") + b"\xc3",
    "a field too few": lambda data, sign: _replace_line(data, 5, sign, b""),
    "the last line is cut": lambda data, sign: data[: data.rindex(sign)],
    "two tables": lambda data, sign: data + b"\nother" + sign + b"names\n1" + sign + b"2\n3" + sign + b"4\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("delimiter", DELIMITERS[:4])
def test_damage_is_refused_or_said(damage: str, delimiter: str) -> None:
    rng = random.Random(SEED)
    for kinds in (["word", "day"], ["amount", "code"], ["moment", "boolean"]):
        sheet = write_sheet(rng, kinds, delimiter=delimiter)
        data = DAMAGE[damage](sheet.data, delimiter.encode())
        try:
            found, rows = infer(data)
        except InputError as error:
            text = str(error)
            assert re.search(r"line \d|row \d|looks like|is binary data", text), text
            continue
        case = f"{sheet.name}, {damage}\n{found}\n{data!r}"
        is_said = bool(found.losses) or "no quotes" in found.summary
        is_said |= any(
            re.search(r"lack|fewer|skipped|not UTF-8|stays text|another number|zero|assumed", note)
            for note in found.notes
        )
        assert is_said, case
        assert len(rows) >= 12 - 2, case


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        (" \n\n", "empty"),
        ("a,b\n\0,2\n", "bytes are 0"),
        ("id,name\n1,a,x\n", "3 fields where the header has 2"),
        ("id   name\n1    Ann\n22   Bob\n", "fixed-width"),
    ],
)
def test_a_refusal_says_what_and_where(content: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        infer(content.encode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "names", "rows"),
    [
        ("a\n", ["a"], 0),
        ("id,name\n", ["id", "name"], 0),
        ("id,name\n1,a\n", ["id", "name"], 1),
        ("state,2020\nA,x\nB,y\nC,z\n", ["state", "2020"], 3),
        ("id,id,,name\n1,2,3,a\n4,5,6,b\n", ["id", "id_2", "column_3", "name"], 2),
        ("a,b,c\n1,b,c\n2,b,c\n3,b,c\n", ["a", "b", "c"], 3),
        ("id,101,102\nx,true,false\ny,false,true\n", ["id", "101", "102"], 2),
        ("Made,by hand on Monday, in June\ncm,T\n1.5,2.5\n2.5,3.5\n3.5,4.5\n", ["cm", "T"], 3),
        ('id|text\n1|"a\nb\nc\nd\ne\nf\ng\nh"\n2|c\n', ["id", "text"], 2),
        ('text\n"two\nlines"\none\n', ["text"], 2),
        (",".join(f"c{at}" for at in range(700)) + "\n" + ",".join(["1"] * 700) + "\n", None, 1),
    ],
)
def test_small_and_odd_files_are_read_as_people_read_them(content: str, names: list[str] | None, rows: int) -> None:
    found, table = infer(content.encode())
    assert names is None or found.schema.names == names
    assert len(table) == rows


def test_one_column_is_said_to_have_one_field_in_each_line() -> None:
    found, _ = infer(b"name\nAda, the first\nBob\n")
    assert "each line is one field" in found.summary
    assert "separates" not in found.summary


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=["Cs", "Cc"]), max_size=12)
MARKED = st.one_of(
    CELLS,
    st.from_regex(r"[+-]?[0-9]{1,4}([.,][0-9]{1,3}){0,2}", fullmatch=True),
    st.from_regex(r"[0-9]{1,2}[./-][0-9]{1,2}[./-]([0-9]{4}|[0-9]{2})", fullmatch=True),
    st.sampled_from(
        ["NA", "null", "-", "nan", "inf", "yes", "no", "true", "false", "007", "1e5", "12:30", "9:30 PM", ""]
    ),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize="DOLMEN_TEST_SEED" not in os.environ)
@given(st.lists(st.lists(MARKED, min_size=3, max_size=3), min_size=1, max_size=8), st.sampled_from(",;\t|"))
def test_what_is_inferred_gives_back_the_text(cells: list[list[str]], delimiter: str) -> None:
    names = ["id", "first", "second", "third"]
    table = [names, *([str(at), *row] for at, row in enumerate(cells))]
    quoted = "".join(delimiter.join(_write_cell(cell, delimiter, "minimal") for cell in row) + "\n" for row in table)
    found, rows = infer(quoted.encode(), header=True, delimiter=delimiter, quote='"', comment=None, skip_lines=0)
    assert found.schema.names == names
    for at, column in enumerate(rows.columns):
        for row, value in zip(table[1:], column.to_pylist(), strict=True):
            cell = row[at]
            if isinstance(value, float):  # its notation may change, its value may not
                plain = cell.strip().replace(found.dialect.thousands or "\0", "").replace(found.dialect.decimal, ".")
                assert float(plain) == value or value != value, (cell, value, str(found))
            elif isinstance(value, date | time) and not isinstance(value, bool):
                continue  # test_column_evidence has these
            else:
                assert text_of(value, cell, found) == cell, (cell, value, str(found))
