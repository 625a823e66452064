"""Updates and merges stream the table: their memory does not grow with it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import dolmen
from dolmen import Expression
from dolmen.api.database import Table

pytestmark = pytest.mark.slow

MIB = 1 << 20
FILES, ROWS = 30, 100_000
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """3,000,000 rows in 30 files: 380 MB in memory."""
    url = str(tmp_path_factory.mktemp("memory") / "db")
    table = dolmen.open(url).create_table("t", SCHEMA, primary_key="id")
    for number in range(FILES):
        ids = pa.array(range(ROWS * number, ROWS * (number + 1)), pa.int64())
        text = pa.array([f"{i:0100}" for i in range(ROWS)])
        table.append(pa.table({"id": ids, "n": ids, "text": text}))
    return url


@pytest.mark.parametrize(
    "act",
    [
        lambda table: table.update({"n": Expression("n + 1"), "text": Expression("upper(text)")}),
        lambda table: table.merge(
            pa.table({"id": pa.array(range(0, FILES * ROWS, 7), pa.int64())}),
            "id",
            {"n": "target.n + 1"},
            None,
            {"n": "target.n - 1"},
        ),
    ],
    ids=["update", "merge"],
)
def test_a_table_that_is_rewritten_whole_takes_bounded_memory(
    url: str, act: Callable[[Table], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dolmen.transactions.merge import clauses

    most = 0
    make = clauses.RowTemplate.make

    def watched(self: clauses.RowTemplate, sides: object) -> pa.RecordBatch:
        nonlocal most
        most = max(most, pa.total_allocated_bytes())
        return make(self, sides)  # type: ignore[arg-type]

    monkeypatch.setattr(clauses.RowTemplate, "make", watched)
    table = dolmen.open(url).table("t")
    before = pa.total_allocated_bytes()
    act(table)
    assert table.count() == FILES * ROWS
    assert 0 < most - before < 200 * MIB, f"{(most - before) / MIB:.0f} MB"
