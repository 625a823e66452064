"""CSV in dialects: whatever the signs, a file is read as its writer meant it, in blocks of any size."""

from __future__ import annotations

import csv
import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

from dolmen.base.records import replace
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.dialect import Dialect, Encoding
from dolmen.format.schema import number_names
from dolmen.ingest.formats.delimited import csv_reader
from dolmen.ingest.formats.formats import BadRow, SourceFile, detect, infer, read
from dolmen.ingest.formats.source_file import ReadOptions
from support.delimited_text import NeverClosed, read_delimited

BLOCKS = [1, 13, 1 << 20]
LONG = bool(os.environ.get("DOLMEN_LONG"))
Rows = list[list[Any]]


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    return random.Random(seed)


def source(data: bytes | str, dialect: Dialect, block_bytes: int = 1 << 20, **options: Any) -> SourceFile:
    data = data.encode() if isinstance(data, str) else data
    read_options = ReadOptions(dialect=dialect, **options)
    return SourceFile(lambda: io.BytesIO(data), detect("t.csv"), "t.csv", read_options, block_bytes)


def text_columns(*names: str) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


def rows_of(data: bytes | str, dialect: Dialect, *names: str, bad: list[BadRow] | None = None, **options: Any) -> Rows:
    """The rows as text, the same whatever the size of blocks."""
    found: list[Rows] = []
    for block_bytes in BLOCKS:
        collected: list[BadRow] = []
        on_bad_row = None if bad is None else collected.append
        table = read(source(data, dialect, block_bytes, **options), text_columns(*names), on_bad_row=on_bad_row)
        found.append([list(row.values()) for row in table.read_all().to_pylist()])
        if bad is not None:
            assert block_bytes == BLOCKS[0] or collected == bad
            bad[:] = collected
    assert found[1:] == found[:-1]
    return found[0]


def places(bad: list[BadRow]) -> list[tuple[int | None, int | None, bytes | None]]:
    return [(row.row, row.line, row.text) for row in bad]


@pytest.mark.slow
def test_any_text_is_read_by_the_grammar_of_its_dialect(chance: random.Random) -> None:
    for _ in range(3000 if LONG else 60):
        quote, comment = chance.choice(['"', '"', "'", None]), chance.choice([None, "#", "//"])
        delimiter = chance.choice(",;|")
        dialect = Dialect(
            delimiter=delimiter,
            quote=quote,
            escape=chance.choice([None, "\\", "\\", quote]),
            comment=comment,
            header=False,
            ragged=chance.choice(["reject", "fill"]),
            nulls=chance.choice([("",), ("", "a"), ("\\a",), ("", "\\a", "a"), ()]),
            trim=chance.random() < 0.4,
        )
        sign, quote, width = comment or "#", quote or '"', chance.choice([1, 2, 3])
        pieces = [quote, "\\", delimiter, "\n", "\n", "\r\n", "\r", "a", "b", "ß", "\0", sign[0], f"\n{sign}", "'"]
        pieces += [delimiter + quote, quote + delimiter, "\ufeff"]
        if dialect.trim or chance.random() < 0.2:
            pieces += [" ", f"{delimiter} {quote}", f"{quote}  {delimiter}", f"\n {quote}", f"\n  {sign}", "\\ "]
        text = "".join(chance.choices(pieces, k=chance.randint(0, 25))).lstrip("\ufeff")
        names = [f"c{number}" for number in range(width)]
        bad: list[BadRow] = []
        try:
            rows, lines = read_delimited(text, dialect, delimiter, width)
        except NeverClosed:
            with pytest.raises(RowError, match="never closed"):
                rows_of(text, dialect, *names, bad=bad)
            continue
        assert rows_of(text, dialect, *names, bad=bad) == rows, (text, dialect)
        assert [(row.row, row.line) for row in bad] == lines, (text, dialect)
        for row in bad:  # alone, it is as bad
            again: list[BadRow] = []
            assert row.text is not None
            if not text.endswith("\\"):
                assert rows_of(b"\xef\xbb\xbf" + row.text + b"\n", dialect, *names, bad=again) == []
                assert [each.text for each in again] == [row.text], (text, dialect)


ENCODINGS: dict[Encoding, str] = {
    "utf-8": "utf-8",
    "utf-16": "utf-16",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
    "utf-32": "utf-32",
    "utf-32le": "utf-32-le",
    "utf-32be": "utf-32-be",
    "windows-1252": "cp1252",
    "latin-1": "latin-1",
}


