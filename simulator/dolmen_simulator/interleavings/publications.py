"""Pairs with a publication as Iceberg, beside another one, background work, an erasure, and changes of the table."""

from __future__ import annotations

from dolmen.api.database import Database
from dolmen.iceberg.publication import publish
from dolmen_simulator.interleavings.checks import Pair, PairedCall, Row, arrow
from dolmen_simulator.interleavings.columns import add_column
from dolmen_simulator.interleavings.erasures import erase, restore
from dolmen_simulator.interleavings.pairs import append, one_table
from dolmen_simulator.interleavings.upkeep import EXPIRING_SOON, compaction, one_collection, upkeep

_PUBLISHED: tuple[Row, ...] = ((1, 10, None), (3, 30, None))


def publication() -> PairedCall:
    """Publishes the table."""
    return upkeep("publish", lambda peer: publish(peer.context, "t"))


def published_table(db: Database, version: str = "v2") -> None:
    """Makes a table that is published with a hidden row, and has changed since."""
    one_table(db)
    table = db.table("t")
    table.delete("k = 2")
    table.set(iceberg=version, iceberg_snapshots="kept")
    table.publish_iceberg()
    table.append(arrow([(4, 40, None)]))
    table.delete("k = 3")


def published_table_with_vectors(db: Database) -> None:
    """Makes the same in v3."""
    published_table(db, "v3")


def restored_table(db: Database) -> None:
    """Makes a table that hides as many rows as when it was published, but others."""
    published_table(db, "v3")
    db.table("t").restore(2)
    db.table("t").set(iceberg="v3", iceberg_snapshots="kept")  # the settings were restored, too
    db.table("t").delete("k = 3")


def twice_published_table(db: Database) -> None:
    """Makes a table with versions and publications that expire, in v3, of which the newest delete is not published.

    Of one file the delete leaves no row. Of the other the newest publication has a vector, which the next one needs.
    """
    published_table(db)
    db.table("t").set(iceberg="v3", iceberg_snapshots="newest")
    db.table("t").publish_iceberg()
    db.set(**EXPIRING_SOON)
    db.table("t").delete("k = 4")


def published_segment(db: Database) -> None:
    """Makes a table that is published with a segment of files, of which one is wholly deleted since, and a column has
    another name."""
    db.set(root_bytes="4KB")
    one_table(db)
    table = db.table("t")
    for k in range(10, 30):
        table.append(arrow([(k, k, None)]))
    table.delete("k = 2", mode="positions")
    db.merge()
    table.set(iceberg="v3")
    table.publish_iceberg()
    table.delete("k = 12")
    table.rename_column("t", "at")


PUBLICATIONS: tuple[Pair, ...] = (
    Pair("publish/publish", published_table, (publication(), publication()), quick=(0,)),
    Pair("publish/append", restored_table, (publication(), append((5, 50, None)))),
    Pair(
        "publish/GC",
        twice_published_table,
        (publication(), one_collection()),
        hours=5,
        quick=(0,),
        quick_fates=(),
    ),
    Pair("publish/erase", published_table, (publication(), erase()), quick=(0,), quick_fates=()),
    Pair("publish/compact", published_table_with_vectors, (publication(), compaction()), quick=(0,)),
    Pair("publish/add column", published_segment, (publication(), add_column()), quick=(0,)),
    Pair("publish/add column in v2", published_table, (publication(), add_column()), quick=(0,)),
    Pair("publish/restore", published_table, (publication(), restore(_PUBLISHED, 4)), quick=(0,)),
)
