"""Which objects may be left once collection has done its work."""

from __future__ import annotations

from pathlib import Path

from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.format.layout import POINTER
from dolmen.maintenance.gc.mark import needed_keys


def check(db: Database, directory: Path) -> tuple[int, list[str]]:
    """Objects that a commit once named go when no kept version names them any more; the others are young orphans.

    Args:
        directory: where readers have noted what commits had named.

    Returns:
        how many objects there are, and what is wrong.
    """
    horizon = db.history()[-1].version
    kept: set[str] = {POINTER}
    for version in range(horizon, db.refresh() + 1):
        manifest = db.at(version).manifest
        kept.add(manifest.key)
        kept.update(needed_keys(manifest, context_of(db).segments))
    there = {info.key for info in context_of(db).store.list("")}
    named = {line for path in directory.glob("seen-*.txt") for line in path.read_text().splitlines()}
    found = [f"unreadable: {key} is needed, and is not there" for key in sorted(kept - there)]
    found += [f"left over: {key} was dropped by versions that have expired" for key in sorted((there - kept) & named)]
    return len(there), found
