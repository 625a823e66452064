"""``dolmen.infer``: the whole file decides, what was assumed is said, and what is read gives back the text."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.errors import InputError, LimitError
from dolmen.format.dialect import STRICT
from dolmen.ingest.formats.formats import read
from dolmen.ingest.formats.source_file import ReadOptions, SourceFile
from dolmen.ingest.inference.inference import Inference, infer_file
from dolmen.ingest.inference.sampled_file import SAMPLE_BYTES
from dolmen.store import open_store
from dolmen.store.input import READ_AHEAD_BYTES


def file_of(data: bytes | str, name: str = "a.csv") -> tuple[Callable[[], BinaryIO], str]:
    raw = data.encode() if isinstance(data, str) else data
    return lambda: io.BytesIO(raw), name


def infer(data: bytes | str, name: str = "a.csv", **options: Any) -> Inference:
    return infer_file(*file_of(data, name), **options)


def rows_of(data: bytes | str, found: Inference) -> list[dict[str, Any]]:
    options = ReadOptions(dialect=found.dialect)
    open, _ = file_of(data)
    rows: list[dict[str, Any]] = (
        read(SourceFile(open, found.file_format, "a", options), found.schema).read_all().to_pylist()
    )
    return rows


class CountingFile(io.BytesIO):
    """Counts the bytes that are read."""

    total = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        CountingFile.total += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        CountingFile.total += count
        return count


def test_a_file_is_read_once_and_its_sample_once_more() -> None:
    data = b"id;name\n" + b"".join(b"%d;name %d\n" % (number, number) for number in range(300_000))
    CountingFile.total = 0
    found = infer_file(lambda: CountingFile(data), "a.csv")
    assert found.dialect.delimiter == ";"
    assert CountingFile.total <= len(data) + SAMPLE_BYTES + 5000


@pytest.mark.slow
def test_an_object_is_fetched_once_to_infer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory://inference")
    data = b"id;amount;kind\n" + b"".join(b"%d;%d,5;NA\n" % (number, number) for number in range(1_200_000))
    store.put("large.csv", data)
    fetched = list[int]()
    get = store.get

    def counting_get(key: str, *arguments: Any, **options: Any) -> Any:
        found = get(key, *arguments, **options)
        fetched.append(len(found.body))
        return found

    monkeypatch.setattr(store, "get", counting_get)
    assert len(data) > 2 * READ_AHEAD_BYTES
    found = infer_file(lambda: store.open_input("large.csv"), "large.csv")
    assert (found.dialect.delimiter, found.dialect.decimal) == (";", ",")
    assert sum(fetched) <= len(data) + SAMPLE_BYTES
    assert len(fetched) <= len(data) // READ_AHEAD_BYTES + 2


@pytest.mark.parametrize("quoted", [False, True])
def test_only_null_texts_in_quotes_make_another_pass(quoted: bool) -> None:
    rows = b"".join(b"%d,NA\n" % number for number in range(300_000))
    data = b"id,n\n1,2\n" + rows + (b'1,"NA"\n' if quoted else b"1,3\n")
    CountingFile.total = 0
    found = infer_file(lambda: CountingFile(data), "a.csv")
    assert found.schema.field("n").type == (pa.string() if quoted else pa.int64())
    assert (CountingFile.total > 1.9 * len(data)) is quoted


@pytest.mark.parametrize(
    ("pack", "name"), [(gzip.compress, "a.csv.gz"), (gzip.compress, "a"), (bz2.compress, "a"), (bytes, "a.csv")]
)
def test_compression_shows_by_name_or_content(pack: Callable[[bytes], bytes], name: str) -> None:
    data = pack(b"id;name\n1;Ada\n2;Bob\n")
    found = infer(data, name)
    assert found.format == "csv"
    assert rows_of(data, found) == [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]


def test_what_is_in_a_file_counts_more_than_its_name() -> None:
    table, sink = pa.table({"id": [1, 2]}), io.BytesIO()
    pq.write_table(table, sink)
    found = infer(sink.getvalue(), "a.csv")
    assert (found.format, found.properties) == ("parquet", {"ingest_format": "parquet"})
    assert infer('{"id": 1}\n{"id": 2}\n', "a.csv").properties == {"ingest_format": "jsonl"}


def test_a_plain_file_has_no_properties() -> None:
    found = infer("id,name\n1,Ada\n2,Bob\n")
    assert (found.dialect, found.properties, found.notes, found.is_plain) == (STRICT, {}, (), True)
    assert found.schema == pa.schema([("id", pa.int64()), ("name", pa.string())])
    assert [column.samples for column in found.columns] == [("1", "2"), ("Ada", "Bob")]


def test_a_comment_names_the_columns_of_a_log() -> None:
    log = b"#Version: 1.0\n#Fields: date time cs(Host) sc-status\n2024-01-01\t10:00:01\ta.example\t200\n"
    found = dolmen.infer(io.BytesIO(log), format="tsv")
    assert found.schema.names == ["date", "time", "cs(Host)", "sc-status"]
    assert [column.samples for column in found.columns[2:]] == [("a.example",), ("200",)]
    other = dolmen.infer(io.BytesIO(log.replace(b"cs(Host) ", b"")), format="tsv")
    assert other.schema.names == [f"column_{number}" for number in range(1, 5)]


def test_the_whole_file_decides_types_and_dialect() -> None:
    filling = "".join(f"{number};2024-01-01\n" for number in range(120_000))
    assert len(filling) > SAMPLE_BYTES
    found = infer(f"a;b\n{filling}1,5;2024-01-01\n")
    assert (found.dialect.decimal, found.schema.field("a").type) == (",", pa.float64())
    assert infer(f"a;b\n{filling}x;2024-01-01\n").schema.field("a").type == pa.string()


@pytest.mark.slow
def test_what_comes_after_the_sample_may_need_another_dialect() -> None:
    filling = "1,x\n" * (SAMPLE_BYTES // 4)
    late = infer(f"a,b\n{filling}2\n")
    assert (late.dialect.ragged, any("line" in note for note in late.notes)) == ("fill", True)
    with pytest.raises(InputError, match="1 field where the header has 2"):
        infer(f"a,b\n{filling}2\n", known={"ragged": "reject"})
    late = infer(f"a,b\n{filling}2,é\n".encode("latin-1"))
    assert (late.dialect.encoding, any("Windows-1252" in note for note in late.notes)) == ("windows-1252", True)
    with pytest.raises(InputError, match="not UTF-8"):
        infer(f"a,b\n{filling}2,é\n".encode("latin-1"), known={"encoding": "utf-8"})
    with pytest.raises(InputError, match="3 fields where the header has 2"):
        infer(f"a,b\n{filling}2,3,4\n")


def test_bad_rows_may_be_left_out_and_are_counted() -> None:
    bad: list[Any] = []
    found = infer("a,b\n" + "1,2\n" * 10 + "1,2,3\n", on_bad_row=bad.append)
    assert (len(bad), bad[0].line, found.schema.names) == (1, 12, ["a", "b"])
    assert "1 row cannot be read, the first on line 12" in found.losses[0]


NO_ROWS = [b"", b"\n", b"\0", b"\x1f\x8b", b"PAR1\0", b"\xff\xfe", b"\x89PNG\r\n\x1a\n", b"[", b"{"]


@pytest.mark.parametrize("data", NO_ROWS)
@pytest.mark.parametrize("name", ["a.csv", "a.json", "a", "a.parquet", "a.csv.gz"])
def test_what_is_no_file_of_rows_is_refused_by_name(data: bytes, name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}'"):
        infer(data, name)


def test_a_file_that_unpacks_to_too_much_is_refused() -> None:
    with pytest.raises(LimitError):
        infer(gzip.compress(b"a\n" + b"1\n" * 100_000), "a.csv.gz", limits=ReadOptions(max_bytes=10_000))


def test_given_values_are_checked() -> None:
    for given in (
        {"delimiter": ";;"},
        {"names": "x"},
        {"nothing": 1},
        {"format": "word"},
        {"quote": ",", "delimiter": ","},
    ):
        with pytest.raises(InputError):
            dolmen.infer(io.BytesIO(b"a\n1\n"), **given)
    for source in (1, "ftp://host/a.csv", Path(__file__).parent):
        with pytest.raises(InputError):
            dolmen.infer(source)  # type: ignore[arg-type]


def test_more_skipped_lines_than_there_are_is_said() -> None:
    with pytest.raises(InputError, match="no line after the 99 that are skipped"):
        infer("a,b\n1,2\n", known={"skip_lines": 99})


def test_an_open_file_stays_open_and_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"rubbish\na|b\n1|2\n")
    with (tmp_path / "a.csv").open("rb") as file:
        file.readline()
        found = dolmen.infer(file)
        assert (found.name, found.schema.names, file.closed) == ("a.csv", ["a", "b"], False)
    assert dolmen.infer(str(tmp_path / "a.csv"), skip_lines=1).schema.names == ["a", "b"]


@pytest.mark.slow
def test_random_files_of_csv_give_back_their_text() -> None:
    chance = random.Random(int(os.environ["DOLMEN_TEST_SEED"]))
    for _ in range(60):
        width, count = chance.randint(2, 5), chance.randint(3, 30)
        words = ["Ada", "x y", 'say "hi"', "a;b", "a,b", "tab\there", "1 200", "ü", "007", "2024-01-01"]
        cells = [[chance.choice([*words, str(chance.randint(0, 99))]) for _ in range(width)] for _ in range(count)]
        delimiter = chance.choice(",;|\t")
        sink = io.StringIO()
        writer = csv.writer(sink, delimiter=delimiter, quoting=chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        names = [f"name_{letter}" for letter in "abcde"[:width]]
        writer.writerows([names, *cells])
        data = sink.getvalue().encode(chance.choice(["utf-8", "utf-8-sig", "utf-16"]))
        found = infer(data)
        assert found.schema.names == names, (found, data)
        text = (
            found.schema
            if all(map(pa.types.is_string, found.schema.types))
            else pa.schema([(name, pa.string()) for name in names])
        )
        options = ReadOptions(dialect=found.dialect)
        source = SourceFile(file_of(data)[0], found.file_format, "a", options)
        assert [list(row.values()) for row in read(source, text).read_all().to_pylist()] == cells, (found, data)
