"""SQL: the same rows as DuckDB on plain tables, whatever is pushed into the scans."""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial

import duckdb
import pyarrow as pa
import pytest

from dolmen.errors import CorruptionError, InputError, TableNotFoundError
from dolmen.reading import ReadableTable
from dolmen.runtime import Runtime
from dolmen.scan.sql import SqlResult, run_sql
from dolmen.snapshot import PinnedTable
from support.random_predicates import random_predicate
from support.random_tables import FLAT, random_table
from support.tables import World

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
FIXED_SEED = 2
"""Of the half of the queries of which something is asked together: it does not depend on luck."""
QUERIES = 4000 if os.environ.get("DOLMEN_LONG") else 100

EVENTS = pa.table(
    {
        "id": list(range(60)),
        "user_id": [i % 7 if i % 5 else None for i in range(60)],
        "x": [i % 11 if i % 4 else None for i in range(60)],
        "s": [f"s{i % 3}" for i in range(60)],
    }
)
USERS = pa.table({"id": [0, 1, 2, 3, 9], "x": [1, None, 3, 4, 5], "name": ["zero", "one", None, "three", "nine"]})


@pytest.fixture(scope="module")
def world() -> World:
    found = World()
    found.create(EVENTS, "events", group_rows=5, files=3)
    found.create(USERS, "users")
    return found


@pytest.fixture(scope="module")
def oracle() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("events", EVENTS)
    connection.register("users", USERS)
    return connection


def run(world: World, query: str, *, push_down: bool = True) -> SqlResult:
    manifest = world.manifest

    def table(name: str) -> ReadableTable:
        manifest.table(name)
        return PinnedTable(world.db._context, name, manifest)

    return run_sql(query, table, push_down=push_down)


def bag(rows: list[tuple[object, ...]]) -> list[str]:
    return sorted(map(repr, rows))


def pushed(result: SqlResult) -> list[str | None]:
    return [source.where for source in result._sources]


