"""Workbooks and zip archives that are damaged, encrypted, or made to take all memory: refused, with the reason."""

from __future__ import annotations

import io
import os
import random
import struct
import zipfile
from typing import Any

import openpyxl
import pytest
import xlsxwriter

from dolmen.errors import InputError, LimitError
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats import zip_archive
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect, detect_file, infer, read, survey
from dolmen.ingest.formats.sheets import sheet_reader, xml_stream

SHEET = "xl/worksheets/sheet1.xml"
MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def source(data: bytes, name: str = "t.xlsx", **options: Any) -> SourceFile:
    return SourceFile(lambda: io.BytesIO(data), detect(name), name, ReadOptions(**options))


def small() -> bytes:
    book = openpyxl.Workbook()
    for row in (["a", "b"], [1, "x"], [2, "y"]):
        book.active.append(row)
    sink = io.BytesIO()
    book.save(sink)
    return sink.getvalue()


def with_part(path: str, content: bytes, data: bytes | None = None) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data or small())) as old, zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, content if info.filename == path else old.read(info))
    return sink.getvalue()


def with_rows(rows: str) -> bytes:
    return with_part(SHEET, f"<worksheet {MAIN}><sheetData>{rows}</sheetData></worksheet>".encode())


def shared(rows: int, text: str) -> bytes:
    """A workbook whose rows have the same text, which is there once."""
    sink = io.BytesIO()
    book = xlsxwriter.Workbook(sink, {"in_memory": True})
    book.add_worksheet().write_column(0, 0, ["a", *[text] * rows])
    book.close()
    return sink.getvalue()


def archive(**members: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name.replace("__", "."), content)
    return sink.getvalue()


def test_the_file_that_is_altered_here_is_read() -> None:
    assert read(source(small()), None).read_all().to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a workbook"),
        (b"P", "not a workbook"),
        (b"a,b\n1,2\n", "not a workbook"),
        (COMPOUND + bytes(2000), "Excel 97-2003"),
        (COMPOUND + bytes(2000) + "EncryptedPackage".encode("utf-16-le"), "encrypted with a password"),
        (small()[:-30], "not a readable zip archive"),
        (small()[:100], "not a readable zip archive"),
        (archive(a="1"), "not a workbook"),
        (archive(content__xml="<a>"), "content.xml is damaged"),
        (with_part(SHEET, b"<worksheet"), "is damaged"),
        (with_part(SHEET, b""), "is damaged"),
        (with_part(SHEET, f"<worksheet {MAIN}><sheetData><row r='1'>".encode()), "is damaged"),
        (with_part("xl/sharedStrings.xml", b"<sst></sst>", shared(3, "x")), "names a text"),
        (with_rows('<row r="1"><c r="A1"><v>x</v></c></row>'), "A1 is not a number"),
        (with_rows('<row r="1"><c r="A1"><v>nan</v></c></row>'), "A1 is not a number"),
        (with_rows('<row r="1"><c r="A1" t="b"><v>7</v></c></row>'), "A1 is not a Boolean"),
        (with_rows('<row r="1"><c r="A1" t="z"><v>7</v></c></row>'), "A1 is of type 'z'"),
        (with_rows('<row r="2"><c r="A2"><v>1</v></c></row><row r="1"><c r="A1"><v>1</v></c></row>'), "after row 2"),
        (with_rows('<row r="9999999"><c r="A9999999"><v>1</v></c></row>'), "9,999,999"),
        (with_rows('<row r="1"><c r="ZZZ1"><v>1</v></c></row>'), "columns"),
    ],
    ids=lambda value: "data" if isinstance(value, bytes) else None,
)
def test_what_is_no_whole_workbook_is_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(source(data), None).read_all()
    assert "t.xlsx" in str(error.value)


def test_documents_types_and_entities_are_not_expanded() -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY b "bbbb">]><worksheet><sheetData><row r="1"><c r="A1" t="str"><v>&b;</v></c></row>'
    with pytest.raises(InputError, match="document type"):
        infer(source(with_part(SHEET, bomb)))


def test_cells_far_apart_take_no_memory() -> None:
    rows = '<row r="1"><c r="A1" t="str"><v>a</v></c></row><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'
    with pytest.raises(InputError, match="XFD1048576"):
        infer(source(with_rows(rows)))


def test_one_text_in_many_cells_is_cut_into_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = shared(2000, "x" * 30_000)
    batches = [batch.nbytes for batch in read(source(data), None)]
    assert len(data) < 100_000
    assert len(batches) > 2
    assert max(batches) < 40_000_000
    with pytest.raises(LimitError):
        read(source(data, max_bytes=10_000_000), None).read_all()
    monkeypatch.setattr("dolmen.ingest.formats.sheets.xlsx.MAX_ROW_TEXT", 10_000)
    monkeypatch.setattr("dolmen.ingest.formats.sheets.xlsx.TEXT_AT_ONCE", 10_000)
    with pytest.raises(LimitError, match="row 2"):
        read(source(data), None).read_all()


def test_limits_of_unpacked_bytes_texts_and_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitError, match="unpacks to more than the 1,000 bytes"):
        infer(source(small(), max_bytes=1000))
    monkeypatch.setattr(xml_stream, "MAX_TEXT", 100)
    with pytest.raises(InputError, match="a text of more than 100"):
        infer(source(with_rows(f'<row r="1"><c r="A1" t="inlineStr"><is><r><t>{"x" * 101}</t></r></is></c></row>')))
    monkeypatch.setattr(zip_archive, "MAX_DIRECTORY_BYTES", 100)
    with pytest.raises(LimitError, match="too many files"):
        infer(source(small()))


