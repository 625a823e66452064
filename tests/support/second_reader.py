"""The second reader of the format, examples/reader.py, and the comparison of its rows with those of dolmen."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from dolmen import Database

PATH = Path(__file__).parents[2] / "examples" / "reader.py"


def load_reader() -> Any:
    """The example as a module."""
    if "second_reader_example" not in sys.modules:
        spec = importlib.util.spec_from_file_location("second_reader_example", PATH)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["second_reader_example"]


def plain(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Values that JSON can hold: times are integers, decimals are text, bytes are hexadecimal text."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_struct(kind):
        rows = list(zip(*(plain(array.field(i)) for i in range(kind.num_fields)), strict=True))
        return [list(row) if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return [None if value is None else plain(value) for value in map(_items, array)]
    if pa.types.is_temporal(kind):
        return list(array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist())
    return [
        value.hex() if isinstance(value, bytes) else value if isinstance(value, int | float | None) else str(value)
        for value in array.to_pylist()
    ]


def _items(value: Any) -> pa.Array | None:
    return value.values if value.is_valid else None


def rows_of(table: pa.Table) -> list[str]:
    """Rows as lines of JSON, sorted: NaN equals itself so, and -0.0 is not 0.0."""
    columns = [plain(column) for column in table.columns]
    return sorted(json.dumps(row, ensure_ascii=False) for row in zip(*columns, strict=True))


def columns_of(table: pa.Table) -> list[str]:
    """Names and types of columns."""
    return [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in table.schema]


def check_versions(db: Database, get: Callable[[str], bytes], versions: Iterable[int] | None = None) -> Counter[str]:
    """Compares all tables of some kept versions, by default of all, as dolmen and the second reader show them.

    Args:
        get: gives the bytes of a key.

    Returns:
        counts of what was compared.
    """
    counts: Counter[str] = Counter()
    reader = load_reader().Database(get)
    assert reader.newest["version"] == db.refresh()
    for version in reader.versions() if versions is None else versions:
        snapshot = db.at(version)
        assert snapshot.tables() == reader.tables(version), f"version {version}"
        for name in snapshot.tables():
            place = f"version {version}, table {name}"
            ours = snapshot.table(name).scan(with_commit_ts=True).to_arrow()
            theirs = reader.rows(name, version, with_commit_ts=True)
            assert columns_of(theirs) == columns_of(ours), place
            ours_rows, theirs_rows = rows_of(ours), rows_of(theirs)
            assert theirs_rows == ours_rows, f"{place}: {_difference(ours_rows, theirs_rows)}"
            counts.update(tables=1, rows=len(ours_rows))
    return counts


def _difference(ours: list[str], theirs: list[str]) -> str:
    a, b = Counter(ours), Counter(theirs)
    return f"only dolmen shows {list((a - b).elements())[:5]}, only the second reader {list((b - a).elements())[:5]}"
