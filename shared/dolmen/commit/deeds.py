"""Deeds: short descriptions of statements for the history. They contain no value of any row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dolmen.commit.draft import Draft
from dolmen.commit.statements.adopt import AdoptTable
from dolmen.commit.statements.background import Compact, MergeSegments, Resolve, SetProperties
from dolmen.commit.statements.base import Statement
from dolmen.commit.statements.erase import Erase
from dolmen.commit.statements.index_parts import PutIndexParts
from dolmen.commit.statements.insert import InsertRows
from dolmen.commit.statements.restore import CloneTable, Restore
from dolmen.commit.statements.rows import DeletePositions, Overwrite, Write
from dolmen.commit.statements.schema import AlterTable
from dolmen.commit.statements.tables import CreateTable, DropTable, RenameTable
from dolmen.commit.statements.tags import DropTag, PutCursor, PutTag
from dolmen.format.manifest import Deed

MOST_DEEDS = 4
MOST_NAMES = 4
MOST_CHARACTERS = 64
"""The most deeds in a commit, names in a deed, and characters in a name. A manifest holds 64 commits, so further
deeds and names are only counted, and a longer name is cut."""


def deed_of(statement: Statement, draft: Draft) -> Deed | None:
    """Describes a statement; None for background work that is of no interest. A deed of the database has the table "".

    Args:
        draft: the draft after the statement was applied.
    """
    match statement:
        case AdoptTable():
            return Deed(statement.name, "adopt")
        case CreateTable():
            return Deed(statement.name, "create")
        case DropTable():
            return Deed(statement.name, "drop")
        case RenameTable(to=to):
            return Deed(statement.name, "rename", (to,))
        case Overwrite():
            return Deed(statement.name, "overwrite")
        case Write(files=files, tombstones=tombstones) if files or tombstones:
            ids = dict.fromkeys(id_ for tombstone in tombstones for id_ in tombstone.columns)
            what = ("upsert" if files else "delete") if tombstones else "append"
            return Deed(statement.name, what, _names(statement, list(ids), draft))
        case InsertRows():
            return Deed(statement.name, "insert")
        case DeletePositions(vectors=vectors) if vectors:
            return Deed(statement.name, "delete", _names(statement, statement.columns, draft))
        case Erase(name=None):
            return Deed("", "forget")
        case Erase(tombstone=tombstone) if tombstone is not None:
            return Deed(statement.name or "", "erase", _names(statement, tombstone.columns, draft))
        case Restore():
            return Deed(statement.name or "", "restore", (f"version {statement.version}",))
        case CloneTable():
            return Deed(statement.name, "clone", (f"version {statement.version}",))
        case PutTag():
            return Deed("", "tag", (statement.tag, f"version {statement.value.version}"))
        case DropTag():
            return Deed("", "drop tag", (statement.tag,))
        case PutCursor():
            return Deed("", "cursor", (statement.cursor,))
        case AlterTable(changes=changes):
            return Deed(statement.name, "alter", tuple(name for change in changes for name in change.columns))
        case SetProperties():
            return Deed(statement.name or "", "set", tuple(statement.changes))
        case Resolve():
            return Deed(statement.name, "resolve")
        case Compact(fitting=fitting) if fitting:
            return Deed(statement.name, "compact")
        case MergeSegments():
            return Deed(statement.name or "", "merge")
        case PutIndexParts():
            return Deed(statement.name, "index")
    return None


def summarize(deeds: Iterable[Deed]) -> tuple[tuple[Deed, ...], int]:
    """Returns at most ``MOST_DEEDS`` different deeds for the manifest, and how many more there were."""
    once = list(dict.fromkeys(deeds))
    return tuple(map(_short, once[:MOST_DEEDS])), max(0, len(once) - MOST_DEEDS)


def _short(deed: Deed) -> Deed:
    over = tuple(name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 3]}..." for name in deed.over)
    return Deed(deed.table, deed.what, over[:MOST_NAMES], max(0, len(over) - MOST_NAMES))


def _names(statement: Statement, ids: Sequence[int], draft: Draft) -> tuple[str, ...]:
    entry = draft.tables.get(statement.name or "")
    columns = draft.segments.whole(entry).schema.by_id if entry else {}
    return tuple(columns[id_].name for id_ in ids if id_ in columns)
