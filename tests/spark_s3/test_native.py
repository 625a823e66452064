"""Spark's own readers on S3, by hadoop-aws: the same rows as dolmen itself gives."""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.rows.scan.scan import plan_of
from support.spark import SparkProcess
from support.spark_checks import BY_WORKERS, NATIVE, read, read_without
from support.spark_history import History, sorted_rows

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
HISTORIES = 20 if os.environ.get("DOLMEN_LONG") else 1
QUERIES = 3

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64())])


def with_deletes(url: str) -> Database:
    """A table ``t`` of three files: one as it was, one with deleted positions, one with predicates and keys as well."""
    db = dolmen.open(url)
    table = db.create_table("t", SCHEMA, primary_key="id")
    for first in range(0, 300, 100):
        ids = range(first, first + 100)
        table.append(pa.table({"id": ids, "x": [i / 2 for i in ids]}, SCHEMA))
    table.delete("id >= 120 AND id < 210", mode="positions")
    table.delete("x > 130 AND x < 135")
    table.delete(keys=[250, 251, 299])
    assert table.count() == 300 - 90 - 9 - 3
    return db


@pytest.mark.parametrize("place", range(HISTORIES))
def test_rows_are_those_of_dolmen_after_deletes_of_all_kinds(native: SparkProcess, s3_url: str, place: int) -> None:
    seed = SEED + place
    print(f"DOLMEN_TEST_SEED={seed}")
    history = History(seed, s3_url)
    history.grow()
    for query in range(QUERIES):
        columns = history.rng.sample(history.columns, history.rng.randint(1, len(history.columns)))
        where = history.predicate() if query else None
        expected = history.table.scan(columns, where, with_commit_ts=query == 1).to_arrow()
        found = native.run(read, s3_url, "t", columns, where, with_commit_ts=query == 1)
        assert sorted_rows(found.rows.cast(expected.schema)) == sorted_rows(expected), (columns, where)


@pytest.mark.parametrize("prefix", ["100% of 2+2", "naïve/☃ %2F%20", "a:b#c=d&e;f,g'h\"i"])
def test_a_prefix_of_special_characters_is_read_natively(native: SparkProcess, s3_url: str, prefix: str) -> None:
    url = f"{s3_url}/{prefix}/db"
    table = with_deletes(url).table("t")
    found = native.run(read, url)
    assert (NATIVE in found.plan, BY_WORKERS in found.plan) == (True, False)
    assert sorted_rows(found.rows) == sorted_rows(table.to_arrow())


def test_what_hadoop_takes_for_a_pattern_is_read_by_workers(native: SparkProcess, s3_url: str) -> None:
    url = f"{s3_url}/of [a-z]{{x,y}}?/db"
    table = with_deletes(url).table("t")
    found = native.run(read, url)
    assert (NATIVE in found.plan, BY_WORKERS in found.plan) == (False, True)
    assert sorted_rows(found.rows) == sorted_rows(table.to_arrow())


def test_a_file_that_is_gone_is_an_error_and_not_fewer_rows(native: SparkProcess, s3_url: str) -> None:
    db = with_deletes(s3_url)
    store = context_of(db).store
    for file in plan_of(db.table("t").scan()).files:  # one of each kind
        path = file.file.path
        body = store.get(path).body
        assert path in native.run(read_without, s3_url, [path])
        store.put(path, body)
