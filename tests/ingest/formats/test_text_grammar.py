"""Text of every type against a strict reference, which says what docs/ingest.md says: in CSV and in JSON."""

from __future__ import annotations

import io
import json
import os
import random
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import RowError
from dolmen.ingest.formats.cells import parse_text
from dolmen.ingest.formats.formats import Format, SourceFile, infer, read
from dolmen.rows.write.casts import Misfit
from support.text_grammar import REFUSED, meaning

KINDS = [
    pa.bool_(), pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(5, 2),
    pa.decimal128(38, 38), pa.decimal128(38, 0), pa.decimal128(20, 5), pa.date32(), pa.time64("us"),
    pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.binary(), pa.binary(2), pa.string(),
]  # fmt: skip
TEXTS = [
    "1", "0", "-0", "+1", "1.0", "12.0", "1.2e1", "1e2", "1e-2", "100e-2", "0x1F", "1_000", "\uff11\uff12", "\u0663",
    "1,5", "1 2", "--1", "+-1", "1e", "e1", ".", "1.", ".5", "+.5", "-.5e1", "1e+2", "1E2", "1e1000", "1e-1000",
    "1e1001", "1e400", "-1e400", "1e99999999", "1e999999999", "0e0", "0e5", "00", "007", "9" * 20, "9" * 38, "9" * 39,
    "1" * 4301, "0" * 400 + "1", "1." + "0" * 400, "0." + "0" * 50 + "1", "255", "256", "-128", "127", "128",
    "18446744073709551615", "18446744073709551616", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "3.4e38", "3.5e38", "1e-50", "1e-400", "0.1", "999.99", "1000",
    "999.995", "-999.99", "1e3", "12345e-2", "123456e-3", "nan", "NaN", "NAN", "-nan", "+nan", "nan(1)", "nan()",
    "NAN(ind)", "nanx", "inf", "-inf", "+inf", "Inf", "INFINITY", "infinity", "infinit", "in", "infin", "1.#INF",
    "1.#QNAN", "0x1p3", "0X1", "1f", "1d", "1L", "1e5f", "true", "TRUE", "True", "tRuE", "t", "f", "T", "F", "yes",
    "no", "on", "y", "false", "FALSE", "10", "2", "-1", "01", "null", "NULL", "None", "\\N", "NA", "", "2024-02-29",
    "2023-02-29", "2024-2-9", "2024/02/29", "20240229", "0000-01-01", "0001-01-01", "9999-12-31", "10000-01-01",
    "-0001-01-01", "+2024-01-01", "2024-13-01", "2024-00-10", "2024-01-00", "2024-01-32", "24-01-01", "2024-01-01T",
    "2024-01-01 ", "2024-01-01T01", "2024-01-01 01", "2024-01-01T0102", "2024-01-01T01:02", "2024-01-01T01:02:03",
    "2024-01-01 01:02:03", "2024-01-01t01:02:03", "2024-01-01  01:02:03", "2024-01-01_01:02:03", "2024-01-01T24:00",
    "2024-01-01T23:59:60", "2024-01-01T23:60", "2024-01-01T01:02:03.", "2024-01-01T01:02:03.1",
    "2024-01-01T01:02:03.123456", "2024-01-01T01:02:03.1234560", "2024-01-01T01:02:03.123456000",
    "2024-01-01T01:02:03.1234567", "2024-01-01T01:02:03.12345600000000", "2024-01-01T01:02:03,5",
    "2024-01-01T01:02.5", "2024-01-01T1:02", "2024-01-01T010203", "2024-01-01T01Z", "2024-01-01Z",
    "2024-01-01T01:02Z", "2024-01-01T01:02z", "2024-01-01T01:02 Z", "2024-01-01T01:02+02", "2024-01-01T01:02+0200",
    "2024-01-01T01:02+02:00", "2024-01-01T01:02-02:30", "2024-01-01T01:02+2", "2024-01-01T01:02+24:00",
    "2024-01-01T01:02+99", "2024-01-01T01:02+02:60", "2024-01-01T01:02+14:00", "2024-01-01T01:02:03.5+00:00",
    "2024-01-01T01:02:03+00:00:00", "2024-01-01T01:02 UTC", "2024-01-01T01:02 +02:00", "2024-01-01T01+02:00",
    "2024-01-01 01:02:03.123456Z", "2024-01-01T01:02:03.12345600Z", "0001-01-01T00:00+01:00",
    "9999-12-31T23:59-01:00", "0000-01-01T00:00Z", "2024-W01-1", "2024-060", "now", "today", "1704067200",
    "1704067200.5", "01", "01:02", "1:02", "01:02:03", "01:02:03.5", "01:02:03.123456", "01:02:03.1234560",
    "01:02:03.1234567", "24:00", "23:59:59.999999", "23:60", "01:02Z", "01:02+00:00", "010203", "01:02 PM", "0102",
    "01:", "01:02:", "01:02:03.", "00:00:60", "YQ==", "YWI=", "YWJj", "YW I=", "YQ", "Y===", "====", "YWI=YWI=",
    "YQ=", "YQ==\n", "_-8=", "\u00e9", "YR==", "AA==", "=", "AAA=", "*", "\u0000", "1\u0000", "\ufeff1", "1\ufeff",
    "\u00a01", "1\u00a0", "\u20091", "\u001f1", "\u000b1", "1\f", "\u00851", "\u22121", "1\r", "\r1", "\u2460",
    "\u00bd", "1\ufe0f\u20e3", "\u2167",
]  # fmt: skip
_LETTERS = "0123456789+-.:TZeE naif()x_'"
_SPACES = " \t\n\v\f\r"
_CSV, _JSON = Format("csv"), Format("jsonl")
ROUNDS = 8 if os.environ.get("DOLMEN_LONG") else 1


