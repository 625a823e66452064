"""Keys on the command line are said as in predicates, whatever their type."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen

Cli = Callable[..., Any]

AT = dt.datetime(2026, 1, 2, 3, 4, 5, 6)
KEYS: list[tuple[pa.DataType, Any, str]] = [
    (pa.int8(), -7, "-7"),
    (pa.uint64(), 2**64 - 1, str(2**64 - 1)),
    (pa.bool_(), True, "true"),
    (pa.decimal128(10, 2), Decimal("-1.50"), "-1.5"),
    (pa.decimal128(38, 0), Decimal(10**37), "1" + "0" * 37),
    (pa.date32(), AT.date(), "2026-01-02"),
    (pa.time64("us"), AT.time(), "03:04:05.000006"),
    (pa.timestamp("us"), AT, "2026-01-02 03:04:05.000006"),
    (pa.timestamp("us", "UTC"), AT.replace(tzinfo=dt.UTC), "2026-01-02T03:04:05.000006Z"),
    (pa.timestamp("us", "UTC"), AT.replace(tzinfo=dt.UTC), "2026-01-02 05:04:05.000006+02:00"),
    (pa.string(), "a b", "a b"),
    (pa.binary(), b"a\xff", "a\\xff"),
    (pa.binary(3), b"abc", "abc"),
]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[pa.DataType, Any], dolmen.Table]:
    def make(kind: pa.DataType, key: Any) -> dolmen.Table:
        table = dolmen.open(str(tmp_path / "db")).create_table("t", pa.schema([("k", kind)]), primary_key="k")
        table.append(pa.table({"k": pa.array([key], kind)}))
        return table

    return make


@pytest.mark.parametrize(("kind", "key", "text"), KEYS, ids=[f"{kind}-{n}" for n, (kind, _, _) in enumerate(KEYS)])
def test_a_key_of_any_type_is_got_deleted_and_erased_by_its_text(
    cli: Cli, make: Callable[..., dolmen.Table], kind: pa.DataType, key: Any, text: str
) -> None:
    table = make(kind, key)
    found = cli("get", "t", "--json", "--", text)
    assert (found.code, len(found.lines())) == (0, 1), found
    assert cli("delete", "t", f"--keys={text}").code == 0
    assert table.count() == 0
    table.append(pa.table({"k": pa.array([key], kind)}))
    erased = cli("erase", "t", f"--keys={text}", "--yes")
    assert (erased.code, table.count()) == (0, 0), erased


@pytest.mark.parametrize(
    ("kind", "key", "text", "reason"),
    [
        (pa.int64(), 1, "x", ""),
        (pa.int64(), 1, "1.5", ""),
        (pa.int8(), 1, "257", ""),
        (pa.decimal128(10, 2), Decimal("1.50"), "1.505", ""),
        (pa.decimal128(10, 2), Decimal("1.50"), "1e12", ""),
        (pa.decimal128(10, 2), Decimal("1.50"), "nan", ""),
        (pa.bool_(), True, "yes", "write TRUE or FALSE"),
        (pa.date32(), AT.date(), "2026-02-30", "2026-02-30"),
        (pa.date32(), AT.date(), "2026-01-02 10:00", "time of day"),
        (pa.time64("us"), AT.time(), "24:00:00", "24:00:00"),
        (pa.timestamp("us"), AT, "2026-01-02 03:04:05+02", "offset"),
        (pa.timestamp("us", "UTC"), AT.replace(tzinfo=dt.UTC), "now", "now"),
        (pa.binary(), b"a", "ä", "bytes"),
        (pa.binary(3), b"abc", "ab", ""),
    ],
    ids=str,
)
def test_a_text_that_is_no_value_of_the_key_is_refused_and_says_which_column(
    cli: Cli, make: Callable[..., dolmen.Table], kind: pa.DataType, key: Any, text: str, reason: str
) -> None:
    table = make(kind, key)
    for command in (("get", "t", text), ("delete", "t", "--keys", text), ("erase", "t", "--yes", "--keys", text)):
        refused = cli(*command)
        told = " ".join(refused.err.split())
        assert refused.code == 2, refused
        assert f"column 'k' of type {kind}" in told
        assert reason in told
        assert "without quotes" not in told
        assert "dolmen delete" not in told
    assert table.count() == 1


def test_keys_of_several_columns_are_got_with_their_spaces(cli: Cli, tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.date32())])
    table = dolmen.open(str(tmp_path / "db")).create_table("t", schema, primary_key=["a", "b"])
    table.append([{"a": " x ", "b": AT.date()}])
    assert cli("get", "t", " x ", "2026-01-02").code == 0
    assert cli("get", "t", "x", "2026-01-02").code == 3
    refused = cli("delete", "t", "--keys", "x")
    assert (refused.code, "--keys-file" in refused.err) == (2, True)
