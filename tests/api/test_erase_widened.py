"""Erasures by a column that has become wider since: older versions, in which it is narrower, hide the rows too."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dolmen

CASES: dict[str, tuple[pa.DataType, pa.DataType, list[Any]]] = {
    "integers": (pa.int8(), pa.int64(), [1, 2, 3, 100]),
    "floats": (pa.float32(), pa.float64(), [0.5, 0.1, 3.25, 16777216.0]),
    "days": (
        pa.date32(),
        pa.timestamp("us"),
        [dt.date(1969, 12, 31), dt.date(2020, 1, 1), dt.date(2020, 1, 2), dt.date(1960, 5, 5)],
    ),
    "decimals": (pa.decimal128(5, 2), pa.decimal128(20, 2), [Decimal(f"{n}.{n}0") for n in range(1, 5)]),
}
NO_KEYS = ("floats", True)


@pytest.mark.slow
@pytest.mark.parametrize("spilled", [False, True], ids=["inline", "spilled"])
@pytest.mark.parametrize(
    ("case", "by_keys"), [(case, by_keys) for case in CASES for by_keys in (False, True) if (case, by_keys) != NO_KEYS]
)
def test_rows_of_narrower_versions_are_erased_too(tmp_path: Path, case: str, by_keys: bool, spilled: bool) -> None:
    narrow, wide, values = CASES[case]
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("c", narrow)]))
    if spilled:
        db.set(root_bytes="4KB")
    for id_, value in enumerate([*values, values[1], values[3]]):
        table.append(pa.table({"id": [id_], "c": pa.array([value], narrow)}))
    first = db.version
    db.tag("old")
    table.widen_column("c", wide)
    gone = pa.array([values[1]], narrow).cast(wide)
    if by_keys:
        table.erase(keys=pa.table({"c": gone}), on=["c"])
    else:
        table.erase({"c": gone[0].as_py()})
    left = [0, 2, 3, 5]

    def ids(at: Any, name: str = "t") -> list[int]:
        assert at.table(name).count() == len(left)
        return sorted(at.table(name).to_arrow()["id"].to_pylist())

    assert ids(db) == ids(db.at(version=first)) == ids(db.at(tag="old")) == left
    old = db.at(version=first).table("t")
    assert old.schema.field("c").type == old.to_arrow().schema.field("c").type == narrow
    assert old.describe()["columns"]["c"] == str(narrow)
    assert [row["c"] for row in old.scan(["c", "id"]).to_arrow().to_pylist() if row["id"] == 0] == [values[0]]
    assert old.count({"c": values[2]}) == 1
    assert old.count({"c": values[1]}) == 0
    assert db.at(version=first).sql("SELECT c FROM t WHERE id = 2").to_arrow()["c"].to_pylist() == [values[2]]
    assert table.schema.field("c").type == wide
    fed = table.changes(0, first).read_all()
    assert sorted(fed.filter(pc.equal(fed["_change"], "insert"))["id"].to_pylist()) == left
    table.restore(tag="old")
    db.clone("t", "u", tag="old")
    assert ids(db) == ids(db, "u") == left
    db.resolve("t")
    db.compact("u")
    assert ids(db) == ids(db, "u") == left
    assert not db.verify().findings
