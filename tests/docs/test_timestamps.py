"""docs/timestamps.md: the example runs, and the table shows what its manifests hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "timestamps.md").read_text()
HEADER = (
    "| version | what | files | tombstones | `row_ts` | `applied_through` | `last_delete_ts` | `unseen_delete_ts` "
    "| `altered_ts` | `added_ts` of note | `widened_ts` of amount |"
)


@pytest.mark.slow
def test_the_table_shows_what_the_manifests_of_the_example_hold(tmp_path: Path) -> None:
    found = re.search(r"<!-- example: timestamps -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    subprocess.run([sys.executable, "-c", found[1]], cwd=tmp_path, check=True, timeout=120)
    paths = sorted((tmp_path / "timestamps" / "manifest").iterdir())
    manifests = [json.loads(path.read_text()) for path in paths]
    names = {manifest["commit_ts"]: f"T{number}" for number, manifest in enumerate(manifests, start=1)}
    lines = [HEADER, "|---" * HEADER.count(" | ") + "|---|", *(row(manifest, names) for manifest in manifests)]
    assert "\n".join(lines) in PAGE


def row(manifest: dict[str, Any], names: dict[int, str]) -> str:
    entry = manifest["tables"]["events"]
    files, schema = entry.get("files", []), entry["schema"]
    first = files[0] if files else {}
    fields = {field["name"]: field for field in schema["fields"]}
    bounds = first.get("row_ts_bounds")
    cells = [
        str(manifest["version"]),
        manifest["operation"],
        str(len(files)),
        ", ".join(names[tombstone["ts"]] for tombstone in entry.get("tombstones", [])),
        f"null, {names[bounds[0]]} to {names[bounds[1]]}" if bounds else names.get(first.get("row_ts"), ""),
        names.get(first.get("applied_through"), ""),
        names.get(entry.get("last_delete_ts"), ""),
        names.get(entry.get("unseen_delete_ts"), ""),
        names.get(schema.get("altered_ts"), ""),
        names.get(fields.get("note", {}).get("added_ts"), ""),
        names.get(fields["amount"].get("widened_ts"), ""),
    ]
    return "| " + " | ".join(cells) + " |"
