"""How far a publication is behind its table, as the newest manifest alone tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dolmen.base.units import SECOND_US
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.iceberg.pins import pins_of

_CLOCKS_DIFFER_US = 10 * SECOND_US
"""The timestamp of a commit may be so far ahead of the time of its version, in microseconds."""
_SHOWS_THE_SAME = frozenset(("set", "resolve", "compact", "index", "merge"))


@dataclass(frozen=True)
class PublicationLag:
    """The place of a publication.

    Args:
        version: the version that all readers see, Glue's included, or a later one; 0 if there is none yet.
        lag_us: age of the oldest known change that is not published, at the newest commit, in microseconds; 0 if none
            is known.
    """

    version: int
    lag_us: int


def publication_lag(manifest: Manifest, name: str, entry: TableEntry) -> PublicationLag | None:
    """The lag of a table's publication; None for a table that is not published after maintenance, and never was.

    Args:
        entry: the table's whole entry in the manifest.
    """
    pins = pins_of(manifest, entry.uuid)
    if not pins and entry.properties.get("iceberg") is None:
        return None
    version = min(pins, default=0)  # an earlier one keeps its pin until the publication after it is done
    created_at = manifest.tags[pins[version]].created_at if pins else 0
    oldest = min(_changes(manifest, name, entry, version, created_at), default=manifest.created_at)
    return PublicationLag(version, max(0, manifest.created_at - oldest))


def _changes(manifest: Manifest, name: str, entry: TableEntry, version: int, created_at: int) -> Iterator[int]:
    """Yields times of changes since a version: of commits in the manifest's history, or of the newest row or delete."""
    commits = [*manifest.history, manifest.as_history()]
    for commit in commits:
        if commit.version > version and any(
            deed.table == name and deed.what not in _SHOWS_THE_SAME for deed in commit.did
        ):
            yield commit.created_at
    if commits[0].version > version:  # the history in the manifest does not reach back to that version
        newest = max(
            [entry.last_delete_ts, entry.schema.altered_ts]
            + [file.greatest_row_ts for file in entry.files]
            + [segment.greatest for segment in entry.segments_of("files")]
        )
        if newest > created_at + _CLOCKS_DIFFER_US:
            yield newest
