"""Databases that were written once, with their rows: how they are stored below tests/golden.

Of each database there are two files: ``NAME.tar.gz`` has its objects, and ``NAME.jsonl`` a line for each table of each
kept version, with its columns and rows, or the version whose rows it still has.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dolmen import Database
from support.second_reader import columns_of, load_reader, rows_of

FOLDER = Path(__file__).parents[1] / "golden"
MOST_BYTES = 50_000
"""The size of a database, packed."""


def names() -> list[str]:
    """The databases that there are."""
    return sorted(path.name.removesuffix(".tar.gz") for path in FOLDER.glob("*.tar.gz"))


def pack(objects: Mapping[str, bytes]) -> bytes:
    """Objects as an archive. The same objects make the same archive."""
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for key, body in sorted(objects.items()):
            member = tarfile.TarInfo(key)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return packed.getvalue()


def unpack(name: str) -> dict[str, bytes]:
    """The objects of a database by key."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive if member.isfile()]
        return {key: stream.read() for key, stream in members if stream is not None}


def shown_by_dolmen(db: Database, versions: list[int]) -> list[dict[str, Any]]:
    """The tables of versions with their columns and rows."""
    return [
        _shown(version, name, db.at(version).table(name).to_arrow())
        for version in versions
        for name in db.at(version).tables()
    ]


def shown_by_second_reader(objects: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The same as the second reader shows it, for all versions that are kept."""
    reader = load_reader().Database(objects.__getitem__)
    return [
        _shown(version, name, reader.rows(name, version))
        for version in reader.versions()
        for name in reader.tables(version)
    ]


def _shown(version: int, name: str, table: Any) -> dict[str, Any]:
    return {"version": version, "table": name, "columns": columns_of(table), "rows": rows_of(table)}


def to_lines(shown: list[dict[str, Any]]) -> str:
    """Tables as lines; rows that are those of an earlier line are not repeated."""
    lines, last = [], {}
    for each in shown:
        known = last.setdefault(each["table"], each)
        if known is not each and (known["columns"], known["rows"]) == (each["columns"], each["rows"]):
            lines.append({"version": each["version"], "table": each["table"], "as_in": known["version"]})
        else:
            last[each["table"]] = each
            lines.append({**each, "rows": [json.loads(row) for row in each["rows"]]})
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def stored_lines(name: str) -> str:
    """The lines of a database."""
    return (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
