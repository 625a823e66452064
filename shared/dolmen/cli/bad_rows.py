"""Bad rows of files that ``append`` reads: they are put aside, and the commit holds the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from dolmen.base.units import count_text
from dolmen.cli.inputs import STANDARD_INPUT, Input
from dolmen.cli.output import warn
from dolmen.errors import InputError
from dolmen.format.manifest import TableEntry
from dolmen.ingest.formats.source_file import BadRow

SUFFIX = ".rejected.jsonl"


@dataclass
class BadRowFiles:
    """The files that bad rows are written to, each with a report beside it.

    Args:
        paths: by the name of the file that has the rows.
        files: those written: file, rows, and where they are.
    """

    paths: dict[str, Path]
    max_rows: int
    files: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, names: Sequence[str], on_bad_row: str, max_rows: int, rejects: Path | None) -> BadRowFiles | None:
        """None if bad rows are errors. Raises InputError for options that do not go together."""
        if on_bad_row not in ("reject", "quarantine"):
            raise InputError(f"--on-bad-row {on_bad_row!r}: give reject or quarantine")
        if on_bad_row == "reject":
            if rejects is not None:
                raise InputError("--rejects is for rows that are put aside: give --on-bad-row quarantine, too")
            return None
        paths = {name: _path_for(name, rejects, alone=len(names) == 1) for name in names}
        if len({*paths.values()}) < len(paths):
            raise InputError("two files have one name, so their bad rows would go to one file: append them one by one")
        return cls(paths, max_rows)

    def ignore(self, bad: BadRow) -> None:
        """Ignores a bad row while types are inferred; it is counted when rows are read."""

    def add(
        self,
        name: str,
        file: Input,
        entry: TableEntry,
        write: Callable[[pa.RecordBatchReader], object],
        keys: Sequence[str],
        url: str,
        new_columns: str,
    ) -> None:
        """Writes the good rows of a file to the table, and the bad ones to their own file."""
        from dolmen.ingest.rejects import Quarantine, header_of

        with Quarantine(name, self.max_rows, "--max-bad-rows") as quarantine:
            write(file.read(entry, quarantine.add, keys, new_columns))
            if quarantine.count:
                path, source = self.paths[name], file.source(entry)
                quarantine.keep_in(path, source, header_of(source), {"url": url})
                self.files.append({"file": name, "rows": quarantine.count, "to": str(path)})

    def report(self) -> None:
        """Says how many rows were put aside, and where they are."""
        for each in self.files:
            warn(f"{count_text(each['rows'], 'row')} of {each['file']} cannot be read, and went to {each['to']}")


def _path_for(name: str, rejects: Path | None, *, alone: bool) -> Path:
    is_local = name != STANDARD_INPUT and "://" not in name
    if rejects is None:
        if not is_local:
            raise InputError(f"{name!r} has no directory for its bad rows: name a file for them, --rejects")
        return Path(name + SUFFIX)
    if alone and not rejects.is_dir():
        return rejects
    if not rejects.is_dir():
        raise InputError(f"--rejects {str(rejects)!r} is no directory: the bad rows of several files need one")
    return rejects / ((name.rsplit("/", 1)[-1] if name != STANDARD_INPUT else "standard-input") + SUFFIX)