def test_repetitions_of_opendocument_are_bounded() -> None:
    cell = '<t:table-cell o:value-type="float" o:value="1" t:number-columns-repeated="{}"/>'
    page = (
        '<d xmlns:t="urn:t" xmlns:o="urn:o"><t:table t:name="x"><t:table-row t:number-rows-repeated="{}">'
        f"{cell}</t:table-row></t:table></d>"
    )
    for rows, columns in (("1", "99999"), ("9999999", "1"), ("0", "1"), ("1", "-1"), ("x", "1")):
        with pytest.raises(InputError, match="sheet 'x'"):
            infer(source(archive(content__xml=page.format(rows, columns)), "t.ods"))
    with pytest.raises(LimitError):
        survey(
            source(
                archive(content__xml=page.format(1_000_000, 100)),
                "t.ods",
                max_bytes=10**6,
                dialect=Dialect(names="number"),
            )
        )


def test_an_encrypted_document_is_refused() -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as made:
        made.writestr("content.xml", b"\0\1")
        made.writestr("META-INF/manifest.xml", '<m><file-entry><encryption-data checksum="x"/></file-entry></m>')
    with pytest.raises(InputError, match="password"):
        infer(source(sink.getvalue(), "t.ods"))


@pytest.mark.slow
def test_files_damaged_at_random_are_refused_or_read() -> None:
    outcomes = {"refused": 0, "read": 0}
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    plain, random_ = small(), random.Random(seed)
    with zipfile.ZipFile(io.BytesIO(plain)) as opened:
        content = opened.read(SHEET)
    for number in range(100):
        damaged = bytearray(content if number % 2 else plain)
        for _ in range(random_.randint(1, 3)):
            damaged[random_.randrange(len(damaged))] = random_.randrange(256)
        data = with_part(SHEET, bytes(damaged)) if number % 2 else bytes(damaged)
        try:
            read(source(data), None).read_all()
            outcomes["read"] += 1
        except InputError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 5, (seed, outcomes)


def test_a_zip_archive_of_one_file_is_that_file() -> None:
    data = archive(folder="")
    assert detect("x.CSV.ZIP").compression == "zip"
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("folder/", "")
        made.writestr("folder/rows.csv", "a,b\n1,x\n")
        made.writestr("__MACOSX/folder/._rows.csv", "?")
    data = sink.getvalue()
    for name in ("x.csv.zip", "x.zip"):
        format = detect_file(lambda: io.BytesIO(data), name)
        found = SourceFile(lambda: io.BytesIO(data), format, name)
        assert read(found, None).read_all().to_pylist() == [{"a": 1, "b": "x"}]
    with pytest.raises(LimitError):
        infer(SourceFile(lambda: io.BytesIO(data), format, name, ReadOptions(max_bytes=5)))
    book = archive(t__xlsx="")
    with zipfile.ZipFile(sink := io.BytesIO(), "w") as made:
        made.writestr("t.xlsx", small())
    book = sink.getvalue()
    format = detect_file(lambda: io.BytesIO(book), "x.zip")
    assert read(SourceFile(lambda: io.BytesIO(book), format, "x.zip"), None).read_all().num_rows == 2


@pytest.mark.parametrize(
    ("name", "members", "message"),
    [
        ("x.zip", {}, "without a file in it"),
        ("x.zip", {"a__csv": "a\n1\n", "b__csv": "a\n1\n"}, "2 files .'a.csv', 'b.csv'."),
        ("x.zip", {"a": "a\n1\n"}, "no supported format"),
        ("x.json.zip", {"a__csv": "a\n1\n"}, "which is not jsonl"),
        ("x.zip", {"a__csv__gz": "?"}, "compressed as well"),
    ],
)
def test_other_archives_are_refused_by_name(name: str, members: dict[str, str], message: str) -> None:
    data = archive(**members)
    with pytest.raises(InputError, match=message):
        detect_file(lambda: io.BytesIO(data), name)


def test_damage_in_an_archive_is_found() -> None:
    data = archive(a__csv="a,b\n" + "1,2\n" * 1000)
    found = {"refused": 0}
    for at in range(40, 60):
        damaged = bytearray(data)
        damaged[at] ^= 0x55
        with pytest.raises(InputError):
            read(SourceFile(lambda damaged=damaged: io.BytesIO(damaged), detect("x.csv.zip"), "x.csv.zip"), None)
        found["refused"] += 1
    assert found["refused"] == 20
    encrypted = bytearray(data)
    encrypted[6] |= 1
    directory = data.index(b"PK\1\2")
    encrypted[directory + 8] |= 1
    with pytest.raises(InputError, match="password"):
        infer(SourceFile(lambda: io.BytesIO(encrypted), detect("x.csv.zip"), "x.csv.zip"))
    other = bytearray(data)
    other[directory + 10 : directory + 12] = struct.pack("<H", 14)
    with pytest.raises(InputError, match="Deflate"):
        infer(SourceFile(lambda: io.BytesIO(other), detect("x.csv.zip"), "x.csv.zip"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.xls", "save it as .xlsx"), ("a.xlsb", "save it as .xlsx"), ("a.csv.xz", "unpack it"), ("a.7z", "unpack it")],
)
def test_what_many_have_and_no_reader_takes_is_refused_with_a_hint(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        detect(name)


def test_a_workbook_is_not_opened_where_none_is_meant() -> None:
    assert sheet_reader.__doc__
    with pytest.raises(InputError, match="is a zip archive"):
        infer(SourceFile(lambda: io.BytesIO(small()), detect("t.csv"), "t.csv"))
