"""The encoding of text: found by its bytes, or refused; never guessed where other bytes would be other text."""

from __future__ import annotations

import gzip
import zipfile
from io import BytesIO
from typing import get_args

import pytest

from dolmen.errors import InputError
from dolmen.format.dialect import Encoding
from dolmen.ingest.inference.sniff.encoding import encoding_note, sniff_encoding

WESTERN = "name;city;price\nMüller;Köln;1,50 €\nGarçon;Orléans;2\nStraße;Zürich;naïve “q” – don’t\n"
LATIN = "name,city\nRené,Besançon\nZoé,Genève\nNiño,León\n"
CYRILLIC = "имя,город\nИван,Москва\nПётр,Тула\n"
CHINESE = "姓名,城市\n张三,北京\n李四,上海\n"
JAPANESE = "名前,都市\n太郎,東京\n花子,大阪\n"


@pytest.mark.parametrize("text", [WESTERN, LATIN, CYRILLIC, CHINESE, JAPANESE, "a,b\n1,2\n"], ids=range(6))
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("utf-16", "utf-16"),
        ("utf-16le", "utf-16le"),
        ("utf-16be", "utf-16be"),
        ("utf-32", "utf-32"),
        ("utf-32le", "utf-32le"),
        ("utf-32be", "utf-32be"),
    ],
)
def test_unicode_is_found_wherever_the_sample_is_cut(text: str, written: str, expected: str) -> None:
    data = text.encode(written)
    assert sniff_encoding(data, whole=True) == expected
    assert expected in get_args(Encoding)
    for size in range(len(data) // 2, len(data)):
        assert sniff_encoding(data[:size], whole=False) == expected


def test_a_stray_zero_does_not_make_utf_8_another_encoding() -> None:
    """As UTF-16LE, too, nearly all of this text can be printed."""
    text = (
        "id_0,integer_1,word_2,day_3\n1,24433,x y,2042-09-19\n2,28033,café,1978-03-22\n3,8299,Bob Marley,2040-02-25\n"
        "4,83504,naïve,2056-08-20\n5,\0-19890,Ann,2025-12-15\n6,53335,Über,2005-11-23\n7,65696,Ærø,2053-07-22\n"
        "8,-82636,x y,2039-06-13\n9,-88422,café,2047-02-17\n10,94208,Bob Marley,2046-12-17\n"
        "11,-54766,naïve,2004-01-28\n12,-71763,Ann,2052-10-25\n"
    )
    assert sniff_encoding(text.encode(), whole=True) == "utf-8"


@pytest.mark.parametrize("text", [WESTERN, LATIN, "a\nGrüße\n", "a,b\né,1\n"], ids=range(4))
def test_windows_1252_is_named_and_noted(text: str) -> None:
    for repeats in (1, 300):
        found = sniff_encoding(text.encode("cp1252") * repeats, whole=True)
        assert found == "windows-1252"
    assert "Windows-1252" in (encoding_note("windows-1252") or "")
    assert "Latin-1" in (encoding_note("latin-1") or "")
    assert "UTF-16LE" in (encoding_note("utf-16le") or "")
    assert encoding_note("utf-8") is encoding_note("utf-16") is encoding_note("utf-32") is None


def test_control_characters_that_windows_1252_lacks_are_latin_1() -> None:
    assert sniff_encoding("a,b\né,\x81\nü,1\n".encode("latin-1"), whole=True) == "latin-1"


@pytest.mark.parametrize(
    ("text", "written", "words"),
    [
        (LATIN, "cp850", "CP850"),
        (LATIN, "cp437", "CP850"),
        (LATIN, "mac_roman", "MACINTOSH"),
        ("id,name\n1,Ann\n2,Zoë\n", "mac_roman", "MACINTOSH"),
        ("a,b\nMüller,Köln\n", "cp850", "CP850"),
        (CYRILLIC, "cp1251", "cp1251"),
        (CYRILLIC, "koi8-r", "koi8-r"),
        (JAPANESE, "shift_jis", "shift_jis"),
        (CHINESE, "gb18030", "gb18030"),
        ("name,city\nbob,paris\n", "cp037", "EBCDIC"),
    ],
)
def test_other_encodings_are_refused_with_what_they_may_be(text: str, written: str, words: str) -> None:
    with pytest.raises(InputError, match="iconv") as error:
        sniff_encoding(text.encode(written), whole=True)
    assert words in str(error.value)


def test_some_bad_bytes_in_utf_8_are_left_to_the_reader() -> None:
    data = WESTERN.encode() * 20 + b"bad \xff byte\n" + WESTERN.encode()
    assert sniff_encoding(data, whole=True) == "utf-8"
    assert sniff_encoding(b"\xef\xbb\xbfa,b\n\xff,1\n", whole=True) == "utf-8"


def _zip() -> bytes:
    target = BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        file.writestr("a.csv", "a,b\n")
    return target.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(b"a,b\n"), "gzip"),
        (_zip(), "zip"),
        (b"PAR1\x15\x04\x00", "Parquet"),
        (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", "PDF"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "PNG"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100), "Office"),
        (b"SQLite format 3\x00", "SQLite"),
        (bytes(range(256)) * 4, "binary"),
        (bytes(1000), "binary"),
        (b"\0", "binary"),
        (b"\x03\x04\x05" * 100, "binary"),
        (b"\xff\xfea", "byte order mark"),
    ],
    ids=range(12),
)
def test_binary_data_is_refused_with_what_it_seems_to_be(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        sniff_encoding(data, whole=True)


@pytest.mark.parametrize(
    "data", [b"", b"a", b"\n", b"ORC,a\n1,2\n", b"BZh,1\n", b"a\x01b\nc\x01d\n", b"a\0b,c\n" * 2 + b"x," * 300]
)
def test_odd_text_is_text(data: bytes) -> None:
    assert sniff_encoding(data, whole=True) == "utf-8"
