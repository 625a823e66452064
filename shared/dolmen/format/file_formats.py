"""The formats of files that rows come from and go to: one entry for each, and the compressions around them.

``dolmen.ingest.formats.formats`` has the reader of each, and ``dolmen.ingest.formats.export`` the writer;
``tests/project/test_file_formats.py`` checks that none is missing. This module imports nothing of dolmen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FileKind = Literal["csv", "tsv", "jsonl", "parquet", "arrow", "avro"]
Compression = Literal["gzip", "zstd", "bz2"]


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One format of files.

    Args:
        kind: its name, in properties and options.
        endings: of the names of such files, in lower case.
        is_text: whether files are lines of text, which may be compressed as a whole when they are written, and do not
            hold maps.
        delimiter: the text between the fields of a line, unless an option says otherwise; None where there is none.
        is_written: whether dolmen writes such files; all are read.
        aliases: more names that the command line takes for it.
    """

    kind: FileKind
    endings: tuple[str, ...]
    is_text: bool = False
    delimiter: str | None = None
    is_written: bool = True
    aliases: tuple[str, ...] = ()


FORMATS: dict[FileKind, FileFormat] = {
    known.kind: known
    for known in (
        FileFormat("csv", (".csv",), is_text=True, delimiter=","),
        FileFormat("tsv", (".tsv",), is_text=True, delimiter="\t"),
        FileFormat("jsonl", (".jsonl", ".ndjson", ".json"), is_text=True, aliases=("json",)),
        FileFormat("parquet", (".parquet",)),
        FileFormat("arrow", (".arrow", ".arrows", ".feather", ".ipc")),
        FileFormat("avro", (".avro",), is_written=False),
    )
}
ENDINGS: dict[str, FileKind] = {ending: known.kind for known in FORMATS.values() for ending in known.endings}
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""The compressions that a file of any format may have around it, by the ending that follows the format's."""


def kind_of(name: str) -> FileKind | None:
    """The format of this name, or of this alias; None if there is none."""
    return next((known.kind for known in FORMATS.values() if name in (known.kind, *known.aliases)), None)


def listed(kinds: list[FileKind] | None = None, *, last: str = "or") -> str:
    """Names of formats as a sentence lists them: ``csv, tsv or jsonl``. None lists them all."""
    *others, end = kinds or list(FORMATS)
    return f"{', '.join(others)} {last} {end}"


WRITTEN = [known.kind for known in FORMATS.values() if known.is_written]
