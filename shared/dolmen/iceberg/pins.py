"""Pins: tags of the database that keep the versions that are published.

A version is pinned before it is published, and the pin of the version before it goes afterwards. So at no point can
collection delete what the newest publication names.
"""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.commit.context import Context
from dolmen.commit.draft import Draft
from dolmen.commit.loop import submit
from dolmen.commit.statements.tags import PutTag
from dolmen.format.manifest import Manifest
from dolmen.format.tags import RESERVED_TAGS, Tag

OPERATION = "publish"


def pin_name(table: str, version: int) -> str:
    """``iceberg.<uuid of the table>.<version>``."""
    return f"{RESERVED_TAGS}{table}.{version}"


def pins_of(manifest: Manifest, table: str) -> dict[int, str]:
    """The names of a table's pins by their version."""
    return {tag.version: name for name, tag in manifest.tags.items() if name.startswith(f"{RESERVED_TAGS}{table}.")}


def published_tables(manifest: Manifest) -> set[str]:
    """The uuids of the tables that have pins, dropped ones included."""
    return {
        name.removeprefix(RESERVED_TAGS).partition(".")[0] for name in manifest.tags if name.startswith(RESERVED_TAGS)
    }


def pin_version(context: Context, manifest: Manifest, table: str) -> None:
    """Keeps a version with all that it needs; makes no commit if it is pinned already.

    Raises:
        VersionExpiredError: it has expired.
        LimitError: there are too many tags.
    """
    tag = Tag(manifest.version, manifest.key, manifest.created_at)
    submit(context.head, OPERATION, [PutTag(pin_name(table, manifest.version), tag, move=True)])


def unpin_versions(context: Context, table: str, before: int | None) -> None:
    """Removes the pins of a table's versions before this one, or all of them; makes no commit if there are none."""
    submit(context.head, OPERATION, [UnpinVersions(table, before)])


@dataclass(frozen=True)
class UnpinVersions:
    """Removes pins of versions that are no longer published.

    Args:
        table: the table's uuid.
        before: the published version; None for all pins.
    """

    table: str
    before: int | None
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Removes the tags, as far as they are there."""
        prefix = f"{RESERVED_TAGS}{self.table}."
        for name, tag in list(draft.tags.items()):
            if name.startswith(prefix) and (self.before is None or tag.version < self.before):
                draft.put_tag(name, None)
