"""``verify`` checks erasures: a list that no dolmen writes, deletes that are gone, and receipts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.format.manifest import Erasure
from dolmen.format.receipts import Receipt, receipt_key
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.damaged import Damaged, copy_of
from support.tables import World


@pytest.fixture(scope="module")
def bucket() -> MemoryBucket:
    """An erasure that is hidden, one that is resolved, and one that is gone; the first in files and in a clone."""
    bucket = MemoryBucket()
    runtime = Runtime()
    world = World(MemoryStore(bucket, runtime), runtime)
    table = world.db.create_table("t", pa.schema([("k", pa.int64())]))
    for first in range(0, 40, 10):
        table.append({"k": list(range(first, first + 10))})
    table.erase("k = 3")
    world.db.resolve()
    world.db.clone("t", "copy")
    table.erase("k = 25")
    return bucket


@pytest.fixture
def db(bucket: MemoryBucket) -> Damaged:
    return copy_of(bucket)


def erasures(db: Damaged) -> tuple[Erasure, Erasure]:
    """The resolved one and the other."""
    first, second = db.manifest.erasures
    return first, second


def rewrite(db: Damaged, **changes: object) -> str:
    """Changes the receipt of the erasure that has one."""
    key = receipt_key(erasures(db)[0].id)
    receipt = Receipt.decode(db.body(key), key)
    return db.put(key, msgspec.structs.replace(receipt, **changes).encode())


def relist(db: Damaged, **changes: object) -> str:
    first, second = erasures(db)
    return db.edit(erasures=(first, msgspec.structs.replace(second, **changes)))


def test_a_good_database_has_no_findings(db: Damaged) -> None:
    for deep in (False, True):
        report = db.verify(deep=deep)
        assert (report.findings, report.checked["erasures"]) == ((), 2)


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        ("erasure-entry", lambda db: relist(db, id="zz")),
        ("erasure-entry", lambda db: relist(db, version=99)),
        ("erasure-entry", lambda db: relist(db, due_at=1)),
        ("erasure-entry", lambda db: relist(db, ts=erasures(db)[1].ts - 1)),
        ("receipt-damaged", lambda db: db.cut(receipt_key(erasures(db)[0].id))),
        ("receipt-damaged", lambda db: db.flip(receipt_key(erasures(db)[0].id), 40)),
        ("receipt-differs", lambda db: rewrite(db, version=2)),
        ("receipt-differs", lambda db: rewrite(db, gone_at=7)),
    ],
)
def test_damage_is_found(db: Damaged, kind: str, harm: Callable[[Damaged], str]) -> None:
    harmed = harm(db)
    found = {(finding.kind, finding.object) for finding in db.verify().findings}
    assert found == {(kind, harmed)}


@pytest.mark.parametrize("name", ["t", "copy"])
def test_a_delete_that_is_gone_while_a_file_needs_it_is_found(db: Damaged, name: str) -> None:
    """A clone needs the deletes of its source, and none that its files have heeded."""
    db.edit_table(name, tombstones=())
    found = [(finding.kind, finding.table) for finding in db.verify().findings]
    assert found == [("erasure-undone", name)]


def test_a_receipt_of_an_erasure_that_is_not_listed_is_read_with_deep(db: Damaged) -> None:
    key = db.put(receipt_key("0" * 32), b"{}")
    assert db.verify().ok
    assert [(finding.kind, finding.object) for finding in db.verify(deep=True).findings] == [("receipt-damaged", key)]
