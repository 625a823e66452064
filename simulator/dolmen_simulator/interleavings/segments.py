"""Pairs beside which segments are merged: of what others change meanwhile nothing is lost, and nothing comes twice."""

from __future__ import annotations

from dolmen.database import Database
from dolmen.maintenance.merge import merge_segments
from dolmen.transaction import Transaction
from dolmen_simulator.interleavings.checks import SCHEMA, Pair, Part, Row, Truth, arrow
from dolmen_simulator.interleavings.execution import Peer
from dolmen_simulator.interleavings.pairs import append, one_table, positions
from dolmen_simulator.interleavings.upkeep import compacting, upkeep
from dolmen_simulator.world.fates import Fate

_LOST = (Fate.RESPONSE_LOST,)
_VALUE = 999
_ROWS = 3
"""Of each file: the one with the number n has the keys and values from 10 n on."""

_DELETED = (120, 130, 140, 150)
_DELETED_NEXT = (20, 121, 131, 141, 151)
"""Rows of files of which rows are gone already, and of one file in a segment that is not worth a merge."""


def files(db: Database, *numbers: int) -> None:
    """One commit of small files."""
    with db.transaction() as transaction:
        for number in numbers:
            transaction.table("t").append(arrow(rows_of_file(number)))
        transaction.commit()


def rows_of_file(number: int) -> list[Row]:
    """What is in the file of this number."""
    return [(key, key, None) for key in range(10 * number, 10 * number + _ROWS)]


def merging() -> Part:
    """Merges segments."""
    return upkeep("merge segments", lambda peer: merge_segments(peer.context))


def deleting_again() -> Part:
    """Deletes by position in files in which that was done before."""
    told = ", ".join(map(str, _DELETED_NEXT))
    return positions(f"v IN ({told})", lambda row: row[1] in _DELETED_NEXT)


def adding_before_merging(number: int) -> Part:
    """Adds a file, by which others leave the root, and merges segments."""

    def effect(truth: Truth) -> None:
        truth.tables["t"].extend(rows_of_file(number))

    def task(peer: Peer) -> None:
        files(peer.db, number)
        merge_segments(peer.context)

    return Part(f"add file {number}, merge segments", task, effect, lambda value: None)


def inserting(key: int) -> Part:
    """Inserts a row unless one with its value is there, in one transaction, and commits once more; says what it did.

    By the second commit, which changes no row, what was inserted leaves the root.
    """

    def effect(truth: Truth) -> bool:
        rows = truth.tables["t"]
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

    return Part(f"insert {key} unless it is there, set something", task, effect)


def with_segments(db: Database) -> None:
    """So many commits that entries have left the root for several segments."""
    one_table(db)
    db.set(root_bytes=4096)
    for number in range(24):
        db.table("t").append(arrow([(100 + number, number, None)]))


def with_overlays(db: Database) -> None:
    """Files in a segment that is worth a merge and in one that is not; in another segment what was deleted of them."""
    db.set(root_bytes=4096)
    db.create_table("t", SCHEMA, primary_key="k")
    files(db, *range(12))
    for number in range(12, 20, 2):
        files(db, number, number + 1)
    told = ", ".join(map(str, _DELETED))
    db.table("t").delete(f"v IN ({told})", mode="positions")
    files(db, 20)


def with_many_segments(db: Database) -> None:
    """The same, and so many more segments of files that with the next one they are worth a merge, too."""
    with_overlays(db)
    for number in range(21, 26):
        files(db, number)


SEGMENTS: tuple[Pair, ...] = (
    Pair("merge segments/append", with_segments, (merging(), append((7, 70, None))), quick=(0,)),
    Pair("positions/merge segments", with_overlays, (deleting_again(), merging()), quick=(0,), quick_fates=_LOST),
    Pair("merge segments/compact", with_overlays, (merging(), compacting()), quick=(0,), quick_fates=_LOST),
    Pair(
        "merge segments/add and merge segments",
        with_many_segments,
        (merging(), adding_before_merging(30)),
        quick_fates=(),
    ),
    Pair(
        "read-modify-write/read-modify-write, and segments",
        with_segments,
        (inserting(1), inserting(2)),
        quick_fates=(),
    ),
)
