"""A query that reads changes and is killed with SIGKILL at any point, again and again: each change once."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from support.killed_streams import Kill, run_module
from support.spark import NO_JAVA, has_java

SEED = os.environ["DOLMEN_TEST_SEED"]
KILLS = int(os.environ.get("DOLMEN_TEST_KILLS", "12"))
COLUMNS = [pa.field("id", pa.int64(), nullable=False), ("s", pa.string())]


@pytest.mark.skipif(not os.environ.get("DOLMEN_LONG"), reason="starts many JVMs: DOLMEN_LONG=1")
@pytest.mark.timeout(7200)
def test_each_change_is_written_once_however_often_the_query_is_killed(tmp_path: Path) -> None:
    if not has_java():
        pytest.skip(NO_JAVA)
    rng = random.Random(SEED)
    print(f"DOLMEN_TEST_SEED={SEED}")
    db, other = dolmen.open(str(tmp_path / "db")), dolmen.open(str(tmp_path / "other"))
    table = db.create_table("t", pa.schema(COLUMNS), primary_key="id")
    log = other.create_table("log", pa.schema([*COLUMNS, ("what", pa.string()), ("version", pa.int64())]))
    arguments = [db.url, other.url, str(tmp_path)]
    killed = 0
    for number in range(KILLS):
        for _ in range(rng.randint(1, 6)):
            change(rng, table)
        if rng.random() < 0.3:
            db.maintain()
        key = rng.choice(["manifest/", "_latest_manifest", "intent/", "data/"])
        kill = Kill(key, rng.choice(["before", "after"]), ("driver", "worker"), rng.randint(1, 4))
        code = run_module("support.killed_feed", arguments, tmp_path, kill)
        assert code in (0, -9), f"{number} {kill}: {code}\n{(tmp_path / 'log').read_text()[-4000:]}"
        killed += code == -9
        check(table, log, is_whole=code == 0)
    assert run_module("support.killed_feed", arguments, tmp_path, None) == 0, (tmp_path / "log").read_text()[-4000:]
    check(table, log, is_whole=True)
    print(f"killed {killed} of {KILLS} times")
    assert killed


def change(rng: random.Random, table: dolmen.Table) -> None:
    rows = [{"id": id_, "s": rng.choice("abc")} for id_ in rng.sample(range(40), rng.randint(1, 9))]
    what = rng.choice(["upsert", "upsert", "delete", "keys", "overwrite"])
    if what == "upsert":
        table.upsert(rows)
    elif what == "delete":
        table.delete(f"s = '{rng.choice('abc')}'", mode=rng.choice(["tombstone", "positions"]))
    elif what == "keys":
        table.delete(keys=[row["id"] for row in rows])
    elif rng.random() < 0.4:
        table.overwrite(rows)


def check(table: dolmen.Table, log: dolmen.Table, *, is_whole: bool) -> None:
    """The log holds the feed up to a version, each change once."""
    written = Counter(tuple(row.values()) for row in log.scan(["id", "s", "what", "version"]).to_arrow().to_pylist())
    until = max((row[3] for row in written), default=0)
    fed = table.changes(0).read_all().select(["id", "s", "_change", "_version"]).to_pylist()
    expected = Counter(tuple(row.values()) for row in fed if is_whole or row["_version"] <= until)
    assert written == expected
