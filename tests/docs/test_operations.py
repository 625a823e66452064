"""docs/operations.md names every alarm, and its two scripts do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen.format.layout import POINTER, Pointer, seal, unseal
from dolmen.format.manifest import Manifest
from dolmen.service.functions import deliveries
from dolmen.service.handover import emr_serverless
from dolmen.store.local_store import LocalStore
from support.template import TEMPLATE

SCHEMA = pa.schema([("id", pa.int64())])
PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
INGEST = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text()


def script(name: str, tmp_path: Path) -> Path:
    [text] = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if text.startswith(f'"""{name}:')]
    path = tmp_path / name
    path.write_text(text)
    return path


def run(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(path), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Some twenty versions, with a delete and segments."""
    db = dolmen.open(tmp_path / "database")
    db.set(root_bytes="4KB")
    table = db.create_table("events", SCHEMA, primary_key="id")
    for n in range(20):
        table.append([{"id": n}, {"id": n + 100}])
    table.delete("id = 3")
    return tmp_path / "database"


def ids(url: Path) -> list[int]:
    found: list[int] = dolmen.open(url).table("events").to_arrow().column("id").to_pylist()
    return sorted(found)


def test_every_alarm_is_described_and_no_other() -> None:
    alarms = {name for name, each in TEMPLATE["Resources"].items() if each["Type"] == "AWS::CloudWatch::Alarm"}
    table = PAGE.partition("\n## Alarms\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+Alarm)`", row.split("|")[1])} == alarms


def test_parameters_and_outputs_that_the_page_names_are_there() -> None:
    known = {*TEMPLATE["Parameters"], *TEMPLATE["Outputs"], *TEMPLATE["Resources"]}
    named = set(re.findall(r"`((?:Ingest|Delete|Compact|Gc|Landing|Database|Maintenance)[A-Z]\w*)(?:=\w+)?`", PAGE))
    named |= set(re.findall(r"`(\w+(?:Arn|Uri|Url|Ids|Endpoint|Concurrency))(?:=[^`]*)?`", PAGE))
    assert named - known == set()


@pytest.mark.slow
def test_a_copy_made_while_others_write_is_whole(tmp_path: Path, database: Path) -> None:
    """The pointer is read first: what is committed behind the listing's back is not half in the copy."""
    path = script("backup.py", tmp_path)
    late = "pointer = source.get(POINTER).body\n"
    write = f"import dolmen; dolmen.open({str(database)!r}).table('events').append([{{'id': 555}}])\n"
    text = path.read_text()
    assert late in text
    path.write_text(text.replace(late, late + write))
    done = run(path, database, tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert 555 in ids(database)
    assert ids(tmp_path / "copy") == [id_ for id_ in ids(database) if id_ != 555]
    assert dolmen.verify(str(tmp_path / "copy"), deep=True).findings == ()

    again = run(script("backup.py", tmp_path), database, tmp_path / "copy")
    assert again.returncode == 0, again.stderr
    assert ids(tmp_path / "copy") == ids(database)
    assert dolmen.verify(str(tmp_path / "copy"), deep=True).findings == ()


@pytest.mark.parametrize("loss", ["gone", "damaged"])
def test_a_lost_pointer_is_written_anew(tmp_path: Path, database: Path, loss: str) -> None:
    before, pointer = ids(database), database / POINTER
    body = pointer.read_bytes()
    if loss == "damaged":
        pointer.write_bytes(body[:40])
    else:
        pointer.unlink()
    done = run(script("repoint.py", tmp_path), database)
    assert done.returncode == 0, done.stderr
    assert pointer.read_bytes() == body
    assert ids(database) == before


@pytest.mark.slow
def test_of_several_manifests_of_the_last_version_one_must_be_chosen(tmp_path: Path, database: Path) -> None:
    before = ids(database)
    store = LocalStore(database)
    newest = Pointer.decode(store.get(POINTER).body, POINTER).manifest
    kept = Manifest.decode(store.get(newest).body, newest)
    lost = re.sub(r"-\w{8}\.json", "-00000000.json", newest)
    document = unseal(store.get(newest).body, newest).replace(kept.commit_id.encode(), b"f" * 32)
    document = document.replace(kept.attempt.encode(), b"00000000")
    store.put(lost, seal(document))
    (database / POINTER).unlink()
    path = script("repoint.py", tmp_path)
    asked = run(path, database)
    assert asked.returncode == 1
    assert "commit" in asked.stderr
    assert asked.stdout.count(f"after {kept.previous}") == 2
    assert run(path, database, newest).returncode == 0
    assert ids(database) == before
    assert dolmen.verify(str(database)).findings == ()


def test_for_how_long_a_file_can_overtake_an_erasure_is_as_the_template_and_the_code_have_it() -> None:
    resources, parameters = TEMPLATE["Resources"], TEMPLATE["Parameters"]
    day = 24 * 3600
    assert resources["IngestQueue"]["Properties"]["MessageRetentionPeriod"] == 4 * day
    assert resources["IngestDeadLetters"]["Properties"]["MessageRetentionPeriod"] == 14 * day
    assert parameters["IngestWindowSeconds"]["Default"] == 10
    assert int(parameters["IngestTimeout"]["Default"]) == 5 * 60
    assert TEMPLATE["Mappings"]["VisibilityTimeout"]["300"]["Seconds"] == 31 * 60
    assert (emr_serverless.DEFAULT_TIMEOUT_MINUTES, emr_serverless._QUEUED_MINUTES) == (12 * 60, 12 * 60)
    assert emr_serverless.MAX_ATTEMPTS == 2
    assert resources["HandedAgeAlarm"]["Properties"]["Threshold"] == 6 * 3600
    assert parameters["LandingExpireDays"]["Default"] == 7
    assert parameters["LandingOverwrittenDays"]["Default"] == 30
    waits = [
        min(deliveries.MAX_WAIT_SECONDS, deliveries.FIRST_WAIT_SECONDS * 2**n)
        for n in range(deliveries.MAX_FAILURES - 1)
    ]
    assert 2.5 * 3600 < sum(waits) < 3 * 3600
    assert (deliveries.MAX_FAILURES, deliveries.MAX_CRASHES) == (16, 4)
    part = INGEST[INGEST.index("## A file that overtakes an erasure") : INGEST.index("## Settings")]
    for figure in ("4 days", "14 days", "3 hours", "16 times", "31 minutes", "12 hours", "35 days", "7 days"):
        assert figure in part
