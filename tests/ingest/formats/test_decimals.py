"""Decimals are read exactly, or refused, in every format and from every type of decimal."""

from __future__ import annotations

import io
import os
import random
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import InputError, RowError
from dolmen.format.schema import Schema
from dolmen.ingest.formats.formats import SourceFile, detect, infer, read
from dolmen.rows.write.conform import conform

EXACT = Context(prec=6000)
TYPES = [pa.decimal128(precision, scale) for precision, scale in [(5, 2), (9, 0), (18, 6), (28, 28), (38, 0), (38, 19), (38, 38)]]  # fmt: skip  # noqa: E501


def _fits(number: Decimal, kind: pa.DataType) -> bool:
    unscaled = EXACT.scaleb(number, kind.scale)
    return unscaled == EXACT.to_integral_value(unscaled) and abs(unscaled) < EXACT.power(10, kind.precision)


def _read(name: str, text: str, kind: pa.DataType) -> Any:
    data = f"c,d\n{text},1\n" if name.endswith("csv") else f'{{"c": {text}}}\n'
    if name == "nested.csv":
        data = f'c\n"{{""x"": {text}, ""y"": 1e-7, ""z"": ""1e-7""}}"\n'
        kind = pa.struct([("x", kind), ("y", pa.float64()), ("z", pa.string())])
    schema = pa.schema([("c", kind)] + ([("d", pa.string())] if name == "t.csv" else []))
    value = read(SourceFile(lambda: io.BytesIO(data.encode()), detect(name), name), schema).read_all()["c"][0].as_py()
    if name == "nested.csv":
        assert (value["y"], value["z"]) == (1e-7, "1e-7")
        return value["x"]
    return value


def _some_number(chance: random.Random) -> str:
    digits = "".join(chance.choices("0123456789", k=chance.choice([1, 2, 5, 17, 30, 38, 39, 40, 77])))
    digits = chance.choice([digits, digits[0] * len(digits)]).lstrip("0") or "0"
    point = chance.randrange(len(digits) + 1)
    whole, part = digits[:point] or "0", digits[point:]
    part = "0" * chance.choice([0, 0, 0, 3, 36]) + part + "0" * chance.choice([0, 0, 5])
    exponent = f"e{chance.randint(-90, 45)}" if chance.random() < 0.3 else ""
    return f"{chance.choice(['', '-'])}{whole}{'.' + part if part else ''}{exponent}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "nested.csv"])
def test_a_number_is_read_as_it_stands_or_refused(name: str) -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    chance = random.Random(seed)
    for _ in range(10_000 if os.environ.get("DOLMEN_LONG") else 150):
        text, kind = _some_number(chance), chance.choice(TYPES)
        number = Decimal(text)
        try:
            value = _read(name, text, kind)
        except RowError:
            assert not _fits(number, kind), (text, kind)
        else:
            assert value == number, (text, kind, value)


@pytest.mark.parametrize("target", [pa.decimal128(38, 0), pa.decimal128(5, 2), pa.int64(), pa.uint64(), pa.int8()])
@pytest.mark.parametrize("text", ["9" * 39, "1" * 77, "9" * 200, "-" + "9" * 200, "1" * 5000, "1e39", "5e-39", "1e-99999999999"])  # fmt: skip  # noqa: E501
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_digits_beyond_all_types_are_refused(name: str, text: str, target: pa.DataType) -> None:
    with pytest.raises(RowError):
        _read(name, text, target)


def test_numbers_beyond_all_types_are_inferred_as_text() -> None:
    for text in ("9" * 39, "9" * 200):
        schema = infer(SourceFile(lambda text=text: io.BytesIO(f"c\n1\n{text}\n".encode()), detect("t.csv"), "t.csv"))
        assert schema.field("c").type == pa.string()


@pytest.mark.parametrize("source", [pa.decimal128(38, 5), pa.decimal128(30, 0), pa.decimal256(70, 3)])
@pytest.mark.parametrize("target", TYPES, ids=str)
def test_a_decimal_of_another_scale_is_the_same_number_or_refused(source: pa.DataType, target: pa.DataType) -> None:
    chance = random.Random(11)
    for _ in range(60):
        number = EXACT.scaleb(Decimal(chance.randrange(10 ** chance.randint(1, source.precision))), -source.scale)
        reader = pa.table({"c": pa.array([number], source)}).to_reader()
        try:
            (batch,) = conform(reader, Schema.from_arrow(pa.schema([("c", target)])))
        except InputError:
            assert not _fits(number, target)
        else:
            assert batch["c"][0].as_py() == number


@pytest.mark.parametrize("number", ["1e-99999999", "-1e-99999999", " 1.5E-400", "1" * 60 + "e-99999999"])
@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.list_(pa.decimal128(10, 2))])
def test_a_quoted_decimal_of_a_tiny_exponent_is_a_bad_row_and_ends_no_process(number: str, kind: pa.DataType) -> None:
    """pyarrow's JSON parser crashes on it, and with it the function, for ever: a poison file."""
    value = f'["{number}"]' if pa.types.is_list(kind) else f'"{number}"'
    body = f'{{"s": "{number}", "x": null}}\n{{"s": "a", "x": {value}}}\n'.encode()
    schema = pa.schema([("s", pa.string()), ("x", kind)])
    with pytest.raises(RowError, match="row 2"):
        read(SourceFile(lambda: io.BytesIO(body), detect("a.jsonl"), "a.jsonl"), schema).read_all()