QUERIES_AND_PUSHED = [
    ("SELECT * FROM events WHERE x > 3 AND s = 's1'", ['("events"."x" > 3)', None]),
    ("SELECT e.id, name FROM events e JOIN users u ON e.user_id = u.id WHERE e.x > 3 AND u.x < 5", "both"),
    ("SELECT * FROM events e LEFT JOIN users u ON e.user_id = u.id WHERE u.x IS NULL", "none"),
    ("SELECT * FROM events e LEFT JOIN users u ON e.user_id = u.id AND u.x > 3 WHERE e.x = 2", "both"),
    ("SELECT * FROM events e RIGHT JOIN users u ON e.user_id = u.id WHERE e.x IS NULL", "none"),
    ("SELECT * FROM events e RIGHT JOIN users u ON e.user_id = u.id AND u.x = 3 AND e.x = 1", "none"),
    ("SELECT * FROM events e RIGHT JOIN users u ON e.user_id = u.id WHERE u.x = 3", "second"),
    ("SELECT * FROM events e FULL JOIN users u ON e.user_id = u.id WHERE e.x IS NULL AND u.x = 3", "none"),
    (
        "SELECT * FROM events e JOIN users u ON e.user_id = u.id FULL JOIN users v ON v.id = e.x WHERE e.x IS NULL",
        "none",
    ),
    ("SELECT a.id FROM events a JOIN events b ON a.id = b.id + 1 WHERE a.x = 1 AND b.x > 0", "both"),
    ("WITH c AS (SELECT * FROM events WHERE x < 5) SELECT id FROM c WHERE s = 's2'", "first"),
    ("WITH c AS (SELECT * FROM events) SELECT a.id FROM c a JOIN c b ON a.id = b.id WHERE a.x = 1 AND b.x = 1", "none"),
    ("WITH events AS (SELECT * FROM events WHERE x = 1) SELECT * FROM events WHERE id > 9", "first"),
    ("SELECT * FROM (SELECT id AS x, x AS id FROM events) WHERE x = 3", "first"),
    ("SELECT * FROM (SELECT x + 1 AS x, id FROM events) WHERE x = 3", "none"),
    ("SELECT * FROM (SELECT * FROM events LIMIT 100) WHERE x = 3", "none"),
    ("SELECT * FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM events) WHERE x = 3", "none"),
    ("SELECT * FROM (SELECT x, count(*) AS n FROM events GROUP BY x) WHERE x = 3", "none"),
    ("SELECT * FROM (SELECT DISTINCT x, s FROM events) WHERE x = 3", "first"),
    ("SELECT * FROM (SELECT DISTINCT ON (s) x, s FROM events ORDER BY s, id) WHERE x = 0", "none"),
    ("SELECT * FROM (SELECT id, x FROM events UNION ALL SELECT x, id FROM users) WHERE id = 3", "both"),
    ("SELECT * FROM (SELECT id FROM events EXCEPT SELECT id FROM users) WHERE id < 12", "both"),
    ("SELECT id FROM events WHERE x IN (SELECT x FROM users WHERE name = 'three') AND s = 's0'", "both"),
    ("SELECT id FROM events e WHERE EXISTS (SELECT 1 FROM users u WHERE u.id = e.user_id AND u.x > 3)", "second"),
    ("SELECT id FROM events e WHERE x = (SELECT max(x) FROM users u WHERE u.id <= e.user_id)", "none"),
    (
        "SELECT u.id, e.n FROM users u, LATERAL (SELECT count(*) AS n FROM events e WHERE e.x = u.x) e WHERE u.x > 1",
        None,
    ),
    ("SELECT s, sum(x) AS total FROM events WHERE id < 30 GROUP BY s HAVING sum(x) > 3", "first"),
    ("SELECT id FROM events WHERE x = 1 OR s = 's2'", "first"),
    ("SELECT id FROM events WHERE NOT (x = 1 OR x IS NULL)", "first"),
    ("SELECT id FROM events WHERE x + 1 = 2 AND id < 20", "first"),
    ("SELECT id FROM events WHERE x BETWEEN 2 AND 4 AND s LIKE 's%'", "first"),
    ("SELECT x AS s, s AS x FROM events WHERE x = 3", "first"),
    ("SELECT id + 1 AS x FROM events WHERE x = 3", None),
    ("SELECT id + 1 AS y FROM events WHERE y = 3", None),
    ("SELECT e FROM events e WHERE e.id = 3", "first"),
    ("SELECT * EXCLUDE (id) FROM events NATURAL JOIN users WHERE name = 'three'", None),
    ("SELECT * FROM events JOIN users USING (id) WHERE id > 1", None),
    ("SELECT * FROM events SEMI JOIN users ON events.x = users.x WHERE events.s = 's1'", None),
    ("SELECT * FROM events ANTI JOIN users ON events.x = users.x WHERE events.s = 's1'", None),
    ("SELECT * FROM events e ASOF JOIN users u ON e.id >= u.id WHERE u.x = 3", "none"),
    ("SELECT * FROM events e POSITIONAL JOIN users u WHERE u.x = 3 AND e.x IS NOT NULL", "none"),
    ("FROM events WHERE id = 7", "first"),
    ("SELECT COUNT(*) FROM events", "none"),
    ("SELECT count(*) FROM EVENTS AS \"E v\" WHERE \"E v\".ID > 3", "first"),
    ("(SELECT id FROM events WHERE id < 3) UNION ALL (SELECT id FROM events WHERE id > 57) ORDER BY 1", "both"),
    ("SELECT max(id) FILTER (WHERE x = 1), min(id) FROM events", "none"),
    ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) "
     "SELECT n, s FROM r JOIN events ON events.id = n WHERE n > 2", None),
    ("SELECT unnest([id, x]) AS v FROM events WHERE id < 3", "first"),
    ("SELECT * FROM (SELECT unnest([x, id]) AS x FROM events) WHERE x = 3", "none"),
    ("PIVOT (FROM events WHERE id < 20) ON s USING sum(x) GROUP BY user_id", None),
    ("SELECT t.* FROM events AS t(a, b, c, d) WHERE a = 3", "none"),
    ("SELECT * FROM events TABLESAMPLE 100% WHERE id < 3", "none"),
    ("SELECT * FROM events WHERE id < 3 QUALIFY row_number() OVER (PARTITION BY s ORDER BY id) = 1", "first"),
    ("SELECT a.id FROM events a, users b WHERE a.id = b.id AND a.x > 1 AND b.x > 1 OR a.id = 5 AND a.x > 0", None),
    ("DESCRIBE events", None),
    ("SUMMARIZE SELECT id FROM events WHERE id < 4", None),
    ("VALUES (1, 2)", None),
]  # fmt: skip


