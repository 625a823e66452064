"""SQLAlchemy's own suite for dialects, but for the tests that need what a table of dolmen does not have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

OPEN = [
    "aggregate_order_by", "autocommit", "boolean_col_expressions", "check_constraint_reflection",
    "comment_reflection", "comment_reflection_full_unicode", "create_table_as", "ctes", "ctes_with_values",
    "date_historic", "datetime_historic", "datetime_interval", "datetime_literals", "datetime_timezone",
    "delete_from", "except_",
    "fetch_no_order_by", "infinity_floats", "inline_check_constraint_reflection", "intersect", "json_type",
    "mod_operator_as_percent_sign", "nullsordering", "order_by_label_with_expression",
    "precision_numerics_enotation_small", "precision_numerics_retains_significant_digits", "regexp_match",
    "regexp_replace", "supports_bitwise_and", "supports_bitwise_not", "supports_bitwise_or",
    "supports_bitwise_shift", "supports_bitwise_xor", "supports_distinct_on", "supports_is_distinct_from",
    "timestamp_microseconds", "tuple_in", "update_from", "uuid_data_type", "window_functions",
]  # fmt: skip
"""What dolmen has beside that which the suite expects of each dialect."""
CLOSED = [
    "autoincrement_insert", "autoincrement_without_sequence", "date_coerces_from_datetime", "empty_inserts",
    "foreign_key_constraint_reflection", "foreign_keys", "implements_get_lastrowid", "index_reflection",
    "indexes_with_ascdesc", "on_update_cascade", "recursive_fk_cascade", "reflect_indexes_with_ascdesc",
    "self_referential_foreign_keys", "temp_table_reflection", "temporary_tables",
    "unique_constraint_reflection",
]  # fmt: skip
"""What the suite expects, and dolmen does not have."""
LEFT_OUT = {
    "BizarroCharacterTest": "tables have names of a-z, 0-9 and _",
    "ComponentReflectionTest": "its tables are UNIQUE, and have views",
    "HasTableTest": "it makes views and temporary tables",
    "HasIndexTest": "there are no indexes",
    "LongNameBlowoutTest and ix": "there are no indexes",
    "QuotedNameArgumentTest": "tables have names of a-z, 0-9 and _",
    "PostCompileParamsTest": "it compares the text of SQL, without quotes around names",
    "numeric_38_digit_divisor": "DuckDB divides decimals as doubles",
    "test_no_results_for_non_returning_insert": "keys get their values from the program",
    "test_autoclose_on_insert_implicit_returning": "keys get their values from the program",
    "test_empty_insert": "keys get their values from the program",
    "test_insert_from_select_autoinc": "keys get their values from the program",
}
"""Tests that no requirement leaves out, with the reasons."""
FILES = {
    "conftest.py": """
import itertools
import sqlalchemy
from sqlalchemy.dialects import registry
registry.register("dolmen.memory", "dolmen.dbapi.sqlalchemy_dialect", "DolmenDialect")
from sqlalchemy.testing.plugin.pytestplugin import *

@sqlalchemy.event.listens_for(sqlalchemy.Table, "before_create")
def number_rows(table, connection, **_):
    column = table._autoincrement_column
    if column is not None and column.default is None:
        numbers = itertools.count(1)
        column.default = sqlalchemy.ColumnDefault(lambda: next(numbers))
        column.default._set_parent(column)
""",
    "requirements.py": f"""
from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements
def answers(names, answer):
    return {{name: property(lambda self: answer()) for name in names}}
own = answers({OPEN!r}, exclusions.open) | answers({CLOSED!r}, exclusions.closed)
Requirements = type("Requirements", (SuiteRequirements,), own)
""",
    "setup.cfg": "[sqla_testing]\nrequirement_cls=requirements:Requirements\nprofile_file=profiles.txt\n[db]\ndefault=dolmen+memory://suite\n"
    "[tool:pytest]\npython_files=test_suite.py\n",
    "test_suite.py": "from sqlalchemy.testing.suite import *\n",
}


def test_the_suite_passes(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    chosen = " and ".join(f"not ({each})" for each in LEFT_OUT)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "setup.cfg", "-p", "no:cacheprovider", "--db", "default"]
    done = subprocess.run(
        [*command, "--tb=short", "-k", chosen, "test_suite.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 350  # type: ignore[index]