def _read(body: str, format: Format, kind: pa.DataType) -> Any:
    schema = pa.schema([("id", pa.int64()), ("c", kind)])
    try:
        rows = read(SourceFile(lambda: io.BytesIO(body.encode()), format, "f"), schema).read_all()
    except RowError as error:
        return REFUSED if error.column == "c" else error
    (value,) = rows["c"].to_pylist()
    return value


def _same(found: Any, wanted: Any) -> bool:
    if found is REFUSED or wanted is REFUSED:
        return found is wanted
    if isinstance(found, float) and isinstance(wanted, float):
        return str(found) == str(wanted) or (found != found and wanted != wanted)
    return type(found) is type(wanted) and bool(found == wanted)


def _cell(text: str, kind: pa.DataType, *, quoted: bool) -> Any:
    """What a cell means: where there is nothing in it, more than the grammar of its type."""
    if text.strip(_SPACES) or (pa.types.is_string(kind) and (text or quoted)):
        return meaning(text, kind)
    return b"" if pa.types.is_binary(kind) and quoted and not text else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_cell_means_what_the_grammar_says(kind: pa.DataType) -> None:
    wrong = []
    for place, text in enumerate(TEXTS):
        padded = (text, f" {text}", f"{text}\t")[place % 3] if not pa.types.is_string(kind) else text
        bare = not set(padded) & set(',"\n\r')
        found = _read(f"id,c\n1,{padded}" if bare else f'id,c\n1,"{padded}"\n', _CSV, kind)
        if not _same(found, wanted := _cell(padded, kind, quoted=not bare)):
            wrong.append((padded[:40], found, wanted))
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_json_string_means_what_the_grammar_says(kind: pa.DataType) -> None:
    wrong = []
    for text in TEXTS:
        found = _read(json.dumps({"id": 1, "c": text}), _JSON, kind)
        if not _same(found, wanted := meaning(text, kind)):
            wrong.append((text[:40], found, wanted))
    assert not wrong


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not pa.types.is_string(kind)], ids=str)
def test_texts_with_letters_changed_mean_what_the_grammar_says(kind: pa.DataType) -> None:
    draw, wrong = random.Random(str(kind)), []
    for text in (text for text in TEXTS * ROUNDS if len(text) < 60):
        letters = list(text)
        for _ in range(draw.randint(1, 2)):
            place = draw.randint(0, len(letters))
            letters[place : place + draw.randint(0, 1)] = draw.choice([[], [draw.choice(_LETTERS)]])
        changed = "".join(letters).strip(_SPACES)
        try:
            found = parse_text(pa.array([changed]), kind)[0].as_py()
        except Misfit:
            found = REFUSED
        if not _same(found, wanted := meaning(changed, kind)):
            wrong.append((changed, found, wanted))
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("format", [_CSV, _JSON])
def test_what_is_inferred_reads_the_text(format: Format) -> None:
    for text in TEXTS:
        if not text.strip(_SPACES):
            continue
        quoted = text.replace('"', '""')
        body = json.dumps({"c": text}).encode() if format == _JSON else f'c\n"{quoted}"\n'.encode()
        schema = infer(SourceFile(lambda body=body: io.BytesIO(body), format, "f"))
        rows = read(SourceFile(lambda body=body: io.BytesIO(body), format, "f"), schema).read_all()
        assert _same(rows["c"][0].as_py(), meaning(text, schema.field("c").type)), (text, schema)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ['"x"', '""', '"x\ny"', "x", "", '"x""y"'])
@pytest.mark.parametrize("rows", [1, 3])
def test_an_empty_last_field_is_null_however_the_file_ends(start: str, end: str, rows: int) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    body = ("a,b\n" + "".join(f"{start},\n" for _ in range(rows - 1)) + f"{start},{end}").encode()
    for block_bytes in (2 << 20, 3):
        found = read(SourceFile(lambda: io.BytesIO(body), _CSV, "f", block_bytes=block_bytes), schema).read_all()
        assert found["b"].to_pylist() == [None] * rows
        quoted = read(SourceFile(lambda: io.BytesIO(body.rstrip(b"\r\n") + b'""'), _CSV, "f"), schema).read_all()
        assert quoted["b"].to_pylist() == [None] * (rows - 1) + [""]
