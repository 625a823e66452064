"""Publishes tables at once after an erasure, so that Iceberg's readers do not see its rows until the next round."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dolmen.commit.context import Context
from dolmen.entries.segments.erasures_in_force import reaches
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import Error
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import TableSettings
from dolmen.iceberg.published_versions import pins_of, published_tables

if TYPE_CHECKING:
    from dolmen.iceberg.publication import IcebergPublication


@dataclass(frozen=True)
class ErasurePublications:
    """The result of publishing the tables in which rows were erased.

    Args:
        published: the publications that show the rows no more.
        failures: errors by table. The erasure stands, and the next round of maintenance publishes these tables.
        postponed: tables that are left to the next round, for lack of time.
        by_hand: tables that were published, and no longer have the setting ``iceberg``: readers of the publication see
            the rows until the table is published again, or collection deletes it.
    """

    published: tuple[IcebergPublication, ...] = ()
    failures: dict[str, Error] = field(default_factory=dict)
    postponed: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()


def publish_erasures(
    context: Context,
    ids: Collection[str],
    *,
    deadline: Callable[[], bool] = lambda: False,
    lookup_bytes: int | None = None,
) -> ErasurePublications:
    """Publishes the tables with the setting ``iceberg`` in which erasures have just been committed.

    Where no table has it, it makes no request.

    Args:
        ids: of the erasures.
        deadline: once it is true, no further publication is begun.
        lookup_bytes: see ``publish``.
    """
    cached = context.head.cached
    assert cached is not None
    manifest = cached.manifest
    published: list[IcebergPublication] = []
    failures: dict[str, Error] = {}
    postponed: list[str] = []
    asking, by_hand = _reached(context, manifest, ids)
    for name in asking:
        if deadline():
            postponed.append(name)
            continue
        from dolmen.iceberg.publication import publish  # imports fastavro

        try:
            published.append(publish(context, name, lookup_bytes=lookup_bytes))
        except Error as error:
            failures[name] = error
    return ErasurePublications(tuple(published), failures, tuple(postponed), by_hand)


def asks_for_publication(context: Context, manifest: Manifest, entry: TableEntry) -> bool:
    """Whether a table has the setting ``iceberg``. Costs no request unless it was published before and is idle.

    Args:
        entry: as the manifest has it. That of an idle table has no settings, but its pin tells that it was published.
    """
    may_be = entry.properties.get("iceberg") is not None or bool(pins_of(manifest, entry.uuid))
    return may_be and TableSettings.of(context.segments.whole(entry)).iceberg is not None


def _reached(context: Context, manifest: Manifest, ids: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tables that erasures reach: those with the setting ``iceberg``, and others that were published by hand."""
    published = published_tables(manifest)
    asking, by_hand = [], []
    for name, entry in manifest.tables.items():
        if asks_for_publication(context, manifest, entry):
            asking.append(name)
        elif entry.uuid in published:
            by_hand.append(name)
    if not (asking or by_hand) or not ids:
        return (), ()
    erasures = [each for each in erasures_of(manifest, context.segments) if each.id in ids]

    def reached(names: list[str]) -> tuple[str, ...]:
        return tuple(name for name in names if any(reaches(each, manifest.tables[name]) for each in erasures))

    return reached(asking), reached(by_hand)
