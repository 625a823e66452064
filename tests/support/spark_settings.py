"""Changes settings of a Spark session within a block, and lists those that could change what is read or written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

ZONES = ["Europe/Berlin", "America/New_York", "Pacific/Apia", "UTC"]
"""Apia had no 30 December 2011."""

HOSTILE: dict[str, dict[str, str]] = {
    "files": {
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.files.maxPartitionBytes": "1024",
        "spark.sql.files.maxRecordsPerFile": "1",
        "spark.sql.sources.useV1SourceList": "",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "0",
    },
    "legacy": {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        "spark.sql.parquet.int96AsTimestamp": "true",
        "spark.sql.parquet.int96TimestampConversion": "true",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.storeAssignmentPolicy": "LEGACY",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.parser.quotedRegexColumnNames": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
        "spark.sql.legacy.literal.pickMinimumPrecision": "false",
        "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "true",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    },
    "readers": {
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.enableNestedColumnVectorizedReader": "false",
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.parquet.recordLevelFilter.enabled": "true",
        "spark.sql.parquet.mergeSchema": "true",
        "spark.sql.parquet.fieldId.read.enabled": "true",
        "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.ansi.enabled": "true",
    },
    "pushdown": {
        "spark.sql.parquet.aggregatePushdown": "true",
        "spark.sql.parquet.recordLevelFilter.enabled": "true",
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.pushdown.inFilterThreshold": "1000",
        "spark.sql.sources.useV1SourceList": "",
        "spark.sql.columnNameOfCorruptRecord": "id",
        "spark.sql.hive.manageFilesourcePartitions": "false",
    },
    "arrow": {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "0",
        "spark.sql.execution.arrow.pyspark.enabled": "false",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.pyspark.selfDestruct.enabled": "true",
        "spark.sql.execution.pandas.convertToArrowArraySafely": "false",
    },
    "few": {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.optimizer.maxIterations": "200",
    },
}
"""By a word, settings that users may have."""


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """The session has these settings within the block."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
