"""Writers that run in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import pyarrow as pa

import dolmen
from dolmen.errors import RetryableError, UnknownOutcomeError

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("writer", pa.int64()), ("value", pa.int64())])

# Forked from a server that has imported everything: a start takes milliseconds, and no threads are copied.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["dolmen.api.database", "dolmen.rows.scan.scan", "boto3", "sqlglot", "support.writers"])


def rows(*ids: int, writer: int, value: int = 0) -> pa.Table:
    return pa.table({"id": ids, "writer": [writer] * len(ids), "value": [value] * len(ids)}, SCHEMA)


def start(target: Callable[..., None], *arguments: object) -> ForkServerProcess:
    """Runs ``target`` in a process of its own, with the current environment."""
    settings = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "DOLMEN_"))}
    process = context.Process(target=_run, args=(settings, target, *arguments), daemon=True)
    process.start()
    return process


def _run(settings: dict[str, str], target: Callable[..., None], *arguments: object) -> None:
    os.environ.update(settings)
    target(*arguments)


def mixed_commits(url: str, writer: int, commits: int, results: Connection) -> None:
    """Appends, upserts, deletes and commits transactions on keys of its own; sends the expected rows at the end.

    It catches no error: each one is a failure.
    """
    rng = random.Random(writer)
    db = dolmen.open(url)
    table, log = db.table("rows"), db.table("log")
    mine: dict[int, int] = {}
    versions: list[int] = []
    first = writer * 1_000_000
    for step in range(commits):
        new = [first + step * 10 + i for i in range(3)]
        old = rng.choice(list(mine)) if mine else -1
        kind = step % 5
        if kind == 0 or not mine:
            commit = table.append(rows(*new, writer=writer, value=step))
            mine |= dict.fromkeys(new, step)
        elif kind == 1:
            commit = table.upsert(rows(old, new[0], writer=writer, value=step))
            mine |= {old: step, new[0]: step}
        elif kind == 2:
            commit = table.delete(rng.choice([{"id": old}, f"id = {old} AND writer > -1"]))
            del mine[old]
        elif kind == 3:
            commit = table.delete(f"id = {old}", mode="positions")
            assert commit.rows == 1, commit
            del mine[old]
        else:
            with db.transaction() as tx:
                tx.table("rows").delete(keys=[old])
                tx.table("rows").append(rows(new[0], writer=writer, value=step))
                tx.table("log").append(rows(new[0], writer=writer, value=step))
                commit = tx.commit()
            del mine[old]
            mine[new[0]] = step
        versions.append(commit.version)
    logged = log.count(f"writer = {writer}")
    results.send((mine, versions, logged))


def two_tables(url: str, number: int) -> None:
    """One transaction over two tables, which also deletes a row of the writer before."""
    with dolmen.open(url).transaction() as tx:
        tx.table("rows").append(rows(number * 10, number * 10 + 1, writer=number))
        tx.table("rows").delete(keys=[number * 10 - 10])
        tx.table("log").append(rows(number, writer=number))


def persistent(url: str, writer: int, commits: int, results: Connection) -> None:
    """Appends under request ids, and repeats each until it is acknowledged."""
    acknowledged: dict[str, int] = {}
    troubles: dict[str, int] = {}
    db = None
    for step in range(commits):
        id_ = writer * 1_000 + step
        for _ in range(100):
            try:
                db = db or dolmen.open(url)
                commit = db.table("rows").append(rows(id_, writer=writer), request=f"r{id_}")
            except (UnknownOutcomeError, RetryableError) as error:
                troubles[type(error).__name__] = troubles.get(type(error).__name__, 0) + 1
                continue
            acknowledged[f"r{id_}"] = commit.version
            break
    results.send((acknowledged, troubles))


def increments(url: str, times: int, results: Connection) -> None:
    """Counts up the row with id 1 by updates and merges in turns; sends how often. It catches no error."""
    table = dolmen.open(url).table("rows")
    for step in range(times):
        if step % 2:
            table.update({"value": dolmen.Expression("value + 1")}, "id = 1")
        else:
            source = [{"id": 1, "value": 1}]
            table.merge(source, "id", {"value": "target.value + source.value"}, None)
    results.send(times)
