"""Pairs with a merge of segments, which must neither lose nor repeat a concurrent change."""

from __future__ import annotations

from dolmen.api.database import Database
from dolmen.commit.head import context_of
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.segment_merging import merge_segments
from dolmen.transactions.transaction import Transaction
from dolmen_simulator.interleavings.checks import SCHEMA, ExpectedTables, Pair, PairedCall, Row, arrow
from dolmen_simulator.interleavings.execution import Peer
from dolmen_simulator.interleavings.pairs import append, delete, one_table, positions
from dolmen_simulator.interleavings.upkeep import compaction, resolution, upkeep
from dolmen_simulator.world.fates import Fate

_LOST = (Fate.RESPONSE_LOST,)
_VALUE = 999
_ROWS = 3
"""Rows of each file. File n has the keys and values from 10 n on."""

_MANY = 16
"""The number of files whose entries are more than the smallest root may hold."""

_DELETED = (120, 130, 140, 150)
_DELETED_NEXT = (20, 121, 131, 141, 151)
"""Rows of files that have deleted rows already, and of one file in a segment that is not worth a merge."""


def files(db: Database, *numbers: int) -> None:
    """Commits small files in one transaction."""
    with db.transaction() as transaction:
        for number in numbers:
            transaction.table("t").append(arrow(rows_of_file(number)))
        transaction.commit()


def rows_of_file(number: int) -> list[Row]:
    """The rows of the file with this number."""
    return [(key, key, None) for key in range(10 * number, 10 * number + _ROWS)]


def segment_merge() -> PairedCall:
    """Merges segments."""
    return upkeep("merge segments", lambda peer: merge_segments(peer.context))


def repeated_position_delete() -> PairedCall:
    """Deletes by position in files in which rows were deleted by position before."""
    values = ", ".join(map(str, _DELETED_NEXT))
    return positions(f"v IN ({values})", lambda row: row[1] in _DELETED_NEXT)


def add_file_and_merge(number: int) -> PairedCall:
    """Adds a file, which pushes others out of the root, and merges segments."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"].extend(rows_of_file(number))

    def task(peer: Peer) -> None:
        files(peer.db, number)
        merge_segments(peer.context)

    return PairedCall(f"add file {number}, merge segments", task, effect, lambda value: None)


def insert_if_absent(key: int) -> PairedCall:
    """Inserts a row in one transaction unless its value is there, then commits once more; returns whether it did.

    The second commit changes no row, and pushes the inserted file out of the root.
    """

    def effect(model: ExpectedTables) -> bool:
        rows = model.tables["t"]
        is_new = all(v != _VALUE for _, v, _ in rows)
        rows.extend([(key, _VALUE, None)] * is_new)
        return is_new

    def run(transaction: Transaction) -> bool:
        table = transaction.table("t")
        is_new = not table.count(where={"v": _VALUE})
        if is_new:
            table.append(arrow([(key, _VALUE, None)]))
        return is_new

    def task(peer: Peer) -> bool:
        is_new = peer.db.run(run)
        peer.db.table("t").set(target_file_bytes=1_000_000 + key)
        return is_new

    return PairedCall(f"insert {key} if absent, set a property", task, effect)


def table_with_segments(db: Database) -> None:
    """Makes a database with so many commits that entries have left the root for several segments."""
    one_table(db)
    db.set(root_bytes=4096)
    for number in range(24):
        db.table("t").append(arrow([(100 + number, number, None)]))


def table_with_overlays(db: Database) -> None:
    """Makes files in a segment that is worth a merge and in one that is not, and their overlays in another segment."""
    db.set(root_bytes=4096)
    db.create_table("t", SCHEMA, primary_key="k")
    files(db, *range(12))
    for number in range(12, 20, 2):
        files(db, number, number + 1)
    values = ", ".join(map(str, _DELETED))
    db.table("t").delete(f"v IN ({values})", mode="positions")
    files(db, 20)


def table_with_many_segments(db: Database) -> None:
    """Makes the same, and so many more segments of files that a merge is due after one more."""
    table_with_overlays(db)
    for number in range(21, 26):
        files(db, number)


def table_of_resolved_segments(db: Database) -> None:
    """Makes segments that are worth one merge, of which a resolution has done with the first, and not with the last."""
    table_with_many_segments(db)
    files(db, 30)
    db.table("t").delete("v IN (10, 131, 240)")
    reads = iter((False, False))  # the third file to be read is that with 240
    resolve(context_of(db), "t", deadline=lambda: next(reads, True), batch_files=2)


def table_of_a_small_root(db: Database) -> None:
    """Makes a table in a database whose root holds few entries."""
    one_table(db)
    db.set(root_bytes=4096)


def add_many_files(first: int) -> PairedCall:
    """Adds files whose entries alone are more than the root's budget, so that they leave with their own commit."""
    numbers = range(first, first + _MANY)

    def effect(model: ExpectedTables) -> None:
        for number in numbers:
            model.tables["t"].extend(rows_of_file(number))

    return PairedCall(f"add {_MANY} files", lambda peer: files(peer.db, *numbers), effect, lambda value: None)


SEGMENTS: tuple[Pair, ...] = (
    Pair("many files/append", table_of_a_small_root, (add_many_files(10), append((7, 70, None))), quick=(0,)),
    Pair("many files/many files", table_of_a_small_root, (add_many_files(10), add_many_files(40)), quick_fates=_LOST),
    Pair(
        "many files/delete",
        table_of_a_small_root,
        (add_many_files(10), delete("v >= 150 AND v < 170", lambda row: row[1] is not None and 150 <= row[1] < 170)),
        quick=(0,),
        quick_fates=_LOST,
    ),
    Pair("merge segments/append", table_with_segments, (segment_merge(), append((7, 70, None))), quick=(0,)),
    Pair(
        "positions/merge segments",
        table_with_overlays,
        (repeated_position_delete(), segment_merge()),
        quick=(0,),
        quick_fates=_LOST,
    ),
    Pair("merge segments/compact", table_with_overlays, (segment_merge(), compaction()), quick=(0,), quick_fates=_LOST),
    Pair(
        "merge segments/resolve",
        table_of_resolved_segments,
        (segment_merge(), resolution()),
        quick=(0,),
        quick_fates=_LOST,
    ),
    Pair(
        "merge segments/add and merge segments",
        table_with_many_segments,
        (segment_merge(), add_file_and_merge(30)),
        quick_fates=(),
    ),
    Pair(
        "read-modify-write/read-modify-write, and segments",
        table_with_segments,
        (insert_if_absent(1), insert_if_absent(2)),
        quick_fates=(),
    ),
)