def random_rows(chance: random.Random, pieces: str, *, width: int, null: bool = True) -> Rows:
    """Rows of text, the first column being a number; no text is empty."""
    rows = []
    for number in range(chance.randint(0, 12)):
        cells: list[Any] = ["".join(chance.choices(pieces, k=chance.randint(1, 7))) for _ in range(width - 1)]
        if null:
            cells = [None if chance.random() < 0.2 else cell for cell in cells]
        rows.append([str(number), *cells])
    return rows


def check(text: str, rows: Rows, names: list[str], dialect: Dialect, chance: random.Random) -> None:
    """The text, in a random encoding, is read as these rows."""
    encoding = chance.choice(list(ENCODINGS))
    data = text.encode(ENCODINGS[encoding])
    if encoding.endswith(("le", "be")) or encoding == "utf-8":
        data = chance.choice(["", "\ufeff"]).encode(ENCODINGS[encoding]) + data
    dialect = replace(dialect, encoding=encoding)
    assert rows_of(data, dialect, *names) == rows, (data, dialect)


@pytest.mark.slow
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, csv.QUOTE_NONE])
@pytest.mark.parametrize("doubled", [True, False])
def test_what_pythons_csv_writes_is_read_as_it_was(
    quoting: Literal[0, 1, 2, 3], doubled: bool, chance: random.Random
) -> None:
    for _ in range(300 if LONG else 12):
        delimiter, quote, end = chance.choice(",;\t|:"), chance.choice("\"'"), chance.choice(["\n", "\r\n", "\r"])
        escape = chance.choice("\\!") if not doubled or quoting == csv.QUOTE_NONE else chance.choice([None, "\\"])
        comment, skipped = chance.choice([None, "#", "//"]), chance.choice([0, 0, 1, 3])
        ragged = quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE) and chance.random() < 0.5
        width, sink = chance.randint(2, 4), io.StringIO()
        names = [f"c{number}" for number in range(width)]
        pieces = f"aé1 {delimiter}{quote}\\!#/{end[-1]}"
        rows = random_rows(chance, pieces, width=width, null=quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE))
        sink.write(f'what"ever, {quote}{delimiter}{end}' * skipped)
        writer = csv.writer(
            sink,
            delimiter=delimiter,
            quotechar=quote,
            escapechar=escape,
            doublequote=doubled,
            quoting=quoting,
            lineterminator=end,
        )
        for row in [names, *rows]:
            if comment and chance.random() < 0.3:
                sink.write(f"{comment} it{quote}s{delimiter} a note\\{end}")
            count = width
            while ragged and count > 1 and row[count - 1] is None:
                count -= 1
            writer.writerow(row[:count])
        dialect = Dialect(
            delimiter=delimiter,
            quote=None if quoting == csv.QUOTE_NONE else quote,
            escape=escape,
            comment=comment,
            skip_lines=skipped,
            ragged="fill" if ragged else "reject",
        )
        check(sink.getvalue(), rows, names, dialect, chance)


@pytest.mark.slow
def test_what_polars_duckdb_and_pyarrow_write_is_read_as_it_was(chance: random.Random, tmp_path: Path) -> None:
    names = ["a", "b", "c"]

    def polars_text(rows: Rows) -> Iterator[tuple[str, Dialect]]:
        frame, quote, delimiter = pl.DataFrame(rows, names, orient="row"), chance.choice("\"'"), chance.choice(",;\t")
        for style, null in (("necessary", ""), ("necessary", "NA"), ("always", "NA")):
            text = frame.write_csv(
                separator=delimiter,
                quote_char=quote,
                quote_style=style,
                null_value=null,
                line_terminator=chance.choice(["\n", "\r\n"]),
            )
            if style == "necessary" or not any(None in row for row in rows):  # it quotes NULLs, too
                yield text, Dialect(delimiter=delimiter, quote=quote, nulls=(null,))

    def duckdb_text(rows: Rows) -> Iterator[tuple[str, Dialect]]:
        table, path = pa.table([list(column) for column in zip(*rows, strict=True)], names), tmp_path / "t.csv"
        con = duckdb.connect()
        for options, dialect in (
            ("delim '|', quote '''', escape ''''", Dialect(delimiter="|", quote="'", escape="'")),
            (
                "delim ';', force_quote *, escape '\\', nullstr 'x!y'",
                Dialect(delimiter=";", escape="\\", nulls=("x!y",)),
            ),
            ("nullstr '\\N'", Dialect(nulls=("\\N",))),
        ):
            con.from_arrow(table).create_view("t", replace=True)
            con.execute(f"COPY t TO '{path}' (FORMAT csv, HEADER, {options})")
            yield path.read_bytes().decode(), dialect

    def arrow_text(rows: Rows) -> Iterator[tuple[str, Dialect]]:
        table, sink = pa.table([list(column) for column in zip(*rows, strict=True)], names), io.BytesIO()
        arrow_csv.write_csv(table, sink, arrow_csv.WriteOptions(delimiter=";", eol="\r\n"))
        yield sink.getvalue().decode(), Dialect(delimiter=";")

    for _ in range(300 if LONG else 6):
        rows = random_rows(chance, "aé,;|\t\"'\\#\n", width=3)
        for texts in (polars_text, duckdb_text, arrow_text):
            for text, dialect in texts(rows) if rows else ():
                check(text, rows, names, dialect, chance)