@pytest.mark.parametrize(("query", "expected"), QUERIES_AND_PUSHED)
def test_queries_of_all_shapes_are_right(
    query: str, expected: object, world: World, oracle: duckdb.DuckDBPyConnection
) -> None:
    if query.startswith("PIVOT"):
        with pytest.raises(InputError):
            run(world, query)
        return
    result = run(world, query)
    assert bag(result.fetchall()) == bag(oracle.sql(query).fetchall())
    assert result.columns == oracle.sql(query).columns
    assert bag(run(world, query, push_down=False).fetchall()) == bag(oracle.sql(query).fetchall())
    shape = [where is not None for where in pushed(result)]
    if isinstance(expected, str):
        both = {"none": [False] * len(shape), "both": [True, True], "first": [True, *[False] * (len(shape) - 1)]}
        assert shape == {**both, "second": [False, True]}[expected], pushed(result)


def test_only_needed_columns_and_row_groups_are_fetched(world: World) -> None:
    query = "SELECT sum(a.x) FROM events a JOIN users u ON a.user_id = u.id WHERE a.id BETWEEN 20 AND 24"
    result = run(world, query)
    assert '"id" >= 20' in result.explain() or "BETWEEN" in result.explain()
    world.store.reset()
    result.to_arrow()
    assert world.store.gets <= 3  # two of three files of events are pruned


