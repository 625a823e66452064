"""Reads known files with Spark's own Parquet reader: nothing is listed, requested or inferred.

``spark.read.parquet(*paths)`` looks each path up, for more than a few by a job with a task for each. What it would find
is in the manifest. So Spark is given that: an index of files whose cache has the answer already. And what a session's
settings would say (leave out files that are missing or damaged, take dates for those of an older calendar, use another
reader) is settled here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as s

from dolmen.errors import CorruptionError
from dolmen.format.entries import DataFile
from dolmen.spark.failures import Py4JError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

OPTIONS = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "true",  # files are in folders of hours, which are no partitions
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",  # off by default: damaged pages that still decode would be rows
}
"""Options that a session's settings would otherwise decide."""

BY_FIELD_ID = {"spark.sql.parquet.fieldId.read.enabled": "true"}
"""The option by which columns with an id are found by it. Spark looks for it among a session's settings, which are
Hadoop's then; so are the options of one read, and before those."""

FIELD_ID = "parquet.field.id"
"""Where the metadata of a column has its id."""

_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
"""The reader's class, as the name "parquet" may mean a reader without ``_metadata``."""
_CACHE_BYTES = 1 << 40

_log = logging.getLogger("dolmen")


def check_sizes(root: str, files: Iterable[DataFile]) -> None:
    """Compares the sizes of files in a directory with the manifest's, which costs some microseconds each.

    Spark's reader takes a file for what its footer says, so another one in its place would be read without a word. On
    S3 that would take a request for each file; there data objects are never replaced, which the bucket's policy sees
    to. A file that is missing fails the query by itself.

    Raises:
        CorruptionError: a file has another size.
    """
    directory = root.removeprefix("file://")
    if directory == root:
        return
    for file in files:
        try:
            size = os.stat(f"{directory}/{file.path}").st_size
        except OSError:
            continue
        if size != file.size:
            raise CorruptionError(file.path, f"it has {size} bytes, not the {file.size} of its entry in the manifest")


def read_parquet(
    spark: SparkSession, schema: s.StructType, root: str, files: Sequence[DataFile], *, by_id: bool = False
) -> DataFrame:
    """The columns of files as they are stored.

    Args:
        root: the database's URL, as Spark knows it.
        by_id: find columns with a ``FIELD_ID`` by it; those that a file lacks are NULL.
    """
    wanted = {**OPTIONS, **BY_FIELD_ID} if by_id else OPTIONS
    try:
        relation = _relation(spark, schema, root, files, wanted)
    except (Py4JError, TypeError) as error:  # Spark's inner parts are others in this version
        _warn(f"Spark lists the files of frames by itself: {type(error).__name__}")
        paths = [f"{root}/{file.path}" for file in files]
        return spark.read.format(_FORMAT).schema(schema).options(**wanted).load(paths)
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


@cache
def _warn(message: str) -> None:
    """Warns once in a process: every read would repeat it."""
    _log.warning(message)


def _relation(
    spark: SparkSession, schema: s.StructType, root: str, files: Sequence[DataFile], wanted: Mapping[str, str]
) -> JavaObject:
    jvm, session = spark._jvm, spark._jsparkSession
    sources, option = jvm.org.apache.spark.sql.execution.datasources, jvm.scala.Option
    options = jvm.PythonUtils.toScalaMap(dict(wanted))
    statuses = _statuses(jvm, root, files)
    # Spark takes relations for equal when their roots are: this one is not there, and names these very files.
    names = hashlib.sha256("\n".join(f"{file.path} {file.size}" for file in files).encode()).hexdigest()
    place = jvm.org.apache.hadoop.fs.Path(f"{root}/data/{names}")
    known = sources.SharedInMemoryCache(_CACHE_BYTES, -1).createForNewClient()
    known.putLeafFiles(place, statuses)
    index = sources.InMemoryFileIndex(
        session,
        jvm.PythonUtils.toSeq([place]),
        options,
        option.empty(),
        known,
        option.apply(sources.PartitionSpec.emptySpec()),
        option.empty(),
    )
    found = index.sizeInBytes()
    if found != sum(file.size for file in files):
        raise TypeError(f"an index of {found} bytes")
    columns = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).asNullable()
    reader = sources.parquet.ParquetFileFormat()
    return sources.HadoopFsRelation(
        index, sources.PartitionSpec.emptySpec().partitionColumns(), columns, option.empty(), reader, options, session
    )


def _statuses(jvm: JavaObject, root: str, files: Sequence[DataFile]) -> JavaObject:
    """The file statuses that a listing would give, in one call: a call into the JVM costs as much as a look-up."""
    jackson = jvm.com.fasterxml.jackson
    mapper = jackson.databind.ObjectMapper().setVisibility(
        jackson.annotation.PropertyAccessor.FIELD, jackson.annotation.JsonAutoDetect.Visibility.ANY
    )
    told = [{"path": f"{root}/{file.path}", "length": file.size, "isdir": False} for file in files]
    return mapper.readValue(json.dumps(told), jvm.java.lang.Class.forName("[Lorg.apache.hadoop.fs.FileStatus;"))
