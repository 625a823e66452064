"""Export: the rows of one version of a table as plain files, by Spark's own writers.

``_SUCCESS`` is written last, so readers wait for it: a directory without it belongs to an export that is running or has
failed. Nothing else is atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.base import arguments
from dolmen.commit.head import context_of
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.schema import is_nested
from dolmen.predicate.parse import Where
from dolmen.spark.read.native_parquet import is_on_class_path
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.sessions import active_session, check_readable, check_session
from dolmen.spark.tasks import Py4JJavaError
from dolmen.store.base import own_name, scheme_of, unquoted_url
from dolmen.transactions.readable_table import ReadableTable

Format = Literal["parquet", "csv", "json"]
FORMATS: tuple[Format, ...] = ("parquet", "csv", "json")
_TEXT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
}
"""Settings of the session that writes, whatever the cluster's own are."""
_OPTIONS: dict[Format, dict[str, Any]] = {
    "parquet": {},
    "csv": {
        **_TEXT,
        "header": True,
        "escape": '"',  # as RFC 4180 has it
        "ignoreLeadingWhiteSpace": False,
        "ignoreTrailingWhiteSpace": False,
    },
    "json": {**_TEXT, "ignoreNullFields": False},
}
"""Options that keep values as they are: microseconds, NULL apart from empty text, blanks."""


class Exported(Struct, frozen=True):
    """The result of an export: the number of its rows and its URL."""

    url: str
    rows: int


def export(
    table: ReadableTable,
    to: str,
    *,
    format: Format = "parquet",
    columns: Sequence[str] | None = None,
    where: Where = None,
    overwrite: bool = False,
    spark: SparkSession | None = None,
) -> Exported:
    """Writes rows of one version into files below a URL.

    Args:
        table: of a database, or of ``at(...)`` for an older version.
        to: ``s3://bucket/prefix`` (which needs hadoop-aws), a directory, or any other URL that Spark can write to.
        where: only rows for which this is TRUE.
        overwrite: remove existing files before the first file is written; otherwise there may be none.

    Raises:
        InputError: there are files, or the URL lies within the database.
        SchemaError: the format, or Spark, lacks the type of a column.
        PredicateError: as ``scan`` does.
    """
    check_readable(table)
    to, overwrite = arguments.text("to", to), arguments.flag("overwrite", overwrite)
    if not isinstance(format, str) or format not in FORMATS:
        raise InputError(f"{short_repr(format)} is not a format to export: {', '.join(FORMATS)}")
    # The same Spark, with settings of its own.
    spark = check_session(active_session(spark)).newSession()
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    url = _hadoop_url(spark, to)
    _check_apart(url, context_of(table).store.url)
    schema = table.scan(columns, where).schema
    for field in schema if format == "csv" else ():
        if is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_fixed_size_binary(field.type):
            raise SchemaError(
                f"column {field.name!r} of type {field.type} has no text in CSV: leave it out, or use JSON"
            )
    path = spark._jvm.org.apache.hadoop.fs.Path(url)
    try:
        files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        reason = str(error.java_exception).partition("\n")[0]
        raise InputError(f"{to!r} is not a URL that Spark can write to: {reason}") from error
    if not overwrite and files.exists(path) and (files.getFileStatus(path).isFile() or len(files.listStatus(path))):
        raise InputError(f"{to!r} is not empty: give another URL, or overwrite")
    frame = to_spark(table, columns, where, spark=spark)
    counted = Observation()
    observed: DataFrame = frame.observe(counted, F.count(F.lit(1)).alias("rows"))
    writer = observed.write.mode("overwrite" if overwrite else "append").options(**_OPTIONS[format])
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "true").format(format).save(url)
    return Exported(url, int(counted.get["rows"]))


def _hadoop_url(spark: SparkSession, to: str) -> str:
    """The URL as Hadoop has it, without percent-encoding."""
    scheme, separator, rest = unquoted_url(to).partition("://")
    if not separator:
        return f"file://{Path(to).expanduser().absolute()}"
    if scheme == "file":
        return f"file://{Path(rest).absolute()}"
    own_scheme = scheme_of(to)
    if own_scheme is None or own_scheme.hadoop is None:
        return to
    if own_scheme.hadoop_class and not is_on_class_path(spark, own_scheme.hadoop_class):
        package = own_scheme.hadoop_package
        raise InputError(
            f"{to!r}: Spark writes to {own_scheme.name}:// with {package}, which is not on its class path: "
            f"spark-submit --packages org.apache.hadoop:{package}:<Hadoop's version>"
        )
    return f"{own_scheme.hadoop}://{rest}"


def _check_apart(path: str, database: str) -> None:
    """Raises InputError if an export would lie among the objects of the database, or remove them."""
    theirs, ours = _parts(path), _parts(unquoted_url(database))
    shorter = min(len(theirs), len(ours))
    if theirs[:shorter] == ours[:shorter]:
        raise InputError(f"{path!r} overlaps the database {database!r}, where only dolmen may write: give another URL")


def _parts(path: str) -> list[str]:
    scheme, _, path = path.partition("://")
    if scheme == "file":
        path = str(Path(path).resolve())
    return [own_name(scheme), *(part for part in path.split("/") if part)]