def test_without_quotes_every_character_is_literal() -> None:
    text = 'a\tb\n"x\ty"\n\\N\t""\n"\t\n'
    dialect = Dialect(delimiter="\t", quote=None, nulls=("\\N",))
    assert rows_of(text, dialect, "a", "b") == [['"x', 'y"'], [None, '""'], ['"', ""]]


def test_a_text_that_is_null_is_told_from_the_same_text_escaped() -> None:
    dialect = Dialect(escape="\\", nulls=("", "\\N", "NA"))
    text = 'a,b,c\n\\N,\\\\N,"\\\\N"\nNA,\\NA,"NA"\n"a\\"b",x\\"y\\,z,\\\n\n'
    rows = [[None, "\\N", "\\N"], [None, "NA", "NA"], ['a"b', 'x"y,z', "\n"]]
    assert rows_of(text, dialect, "a", "b", "c") == rows
    unquoted = replace(dialect, quote=None)
    assert rows_of('a,b\n\\N,"\\\\N\n"\\,,"x\n', unquoted, "a", "b") == [[None, '"\\N'], ['",', '"x']]


def test_escapes_in_numbers_are_none_of_their_notation() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.float64())])
    dialect = Dialect(escape="\\")
    assert read(source("a,b\n\\1,2\\.5\n", dialect), schema).read_all().to_pylist() == [{"a": 1, "b": 2.5}]
    with pytest.raises(RowError, match="column 'a'"):
        read(source("a,b\n0\\x1F,1\n", dialect), schema).read_all()


def test_an_escape_that_ends_the_file_makes_a_bad_row() -> None:
    bad: list[BadRow] = []
    assert rows_of("a,b\n1,2\n3,4\\", Dialect(escape="\\"), "a", "b", bad=bad) == [["1", "2"]]
    assert places(bad) == [(2, 3, b"3,4\\")]
    with pytest.raises(RowError, match=r"line 3.*escape"):
        rows_of("a,b\n1,2\n3,4\\", Dialect(escape="\\"), "a", "b")


def test_comments_are_lines_outside_quotes() -> None:
    text = '#"\n# x,y\na,b\n1,"# no\n# comment"\n#\n2,# no\n #3,x\n# it\'s\n4\n#"""'
    bad: list[BadRow] = []
    rows = rows_of(text, Dialect(comment="#"), "a", "b", bad=bad)
    assert rows == [["1", "# no\n# comment"], ["2", "# no"], [" #3", "x"]]
    assert places(bad) == [(4, 10, b"4")]
    assert rows_of("a\n#\n\n1\n#", Dialect(comment="#"), "a") == [[None], ["1"]]
    assert rows_of("a\r1\r\r#\n\n2\r#\r\n\n", Dialect(comment="#"), "a") == [["1"], *[[None]] * 2, ["2"], [None]]
    assert rows_of("a,b\n# \xe9\n1,2\n".encode("latin-1"), Dialect(comment="#"), "a", "b") == [["1", "2"]]


def test_lines_before_the_header_are_skipped_whatever_is_in_them() -> None:
    text = "\ufeffReport of \"May\r\n\r\n'a,b\n\xe9\ra,b\n1,2\n3\n"
    for name, header in (("a", True), ("x", False)):
        dialect = Dialect(skip_lines=4 + (not header), header=header)
        bad: list[BadRow] = []
        assert rows_of(text, dialect, name, "b", bad=bad) == [["1", "2"]]
        assert places(bad) == [(2, 7, b"3")]
    with pytest.raises(InputError, match="2 lines, but 3 come before"):
        rows_of("x\ny", Dialect(skip_lines=3), "a")
    with pytest.raises(InputError, match="1 line, but 2 come before"):
        rows_of("x\r", Dialect(skip_lines=2, header=False), "a")
    with pytest.raises(InputError, match="is empty"):
        rows_of("x\ny", Dialect(skip_lines=2), "a")
    assert rows_of("x\ny", Dialect(skip_lines=2, header=False), "a") == []