def test_random_queries_give_the_same_rows_with_and_without_push_down() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    seen = _compared(random.Random(FIXED_SEED), QUERIES // 2)
    print(dict(seen))
    assert seen["pushed"] > 0.5 * seen["queries"]
    assert seen["rows"] > 0.25 * seen["queries"]
    print(dict(_compared(random.Random(SEED), QUERIES // 2)))  # how many of these find rows is luck


def _compared(rng: random.Random, queries: int) -> Counter[str]:
    """Runs random queries on random tables, compares them with DuckDB's rows, and counts what happened."""
    seen: Counter[str] = Counter()
    while seen["queries"] < queries:
        world, oracle = World(runtime=Runtime(threads=1)), duckdb.connect(config={"threads": 1})
        oracle.execute("SET TimeZone = 'UTC'")
        tables = {}
        for name in ("a", "b", "c"):
            rows = random_table(rng, rng.choice([0, 10, 30]), FLAT)
            rows = rows.rename_columns([f"{column}_{name}" for column in rows.column_names])
            keys = pa.array([rng.choice([None, 1, 2, 3, 4]) for _ in range(rows.num_rows)], pa.int64())
            rows = rows.append_column("k", keys)
            world.create(rows, name, group_rows=4, files=2)
            oracle.register(name, rows)
            tables[name] = rows
        for _ in range(15):
            query = _random_query(rng, tables, 2)
            try:
                expected = oracle.sql(query).to_arrow_table()
            except (duckdb.ConversionException, duckdb.OutOfRangeException):
                seen["refused"] += 1
                continue
            result = run(world, query)
            assert bag_of(result.to_arrow()) == bag_of(expected), f"{query}\n{result.explain()}"
            seen["queries"] += 1
            seen["pushed"] += any(pushed(result))
            seen["rows"] += expected.num_rows > 0
    return seen


def bag_of(rows: pa.Table) -> list[str]:
    columns = []
    for column in rows.columns:
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        columns.append(column.to_pylist())
    return sorted(map(repr, zip(*columns, strict=True)))


def _random_query(rng: random.Random, tables: dict[str, pa.Table], depth: int) -> str:
    """A select of k and one more column from one or two sources, with conditions on each."""
    shape = rng.random()
    if depth and shape < 0.15:
        word = rng.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT"])
        inner = [_random_query(rng, tables, 0) for _ in range(2)]
        both = f"SELECT k FROM ({inner[0]}) {word} SELECT k FROM ({inner[1]})"
        return f"SELECT k, k AS v FROM ({both}) WHERE k > 1 OR k IS NULL"
    if depth and shape < 0.3:
        where = rng.choice(["k = 2", "k IS NULL", "NOT (k > 2)", "TRUE"])
        return f"SELECT k, v FROM ({_random_query(rng, tables, depth - 1)}) WHERE {where}"
    if depth and shape < 0.4:
        return f"WITH q AS ({_random_query(rng, tables, depth - 1)}) SELECT k, v FROM q WHERE k <> 3 OR v IS NULL"
    first, second, third = rng.sample("abc", 3)
    value = partial(_column, rng)
    if shape < 0.6:
        return f"SELECT k, {value(tables[first])} AS v FROM {first} WHERE {_condition(rng, tables[first], '')}"
    join = rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT JOIN", "FULL JOIN"])
    on = ["l.k = r.k"]
    if rng.random() < 0.4:
        on.append(rng.choice([_condition(rng, tables[first], "l."), _condition(rng, tables[second], "r.")]))
    where = [_condition(rng, tables[first], "l."), _condition(rng, tables[second], "r."), "l.k IS NULL", "r.k IS NULL"]
    query = f"SELECT l.k AS k, r.{value(tables[second])} AS v FROM {first} l {join} {second} r ON {' AND '.join(on)}"
    if rng.random() < 0.3:
        kind = rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        query += f" {kind} {third} m ON m.k = {rng.choice('lr')}.k"
        where.append(_condition(rng, tables[third], "m."))
    return f"{query} WHERE {' AND '.join(rng.sample(where, rng.randint(1, 2)))}"


def _column(rng: random.Random, table: pa.Table) -> str:
    return '"' + rng.choice(table.column_names) + '"'


def _condition(rng: random.Random, table: pa.Table, prefix: str) -> str:
    if rng.random() < 0.4:
        text = rng.choice(["k = 2", "k IS NULL", "k IN (1, 3)", "NOT (k < 3)", "k IS NOT NULL"])
        return f"({prefix}{text})" if not text.startswith("NOT") else f"(NOT ({prefix}k < 3))"
    return f"({random_predicate(rng, table.drop_columns('k'), 0)})"


def test_results_come_in_all_forms(world: World) -> None:
    result = run(world, "SELECT id, s FROM events WHERE id < 3 ORDER BY id")
    assert result.columns == ["id", "s"]
    assert result.to_arrow().to_pydict() == {"id": [0, 1, 2], "s": ["s0", "s1", "s2"]}
    assert pa.table(result).num_rows == 3
    assert result.to_reader().read_all().num_rows == 3
    assert result.to_pandas().shape == (3, 2)
    assert result.to_polars().shape == (3, 2)
    assert result.fetchall() == [(0, "s0"), (1, "s1"), (2, "s2")]
    assert "s2" in repr(result)
    assert "<table" in result._repr_html_()
    assert "scan events" in result.explain()


def test_queries_reach_nothing_but_the_tables(world: World, tmp_path: object) -> None:
    secret = EVENTS  # noqa: F841  # a variable that DuckDB could find by its name
    for query, error in (
        ("SELECT * FROM '/etc/passwd'", InputError),
        ("SELECT * FROM read_csv('/etc/passwd')", InputError),
        ("SELECT * FROM secret", TableNotFoundError),
        ("COPY (SELECT 1) TO '/tmp/never.csv'", InputError),
        ("INSTALL httpfs", InputError),
        ("SET enable_external_access = true", InputError),
        ("ATTACH '/tmp/never.db'", InputError),
        ("SELECT 1; SELECT 2", InputError),
        ("CREATE TABLE x AS SELECT * FROM events", InputError),
        ("DELETE FROM events", InputError),
    ):
        with pytest.raises(error):
            run(world, query).fetchall()


def test_mistakes_are_told_in_words(world: World) -> None:
    with pytest.raises(InputError, match="nope"):
        run(world, "SELECT nope FROM events")
    with pytest.raises(InputError, match=r"(?i)syntax"):
        run(world, "SELEC 1")
    with pytest.raises(TableNotFoundError, match="events, users"):
        run(world, "SELECT * FROM evnts")


def test_what_goes_wrong_in_a_scan_is_raised_as_itself() -> None:
    world = World()
    world.create(EVENTS, "events", group_rows=5)
    result = run(world, "SELECT * FROM events")
    world.store.delete([file.path for file in world.entry("events").files])
    with pytest.raises(CorruptionError, match="missing"):
        result.fetchall()
