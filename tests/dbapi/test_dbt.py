"""The project of docs/dbt.md, which dbt itself runs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DBT = ROOT / ".venv-dbt" / "bin" / "dbt"
PAGE = (ROOT / "docs" / "dbt.md").read_text()
FIRST = pa.table({"id": [1, 2, 3], "user_id": [7, 7, 8], "amount": [1.0, 2.0, 4.0]})


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    if not DBT.exists() and not os.environ.get("CI"):
        pytest.skip("make setup installs dbt into .venv-dbt")


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in re.findall(r"<!-- file: (\S+) -->\n\n```\w+\n(.*?)```", PAGE, re.DOTALL):
            self.write(name, text)
        self.db = dolmen.open(str(folder / "database"))
        events = self.db.create_table("events", FIRST, primary_key="id")
        events.append({"id": [4, 5], "user_id": [8, 9], "amount": [8.0, 0.5]})

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def build(self, *options: str) -> str:
        done = subprocess.run(
            [DBT, "build", "--profiles-dir", ".", *options],
            cwd=self.folder,
            env={**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "PYTHONPATH": str(ROOT / "shared")},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.stdout + done.stderr

    def rows(self, table: str, order_by: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.db.table(table).scan(order_by=order_by).to_arrow().to_pylist()
        return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("shop"))
    output = project.build()
    assert "Completed successfully" in output, output
    return project


def test_models_of_the_page_become_tables(built: Project) -> None:
    assert built.rows("totals", "user_id") == [
        {"user_id": 7, "events": 1, "amount": 2.0},
        {"user_id": 8, "events": 2, "amount": 12.0},
    ]
    assert built.db.table("totals").primary_key == ("user_id",)
    assert [row["id"] for row in built.rows("recent", "id")] == [4, 5]
    assert {"dbt: totals", "dbt: recent"} <= {commit.message for commit in built.db.history()}


def test_a_second_run_replaces_or_adds_and_new_columns_arrive(built: Project) -> None:
    built.db.table("events").append({"id": [6], "user_id": [7], "amount": [16.0]})
    model = (built.folder / "models" / "totals.sql").read_text()
    built.write("models/totals.sql", model.replace("SELECT user_id,", "SELECT user_id, max(id) AS latest,"))
    built.write(
        "models/nothing.sql",
        "{{ config(materialized='external', plugin='dolmen') }}\n"
        "SELECT * FROM {{ source('lake', 'events') }} WHERE id > 100",
    )
    built.write(
        "models/last.sql",
        "{{ config(materialized='external', plugin='dolmen', "
        "meta={'write': 'upsert', 'primary_key': 'id', 'partition_by': 'bucket[2](id)'}) }}\n"
        "SELECT id, amount FROM {{ source('lake', 'events') }} WHERE id >= 5",
    )
    output = built.build()
    assert "Completed successfully" in output, output
    assert [(row["user_id"], row["latest"]) for row in built.rows("totals", "user_id")] == [(7, 6), (8, 4)]
    assert [row["id"] for row in built.rows("recent", "id")] == [4, 4, 5, 5, 6]
    assert built.db.table("nothing").count() == 0
    assert [row["id"] for row in built.rows("last", "id")] == [5, 6]
    assert built.db.table("last").partition_by == ("bucket[2](id)",)
    assert built.db.verify(deep=True).ok


def test_a_mistake_is_said_by_its_name(built: Project) -> None:
    built.write(
        "models/wrong.sql",
        "{{ config(materialized='external', plugin='dolmen', meta={'write': 'insert'}) }} SELECT 1 AS id",
    )
    output = built.build("--select", "wrong")
    assert "ERROR" in output
    assert "upsert" in output