@pytest.mark.parametrize(
    ("names", "numbered"),
    [
        (["", "a", ""], ["column_1", "a", "column_3"]),
        (["a", "a", "A", "b"], ["a", "a_2", "A_3", "b"]),
        (["a", "a", "a_2", "a"], ["a", "a_3", "a_2", "a_4"]),
        (["column_2", "", "Column_2"], ["column_2", "column_2_2", "Column_2_3"]),
        ([" ", "x"], ["column_1", "x"]),
        ([], []),
    ],
)
def test_names_that_a_header_lacks_or_repeats_are_numbered(names: list[str], numbered: list[str]) -> None:
    assert number_names(names) == numbered
    assert number_names(numbered) == numbered


def test_numbered_names_are_those_of_the_table() -> None:
    text, dialect = "name,,NAME\nx,1,y\n", Dialect(names="number")
    assert infer(source(text, dialect)).names == ["name", "column_2", "NAME_2"]
    assert rows_of(text, dialect, "name_2", "column_2", "name") == [["y", "1", "x"]]
    assert rows_of(text, dialect, "name_2", extra="ignore") == [["y"]]
    with pytest.raises(SchemaError, match="column 2 has no name"):
        infer(source(text, Dialect()))


@pytest.mark.parametrize("nulls", [("",), ("NA",), ("NA", ""), ()])
def test_short_records_are_filled_with_nulls_and_long_ones_are_bad(nulls: tuple[str, ...]) -> None:
    text = 'a,b,c\n1\n2,"x"\r\n\n3,y,z\n4,5,6,7\n"8\n9",x'
    bad: list[BadRow] = []
    dialect = Dialect(ragged="fill", nulls=nulls)
    rows = [["1", None, None], ["2", "x", None], ["3", "y", "z"], ["8\n9", "x", None]]
    assert rows_of(text, dialect, "a", "b", "c", bad=bad) == rows
    assert places(bad) == [(4, 6, b"4,5,6,7")]
    assert rows_of(text.partition("\n")[2], replace(dialect, header=False), "a", "b", "c", bad=bad) == rows
    typed = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.bool_())])
    assert read(source("a,b,c\n1\n2,3\n", dialect), typed).read_all()["b"].to_pylist() == [None, 3]


def test_many_short_records_are_filled_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_reader, "_MAX_FILLED", 10_000)
    names = [f"c{number}" for number in range(100)]
    text = ",".join(names) + "\n" + "1\n" * 2000
    schema = pa.schema([("c0", pa.int64())])
    batches = list(read(source(text, Dialect(ragged="fill"), extra="ignore"), schema))
    assert sum(batch.num_rows for batch in batches) == 2000
    assert max(batch.num_rows for batch in batches) == 100


def test_bad_rows_keep_their_text_with_its_escapes() -> None:
    text = "a,b\r\n1,x\\,y\r\n2\\\n,x,\\\r\r\n3,'it''s' x\r\n4,'it\\'s'\r\n"
    bad: list[BadRow] = []
    assert rows_of(text, Dialect(quote="'", escape="\\"), "a", "b", bad=bad) == [["1", "x,y"], ["4", "it's"]]
    assert places(bad) == [(2, 3, b"2\\\n,x,\\\r"), (3, 6, b"3,'it''s' x")]


def test_types_are_inferred_in_every_dialect() -> None:
    text = "x\n# y\nid;;when\n1;'2,5';2025-01-31\n2\n"
    dialect = Dialect(delimiter=";", quote="'", comment="#", skip_lines=1, names="number", ragged="fill")
    schema = infer(source(text, dialect, 1))
    assert schema == pa.schema([("id", pa.int64()), ("column_2", pa.string()), ("when", pa.date32())])


def test_what_is_not_utf8_is_a_bad_row_beside_comments_and_escapes() -> None:
    data = b"a,b\n# \xff\n1,\\\xff\n2,x\n\xe9,3\n"
    bad: list[BadRow] = []
    assert rows_of(data, Dialect(comment="#", escape="\\"), "a", "b", bad=bad) == [["2", "x"]]
    assert places(bad) == [(1, 3, b"1,\\\xff"), (3, 5, b"\xe9,3")]
    assert [row.column for row in bad] == ["b", "a"]
