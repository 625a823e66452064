"""A replica in a DuckDB file, kept up to date from the change feed: each commit is applied once, despite crashes.

    python examples/replica.py DATABASE REPLICA.duckdb orders customers           once
    python examples/replica.py DATABASE REPLICA.duckdb orders --queue URL         at each event of the pointer

It needs tables with a primary key, dolmen[sql], and for --queue an SQS queue that S3 tells of the database's pointer
(docs/changes.md). Its position is a cursor of the database, so that no change expires before it has arrived here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

import boto3
import duckdb
import pyarrow as pa

import dolmen
from dolmen.api.database import Database
from dolmen.errors import VersionExpiredError

FEED = ("_change", "_version", "_commit_ts")


def refresh(db: Database, replica: duckdb.DuckDBPyConnection, tables: Sequence[str], name: str = "replica") -> int:
    """Brings all tables of the replica to the newest version, together. Returns the version.

    The replica knows its version itself, in the same transaction as its rows. So a run that died before it moved the
    cursor is not applied twice.
    """
    cursor = db.cursor(name)
    until = db.at(cursor.until)
    replica.execute("CREATE TABLE IF NOT EXISTS dolmen_replica (name VARCHAR PRIMARY KEY, version BIGINT)")
    replica.execute("ALTER TABLE dolmen_replica ADD COLUMN IF NOT EXISTS identity VARCHAR")
    rows = replica.execute("SELECT name, version, identity FROM dolmen_replica").fetchall()
    known = {table: (version, identity) for table, version, identity in rows}
    replica.begin()
    try:
        for table in tables:
            version, identity = known.get(table, (0, ""))
            now = until.table(table).identity()  # another table, or other columns, under the same names?
            if now != identity or not _go_on(replica, db, table, version, until):
                _copy(replica, until.table(table).scan().to_reader(), table)
            replica.execute("INSERT OR REPLACE INTO dolmen_replica VALUES (?, ?, ?)", [table, until.version, now])
        replica.commit()
    except BaseException:
        replica.rollback()
        raise
    cursor.reset(until.version)  # whether the tables' changes were applied, or they were copied as a whole
    return until.version


def _copy(replica: duckdb.DuckDBPyConnection, rows: pa.RecordBatchReader, table: str) -> None:
    """Copies a whole table: at first, when it or its columns were replaced, or when the replica comes too late."""
    replica.register("incoming", rows)
    replica.execute(f"CREATE OR REPLACE TABLE {_quoted(table)} AS SELECT * FROM incoming")
    replica.unregister("incoming")


def _go_on(replica: duckdb.DuckDBPyConnection, db: Database, table: str, since: int, until: dolmen.Snapshot) -> bool:
    """Applies what has changed since a version, all commits at once. False if the table must be copied instead."""
    if since >= until.version:
        return True
    try:
        changes = db.table(table).changes(since, until.version, net=True)
    except VersionExpiredError:
        return False
    columns = [name for name in changes.schema.names if name not in FEED]
    key = until.table(table).primary_key
    replica.register("incoming", changes)
    replica.execute("CREATE OR REPLACE TEMP TABLE changed AS SELECT * FROM incoming")
    replica.unregister("incoming")
    same = " AND ".join(f"{_quoted(table)}.{_quoted(name)} = changed.{_quoted(name)}" for name in key)
    gone, new = "('delete', 'update_before')", "('insert', 'update_after')"
    replica.execute(f"DELETE FROM {_quoted(table)} USING changed WHERE {same} AND changed._change IN {gone}")
    names = ", ".join(map(_quoted, columns))
    replica.execute(f"INSERT INTO {_quoted(table)} SELECT {names} FROM changed WHERE _change IN {new}")
    return True


def pointer_events(queue: str) -> Iterator[None]:
    """Waits for commits: yields once for all events that came together. They are only a call to look."""
    sqs: Any = boto3.client("sqs")
    while True:
        messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=20).get("Messages", [])
        if any(_is_of_pointer(json.loads(message["Body"])) for message in messages):
            yield
        for message in messages:  # after the replica has them: an event that is lost comes again
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def _is_of_pointer(event: dict[str, Any]) -> bool:
    """Whether an event of S3, as it comes by itself or by EventBridge, says that the pointer was put."""
    keys = [record["s3"]["object"]["key"] for record in event.get("Records", [])]
    keys += [event["detail"]["object"]["key"]] if "detail" in event else []
    return any(key.endswith("_latest_manifest") for key in keys)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def main() -> None:
    """Refreshes a replica once, or at each event."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database")
    parser.add_argument("replica")
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--queue", help="URL of the SQS queue with events of the pointer")
    given = parser.parse_args()
    db = dolmen.open(given.database)
    with duckdb.connect(given.replica) as replica:
        print(f"version {refresh(db, replica, given.tables)}", flush=True)
        for _ in pointer_events(given.queue) if given.queue else ():
            print(f"version {refresh(db, replica, given.tables)}", flush=True)


if __name__ == "__main__":
    main()
