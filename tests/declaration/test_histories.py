"""Random declarations, one after the other: what holds is always what the last one says of what it names."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

import dolmen
from dolmen import declaration
from dolmen.declaration import Declaration, plan
from dolmen.format.ingest_properties import TABLE_PROPERTIES
from dolmen.format.properties import DATABASE_PROPERTIES, value_of
from dolmen.transactions.transaction import unit_of

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
HISTORIES = 200 if os.environ.get("DOLMEN_LONG") else 10

TABLES = {
    "events": {"columns": {"id": "BIGINT NOT NULL", "on": "TIMESTAMPTZ", "seq": "BIGINT"}, "primary_key": ["id"]},
    "plain": {"columns": {"a b": "VARCHAR", "on": "DATE", "tags": "STRUCT(x INT, y VARCHAR[])[]"}, "sort_key": "on"},
    "third": {"columns": {"null": "DECIMAL(9, 2)", "on": "TIMESTAMP"}},
}
SETTINGS: dict[str, list[Any]] = {"ttl": ["on 90d", "on 2w"], "target_file_bytes": ["256MB", 268435456, "1 GB"]}
INGEST: dict[str, list[Any]] = {
    "format": ["csv", "jsonl"],
    "delimiter": ["tab", ";"],
    "nulls": [["", "NULL"], "NA,", []],
    "header": [True, False, "false"],
    "on_extra": ["ignore"],
    "max_bad_rows": [7],
    "max_columns": [20_000],
}
OWN: dict[str, list[Any]] = {"retention": ["30d", "7d"], "keep_versions": [5, "5"], "root_bytes": ["1MB"]}


def some(rng: random.Random, of: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: rng.choice(values) for name, values in of.items() if rng.random() < 0.5}


def declared(rng: random.Random) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for name in rng.sample(sorted(TABLES), rng.randint(1, 3)):
        ingest = some(rng, INGEST)
        if name == "events" and rng.random() < 0.5:
            ingest |= {"mode": "cdc", "cdc_envelope": "dms", "cdc_sequence": "seq"}
        tables[name] = TABLES[name] | some(rng, SETTINGS) | ({"ingest": ingest} if ingest else {})
    return {"tables": tables} | ({"database": some(rng, OWN)} if rng.random() < 0.4 else {})


def meaning(properties: dict[str, Any], known: Any) -> dict[str, Any]:
    return {name: value_of(known[name], properties) for name in properties}


@pytest.mark.slow
def test_what_holds_is_what_the_last_declaration_says_and_again_there_is_nothing_to_do() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    for history in range(HISTORIES):
        db = dolmen.open(f"memory://declared-{SEED}-{history}")
        wanted: dict[str, dict[str, Any]] = {}
        own: dict[str, Any] = {}
        for _ in range(8):
            said = declared(rng)
            text = json.dumps(said, indent=rng.choice([None, 2]))  # which is YAML, too
            before = db.refresh()
            changes = plan(db, Declaration.parse(text)).changes
            commit = declaration.apply(db, Declaration.parse(text))
            assert db.refresh() - before == bool(changes), text
            assert (commit.operation == "apply") == bool(changes)
            assert declaration.apply(db, Declaration.parse(text)).operation == "nothing", text
            for name, table in said["tables"].items():
                ingest = {
                    key if key.startswith("cdc_") else f"ingest_{key}": value
                    for key, value in table.get("ingest", {}).items()
                }
                wanted[name] = {key: table[key] for key in SETTINGS if key in table} | ingest
            own = said.get("database", own)
            base = unit_of(db.transaction()).base
            assert meaning(base.properties, DATABASE_PROPERTIES) == meaning(_texts(own), DATABASE_PROPERTIES)
            found = {name: meaning(entry.properties, TABLE_PROPERTIES) for name, entry in base.tables.items()}
            assert found == {name: meaning(_texts(said), TABLE_PROPERTIES) for name, said in wanted.items()}


def _texts(properties: dict[str, Any]) -> dict[str, Any]:
    """Values as YAML's text has them."""
    words = {True: "true", False: "false"}
    return {
        name: value
        if isinstance(value, list)
        else words.get(value, str(value))
        if isinstance(value, bool)
        else str(value)
        for name, value in properties.items()
    }
