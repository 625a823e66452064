"""Random histories on random tables, with DuckDB as the oracle of which rows match."""

from __future__ import annotations

import os
import random
from collections import Counter

import duckdb
import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.format.types import to_plain
from dolmen.rows.scan.scan import plan_of
from support.oracle import connect_oracle
from support.random_predicates import random_predicate
from support.random_tables import random_table
from support.tables import World

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
FIXED_SEED = 2
"""The seed of shard 0 is fixed, so that what must hold of all histories together does not depend on luck."""
CASES, SHARDS = (10_000, 4) if os.environ.get("DOLMEN_LONG") else (150, 2)


def tuples(rows: pa.Table, names: list[str] | None = None) -> list[tuple[object, ...]]:
    """Rows as Python values; times as numbers, as Python's own don't reach as far."""
    columns = [rows[name].combine_chunks() for name in names or rows.column_names]
    return list(zip(*(c.to_pylist() if pa.types.is_nested(c.type) else to_plain(c) for c in columns), strict=True))


class Model:
    """The rows that should be there, in order, and an oracle that says which of them match."""

    def __init__(self, rows: pa.Table, oracle: duckdb.DuckDBPyConnection) -> None:
        self.rows, self._oracle = rows, oracle

    def matching(self, predicate: str) -> list[int]:
        numbered = self.rows.append_column("_row", pa.array(range(self.rows.num_rows), pa.int64()))
        self._oracle.from_arrow(numbered).create_view("t", replace=True)
        found = self._oracle.sql(f"SELECT _row FROM t WHERE {predicate} ORDER BY _row").fetchall()
        return [row for (row,) in found]

    def delete(self, gone: set[int]) -> None:
        self.rows = self.rows.take(pa.array([i for i in range(self.rows.num_rows) if i not in gone], pa.int64()))

    def with_keys(self, names: list[str], keys: set[tuple[object, ...]]) -> set[int]:
        return {place for place, key in enumerate(tuples(self.rows, names)) if key in keys}


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_scans_of_random_histories_show_the_rows_that_duckdb_would(shard: int) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}, shard {shard}")
    rng = random.Random(FIXED_SEED if shard == 0 else SEED + shard)
    seen: Counter[str] = Counter()
    oracle = connect_oracle()
    while seen["cases"] < CASES // SHARDS:
        _history(rng, seen, oracle)
    print(dict(seen))
    if shard == 0:  # the same in every run: how much happens in the others is luck
        assert seen["some"] >= 0.3 * (seen["cases"] - seen["of nothing"])
        assert seen["refused by DuckDB"] <= 0.05 * seen["cases"]
        assert seen["transactions"] > 5


def _history(rng: random.Random, seen: Counter[str], oracle: duckdb.DuckDBPyConnection) -> None:
    template = random_table(rng, rng.choice([10, 40, 80]))
    world, model = World(runtime=Runtime(threads=1)), Model(template.schema.empty_table(), oracle)
    world.db.create_table("t", template.schema)
    rest = [template.slice(start, 17) for start in range(0, template.num_rows, 17)]
    versions: dict[int, pa.Table] = {}
    for _ in range(rng.randint(6, 14)):
        step = rng.random()
        if step < 0.3 or model.rows.num_rows == 0:
            piece = rest.pop() if rest else _sample(rng, template)
            if rng.random() < 0.3:
                keys = _key_columns(rng, template)
                if keys and all(piece[name].null_count == 0 for name in keys):
                    _upsert(world, model, piece, keys)
                    continue
            world.append(piece, group_rows=rng.choice([5, 9, 100]))
            model.rows = pa.concat_tables([model.rows, piece])
        elif step < 0.5:
            _delete(rng, world, model, seen)
        elif step < 0.6:
            _delete_keys(rng, world, model)
        elif step < 0.66:
            _transaction(rng, world, model, seen, _sample(rng, template))
        else:
            _look(rng, world, model, seen)
        if rng.random() < 0.3:
            versions[world.db.version] = model.rows
    assert repr(tuples(world.scan().to_arrow())) == repr(tuples(model.rows))
    assert world.scan().count() == model.rows.num_rows
    for version, rows in versions.items():
        assert repr(tuples(world.db.at(version).table("t").to_arrow())) == repr(tuples(rows)), version


