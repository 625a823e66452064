"""Checks of a small real database: everything together."""

from __future__ import annotations

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.maintenance.verify.verification import verify
from dolmen.service.check_store.contract import Check, Need, Sandbox, collector, equal, expect

CHECKS: list[Check] = []
check = collector(CHECKS)

_WRITERS = 8
_SCHEMA = pa.schema([("id", pa.int64()), ("writer", pa.int64())])


@check("dolmen loses or doubles rows on this store: do not use it, and please report it", needs=[Need.LIST])
def a_database_keeps_what_many_writers_commit(sandbox: Sandbox) -> None:
    """Concurrent writers append and delete while readers read. In the end, each row is there once or not at all."""
    commits = sandbox.load.commits
    runtime = Runtime()
    Database(sandbox.store, runtime).create_table("events", _SCHEMA, primary_key="id")

    def write(writer: int) -> int:
        table = Database(sandbox.again(None), runtime).table("events")
        for number in range(commits):
            sandbox.go_on()
            id_ = writer * commits + number
            table.append(pa.table({"id": [id_, -1 - id_], "writer": [writer, writer]}, schema=_SCHEMA))
            if number % 3 == 2:
                table.delete({"id": id_})
            seen = set(table.scan(columns=["id"], where={"writer": writer}).to_arrow()["id"].to_pylist())
            mine = _ids(writer, commits, number + 1)
            expect(seen == mine, f"writer {writer} does not read what it wrote in {number + 1} commits: {seen ^ mine}")
        return commits + commits // 3

    written = sum(sandbox.at_once(write, _WRITERS))
    database = Database(sandbox.again(None), runtime)
    found = sorted(database.table("events").to_arrow()["id"].to_pylist())
    expected = sorted(id_ for writer in range(_WRITERS) for id_ in _ids(writer, commits, commits))
    expect(found == expected, f"{len(found)} rows are there and {len(expected)} should be")
    equal(database.version, written + 1, "the version")
    report = verify(database._context, deep=True, all_versions=True)
    expect(report.ok, f"verify finds {'; '.join(map(str, report.errors[:3]))}")


def _ids(writer: int, commits: int, done: int) -> set[int]:
    """The rows of a writer after some commits: two per commit, less one that each third commit deleted."""
    made = range(writer * commits, writer * commits + done)
    return {-1 - id_ for id_ in made} | {id_ for number, id_ in enumerate(made) if number % 3 != 2}
