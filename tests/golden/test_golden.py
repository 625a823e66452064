"""What older versions of dolmen wrote is still readable: each database below tests/golden shows its rows of that time.

Two readers read them: dolmen, and examples/reader.py. ``make.py`` made the databases; it never changes one.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

import dolmen
from dolmen.format.manifest import ADOPTED_FILES, SegmentKind
from support.golden import (
    FOLDER,
    MOST_BYTES,
    names,
    shown_by_dolmen,
    shown_by_second_reader,
    stored_lines,
    to_lines,
    unpack,
)
from support.second_reader import load_reader


def write(objects: dict[str, bytes], directory: Path) -> Path:
    """Objects as files."""
    for key, body in objects.items():
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_dolmen_shows_the_rows_that_were_stored(name: str, tmp_path: Path) -> None:
    stored = stored_lines(name)
    versions = sorted({json.loads(line)["version"] for line in stored.splitlines()})
    db = dolmen.open(str(write(unpack(name), tmp_path)))
    assert to_lines(shown_by_dolmen(db, versions)) == stored
    report = db.verify(deep=True, all_versions=True)
    assert report.ok, report


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_the_second_reader_shows_the_rows_that_were_stored(name: str) -> None:
    assert to_lines(shown_by_second_reader(unpack(name))) == stored_lines(name)


@pytest.mark.parametrize("name", names())
def test_a_database_is_small_and_its_names_are_valid_everywhere(name: str) -> None:
    assert re.fullmatch(r"[a-z][a-z-]{0,40}", name)
    assert (FOLDER / f"{name}.tar.gz").stat().st_size <= MOST_BYTES
    assert (FOLDER / f"{name}.jsonl").exists()


def test_every_database_has_a_maker_which_never_makes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    made = importlib.import_module("make")
    assert sorted(made.CASES) == names()
    before = {path: path.read_bytes() for path in FOLDER.iterdir() if path.is_file()}
    made.main()
    assert {path: path.read_bytes() for path in FOLDER.iterdir() if path.is_file()} == before


def test_all_that_the_format_has_occurs_in_some_database() -> None:
    features, kinds, tombstones, prefixes, members = set(), set(), set(), set(), set()
    reader = load_reader()
    for objects in map(unpack, names()):
        prefixes |= {key.partition("/")[0] for key in objects}
        for key in (key for key in objects if key.startswith("manifest/")):
            manifest = reader.unseal(objects[key], key)
            features |= set(manifest.get("features", ()))
            members |= set(manifest)
            kinds |= {segment["kind"] for segment in manifest.get("segments", ())}
            for entry in manifest.get("tables", {}).values():
                members |= set(entry) | set(entry["schema"])
                kinds |= {segment["kind"] for segment in entry.get("segments", ())}
                kinds |= {"table"} if "section" in entry else set()
                for tombstone in entry.get("tombstones", ()):
                    is_inline = "predicate" in tombstone or "values" in tombstone
                    tombstones.add((tombstone["kind"], is_inline))
    assert features == reader.FEATURES
    assert ADOPTED_FILES in features
    assert kinds == set(SegmentKind.__args__)
    assert tombstones == {(kind, is_inline) for kind in ("where", "keys") for is_inline in (True, False)}
    assert prefixes >= {"_latest_manifest", "manifest", "data", "tombstone", "segment", "receipt", "intent", "iceberg"}
    expected = {"applied", "cursors", "erasures", "history", "message", "released", "rewritten", "tags", "horizon"}
    expected |= {"dropped", "former", "mapping", "origins", "overlays", "removed", "sequences", "source"}
    assert members >= expected