def _sample(rng: random.Random, table: pa.Table) -> pa.Table:
    return table.take(pa.array([rng.randrange(table.num_rows) for _ in range(rng.randint(1, 20))]))


def _predicate(rng: random.Random, model: Model, seen: Counter[str]) -> tuple[str, list[int]] | None:
    text = random_predicate(rng, model.rows)
    try:
        found = model.matching(text)
    except (duckdb.ConversionException, duckdb.OutOfRangeException):
        seen["refused by DuckDB"] += 1
        return None
    seen["cases"] += 1
    seen["some"] += 0 < len(found) < model.rows.num_rows
    seen["of nothing"] += model.rows.num_rows < 2
    return text, found


def _look(rng: random.Random, world: World, model: Model, seen: Counter[str]) -> None:
    drawn = _predicate(rng, model, seen)
    if drawn is None:
        return
    text, found = drawn
    names = rng.sample(model.rows.column_names, rng.randint(1, model.rows.num_columns))
    expected = model.rows.take(pa.array(found, pa.int64())).select(names)
    found_rows = world.scan(columns=names, where=text)
    context = f"{text}\n{plan_of(found_rows)}"
    assert repr(tuples(found_rows.to_arrow())) == repr(tuples(expected)), context
    assert found_rows.count() == len(found), context
    if rng.random() < 0.3:
        limit = rng.randint(0, len(found) + 1)
        assert world.scan(where=text, limit=limit).to_arrow().num_rows == min(limit, len(found)), context


def _delete(rng: random.Random, world: World, model: Model, seen: Counter[str]) -> None:
    drawn = _predicate(rng, model, seen)
    if drawn is None:
        return
    text, found = drawn
    mode = rng.choice(["tombstone", "positions"])
    commit = world.db.table("t").delete(text, mode=mode)
    if mode == "positions":
        assert (commit.rows or 0) == len(found), text
    model.delete(set(found))
    seen[f"{mode} deletes"] += 1


def _transaction(rng: random.Random, world: World, model: Model, seen: Counter[str], piece: pa.Table) -> None:
    """Two deletes and an append in one version, which see each other."""
    if (first := _predicate(rng, model, seen)) is None:
        return
    with world.db.transaction() as tx:
        table = tx.table("t")
        table.delete(first[0])
        model.delete(set(first[1]))
        table.append(piece)
        model.rows = pa.concat_tables([model.rows, piece])
        if (second := _predicate(rng, model, seen)) is not None:
            table.delete(second[0], mode="positions")
            model.delete(set(second[1]))
        found = table.scan(model.rows.column_names).to_arrow()
        assert repr(tuples(found)) == repr(tuples(model.rows)), (first, second)
    seen["transactions"] += 1


def _key_columns(rng: random.Random, table: pa.Table) -> list[str]:
    t = pa.types
    usable = [f.name for f in table.schema if not t.is_nested(f.type) and not t.is_floating(f.type)]
    return rng.sample(usable, min(len(usable), rng.choice([1, 1, 2, 3])))


def _keys_of(rows: pa.Table, names: list[str]) -> set[tuple[object, ...]]:
    return {key for key in tuples(rows, names) if None not in key}


def _delete_keys(rng: random.Random, world: World, model: Model) -> None:
    names = _key_columns(rng, model.rows)
    if not names or model.rows.num_rows == 0:
        return
    drawn = _sample(rng, model.rows).select(names).slice(0, 4).drop_null()
    if drawn.num_rows:
        world.db.table("t").delete(keys=drawn, on=names)
        model.delete(model.with_keys(names, _keys_of(drawn, names)))


def _upsert(world: World, model: Model, piece: pa.Table, names: list[str]) -> None:
    last = {key: place for place, key in enumerate(tuples(piece, names))}
    world.db.table("t").upsert(piece, on=names)
    model.delete(model.with_keys(names, set(last)))
    model.rows = pa.concat_tables([model.rows, piece.take(pa.array(sorted(last.values()), pa.int64()))])
