"""What a cold start of each function does not load. (How long it takes is measured, not asserted.)"""

from __future__ import annotations

import pytest

from support.built import FUNCTIONS, ROOT, run_as_deployed

pytestmark = pytest.mark.slow

SELDOM_NEEDED = [
    "sqlglot",  # only for a where in SQL
    "boto3",  # only once there is a connection to S3, so that a database in a directory needs none
    "awscrt",
    "fastavro",
    "pyarrow.dataset",
    "pyarrow.acero",
    "pyarrow.flight",
    "pyarrow.orc",
    "pyarrow.feather",
    "pandas",
    "duckdb",
    "polars",
    "pyspark",
    "rich",
    "typer",
    "click",
    "yaml",
    "asyncio",
    "multiprocessing",
    "unittest",
    "aws_lambda_powertools.utilities.batch",
    "aws_lambda_powertools.utilities.data_classes",
    "aws_xray_sdk",
    "numpy.testing",
    "numpy.random",
    "dolmen.cli",
    "dolmen.service.local",
    "dolmen.declaration",
    "dolmen.rows.scan.engines.sql",
]
ONLY_INGEST = ["pyarrow.csv", "pyarrow.json"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_cold_start_loads_nothing_that_is_seldom_needed(function: str) -> None:
    source = "import sys, app; print(*sys.modules, sep='\\n')"
    result = run_as_deployed(source, before=[ROOT / "functions" / function])
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert {"app", "dolmen.api.database", "pyarrow.parquet", "aws_lambda_powertools"} <= loaded
    unwanted = [*SELDOM_NEEDED, *([] if function == "ingest" else ONLY_INGEST)]
    assert [name for name in unwanted if name in loaded] == []
