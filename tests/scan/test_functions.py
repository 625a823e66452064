"""Functions that SQL may call: each function of the DuckDBs that we take is allowed, or refused for a reason."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from dolmen import Expression
from dolmen.errors import InputError
from dolmen.rows.scan.engines.sandbox import ALLOWED
from support.older_duckdb import run_with_older_duckdb
from support.tables import World

REFUSED = {
    "reads files": """
        glob parquet_bloom_probe parquet_file_metadata parquet_full_metadata parquet_kv_metadata parquet_metadata
        parquet_page_index parquet_scan parquet_schema read_blob read_csv read_csv_auto read_duckdb read_json
        read_json_auto read_json_objects read_json_objects_auto read_ndjson read_ndjson_auto read_ndjson_objects
        read_parquet read_single_csv_file read_single_json_file read_single_parquet_file read_text sniff_csv
    """,
    "writes files, or changes settings or other state": """
        add_grammar_extension checkpoint create_external_resource currval deregister_external_resource
        destroy_external_resource disable_logging disable_profiling enable_logging enable_profiling force_checkpoint
        nextval register_external_resource register_external_resource_type remove_grammar_extension setval
        truncate_duckdb_logs write_log
    """,
    "runs or plans SQL from a text": "json_execute_serialized_sql json_serialize_plan query",
    "takes addresses in memory, or the bytes of DuckDB's own structures": """
        arrow_scan arrow_scan_dumb combine combine_aggr finalize pandas_scan python_arrow_scan python_map_function
        seq_scan to_aggregate_state variant_bytes_to_variant variant_to_parquet_variant
    """,
    "shows secrets": "duckdb_secret_type_parameters duckdb_secret_types duckdb_secrets which_secret",
    "waits": "pg_sleep sleep_ms",
    "says nothing about the tables of a database": """
        duckdb_approx_database_count duckdb_available_metrics duckdb_connection_count duckdb_coordinate_systems
        duckdb_dialects duckdb_eviction_queues duckdb_extension_repositories duckdb_external_file_cache
        duckdb_external_resource_types duckdb_external_resources duckdb_grammar_extensions duckdb_live_query_metrics
        duckdb_log_contexts duckdb_logs duckdb_logs_parsed duckdb_prepared_statements duckdb_profiling_settings
        duckdb_table_sample duckdb_triggers get_block_size parse_duckdb_log_message pragma_metadata_info
        pragma_storage_info
    """,
    "is for DuckDB's own plans": """
        __cast index_key json_copy_strftime_if_date json_copy_strftime_if_timestamp remap_struct stats vector_type
    """,
}
INTERNAL = re.compile(r"__internal_|(icu_)?collate_[a-z]+")
LIST = "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type <> 'pragma'"
"""PRAGMA is no statement that reads."""


def undecided(names: set[str]) -> list[str]:
    decided = ALLOWED.union(*map(str.split, REFUSED.values()))
    return sorted(name for name in names - decided if not INTERNAL.match(name))


def test_each_function_is_allowed_or_refused() -> None:
    assert not ALLOWED & set(" ".join(REFUSED.values()).split())
    names = {name for (name,) in duckdb.connect().execute(LIST).fetchall()}
    assert undecided(names) == []


def test_each_function_of_the_oldest_duckdb_is_allowed_or_refused(tmp_path: Path) -> None:
    program = f"import duckdb; print(*(name for (name,) in duckdb.connect().execute({LIST!r}).fetchall()), sep='\\n')"
    names = set(run_with_older_duckdb(["-c", program], tmp_path).splitlines())
    assert len(names) > 500
    assert undecided(names) == []


@pytest.fixture(scope="module")
def world() -> World:
    found = World()
    found.create(pa.table({"id": [1, 2], "l": [[1], [2]], "s": ["a", "b"]}))
    return found


@pytest.mark.parametrize(
    "query",
    [
        "FROM enable_logging('QueryLog', storage='file', storage_path='{path}')",
        "EXPLAIN ANALYZE SELECT * FROM enable_logging(storage='file', storage_path='{path}')",
        "DESCRIBE FROM enable_profiling()",
        "SUMMARIZE FROM enable_profiling()",
        "FROM query('FROM enable_profiling()')",
        "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
        "SELECT l.list_transform(lambda x: write_log('x')) FROM t",
        "SELECT [write_log(s) for x in l] FROM t",
        "SELECT s.write_log() FROM t",
        'SELECT system.main."WRITE_LOG"(s) FROM t',
        "SELECT COLUMNS(c -> write_log(c) IS NULL) FROM t",
        "SELECT * REPLACE (write_log(s) AS s) FROM t",
        "SELECT id FROM t ORDER BY write_log(s)",
        "SELECT id FROM t GROUP BY id HAVING write_log('x') IS NULL",
        "SELECT id FROM t QUALIFY write_log(s) IS NULL",
        "SELECT first(id ORDER BY write_log(s)) FROM t",
        "SELECT count(*) FILTER (WHERE write_log(s) IS NULL) FROM t",
        "SELECT sum(id) OVER (PARTITION BY write_log(s)) FROM t",
        "WITH c AS (SELECT write_log(s) FROM t) SELECT 1",
        "SELECT 1 UNION ALL SELECT length(write_log('x'))",
        "SELECT id FROM t LIMIT (SELECT length(write_log('x')))",
        "SELECT id FROM t WHERE EXISTS (FROM t b WHERE write_log(b.s) IS NULL)",
        "PIVOT t ON id IN (1) USING write_log('x')",
        "FROM range(length(write_log('x')))",
        "FROM (VALUES (write_log('x')))",
        "SELECT nextval('x')",
        "FROM duckdb_secrets()",
        "FROM read_csv('{path}')",
    ],
)
def test_functions_that_are_not_listed_are_refused_wherever_a_query_calls_them(
    query: str, world: World, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    with pytest.raises(InputError, match=r"\w+\(\)"):
        world.db.sql(query.format(path=path)).fetchall()
    assert not path.exists()


def test_what_is_no_function_is_told_with_one_of_a_similar_name(world: World) -> None:
    with pytest.raises(InputError, match=r"sums\(\).* sum\(\)"):
        world.db.sql("SELECT sums(id) FROM t")
    with pytest.raises(InputError, match=r"no function getenv\(\)"):
        world.db.sql("SELECT getenv('HOME')")


@pytest.mark.parametrize(
    "query",
    [
        "FROM '{path}/a.csv'",
        "FROM '{path}/a.parquet'",
        "FROM query_table('{path}/a.csv')",
        "FROM histogram('{path}/a.csv', x)",
        "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x",
        "WITH x AS (INSERT INTO t VALUES (3, NULL, NULL)) SELECT 1",
    ],
)
def test_queries_without_a_function_call_reach_no_files_and_write_nothing(
    query: str, world: World, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(InputError):
        world.db.sql(query.format(path=tmp_path)).fetchall()
    assert world.db.table("t").count() == 2


@pytest.mark.parametrize(
    "query",
    [
        "SELECT [x + 1 for x in l], l.list_transform(lambda x: x + 1), l[1:1], s.upper() FROM t",
        "SELECT coalesce(id, 1), nullif(id, 1), ifnull(id, 1), try_cast(s AS INT), -id, id ** 2, id // 2, ~id FROM t",
        "SELECT s SIMILAR TO 'b', s GLOB 'b', s NOT ILIKE 'a', s LIKE 'b' ESCAPE '!', trim(BOTH 'x' FROM s) FROM t",
        "SELECT position('a' IN s), substring(s FROM 1 FOR 2), s COLLATE NOCASE = 'A', s || 'b', s[1] FROM t",
        "SELECT row(1, 2), (1, 2), {'a': 1}.a, MAP {1: 2}[1], ARRAY(SELECT 1), struct_pack(a := 1)",
        "SELECT current_date, now(), extract(year FROM now()), now() AT TIME ZONE 'UTC', now() + INTERVAL 1 DAY",
        "SELECT '{\"a\": 1}'::JSON->'a', '{\"a\": 1}'->>'$.a', uuid(), hash(1), typeof(1), version()",
        "SELECT row_number() OVER (), lag(id) OVER (ORDER BY id), sum(id) OVER (ORDER BY id ROWS 1 PRECEDING) FROM t",
        "SELECT id, GROUPING(id), count(*), list(s), string_agg(s, ',' ORDER BY s) FROM t GROUP BY ROLLUP (id)",
        "SELECT * FROM t, unnest(l) u(x), generate_series(2) g, range(id) r",
        "UNPIVOT (SELECT id, id + 1 AS j FROM t) ON id, j",
        "FROM (PIVOT t ON id IN (1) USING count(*))",
        "SELECT COLUMNS('i.*'), t.* EXCLUDE (l) FROM query_table('t') t TABLESAMPLE 100%",
        "SELECT function_name FROM duckdb_functions() WHERE current_setting('threads') > 0 LIMIT 1",
        "SHOW ALL TABLES",
    ],
)
def test_functions_that_only_compute_are_called_in_all_ways(query: str, world: World) -> None:
    assert world.db.sql(query).fetchall()


def test_expressions_call_only_functions_of_the_list(world: World) -> None:
    with pytest.raises(InputError, match=r"write_log\(\)"):
        world.db.table("t").update({"s": Expression("write_log(s)")}, "id = 1")
