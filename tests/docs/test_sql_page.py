"""The table of docs/sql.md: each statement does what the method beside it does."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Expression

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()


def state(db: dolmen.Database) -> Any:
    found = {}
    for name in db.tables():
        shown = db.table(name).describe()
        deletes = [each["rows"] for each in shown.pop("unresolved_deletes")]
        shown.pop("bytes")
        found[name] = (shown, deletes, db.table(name).to_arrow().to_pylist())
    return found, [(each.operation, each.counts, each.did) for each in db.history()]


@pytest.mark.slow
def test_statements_do_what_the_methods_do() -> None:
    section = PAGE.partition("## Statements and methods")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `([^`]+)` \| `([^`]+)`", section, re.MULTILINE)
    assert len(lines) > 20
    by_sql, by_method = dolmen.open("memory://page-sql"), dolmen.open("memory://page-methods")
    for statement, call in lines:
        by_sql.sql(statement)
        eval(call, {"db": by_method, "pa": pa, "date": date, "Expression": Expression})
        assert state(by_sql) == state(by_method), statement
