"""Changes and removes data files in a table's entry, whether the files' entries are inline or in segments.

A file in a segment is changed by an inline entry: an overlay gives it a newer pair (``applied_through``, vector), and
its uuid in ``removed`` takes it away. No segment is rewritten for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from dolmen.format.entries import DataFile, Overlay
from dolmen.format.manifest import TableEntry


def with_pairs(entry: TableEntry, files: Iterable[DataFile]) -> TableEntry:
    """The table's entry with the pairs of these files.

    ``applied_through`` never falls: a file of this very commit may have been prepared under an earlier timestamp.

    Args:
        files: effective entries of files that the table has.
    """
    changed = {file.uuid: file for file in files}
    if not changed:
        return entry
    inline: list[DataFile] = []
    for file in entry.files:
        newer = changed.pop(file.uuid, None)
        if newer is not None:
            through = max(file.applied_through, newer.applied_through)
            file = msgspec.structs.replace(file, applied_through=through, vector=newer.vector, erasing=newer.erasing)
        inline.append(file)
    kept = tuple(overlay for overlay in entry.overlays if overlay.file not in changed)
    added = tuple(Overlay(uuid, file.applied_through, file.vector, file.erasing) for uuid, file in changed.items())
    return msgspec.structs.replace(entry, files=tuple(inline), overlays=(*kept, *added))


def without_files(entry: TableEntry, uuids: Collection[str]) -> TableEntry:
    """The table's entry without these files. It must have all of them."""
    spilled = dict.fromkeys(uuids)
    inline: list[DataFile] = []
    for file in entry.files:
        if file.uuid in spilled:
            del spilled[file.uuid]
        else:
            inline.append(file)
    return msgspec.structs.replace(
        entry,
        files=tuple(inline),
        overlays=tuple(overlay for overlay in entry.overlays if overlay.file not in spilled),
        removed=(*entry.removed, *spilled),
    )
