"""Reads known files with Spark's own Parquet reader: nothing is listed, requested or inferred.

``spark.read.parquet(*paths)`` looks each path up, for more than a few by a job with a task for each. So Spark gets an
index of files whose cache is filled from the manifest.

A row knows its file by name and size, and its position in it. By these, values that belong to files, and one array of
bits for the deleted positions of all files, are looked up in expressions.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.errors import CorruptionError
from dolmen.format.entries import DataFile
from dolmen.rows.scan.plan import FilePlan
from dolmen.spark.sessions import warn_once
from dolmen.spark.spark_types import to_frame
from dolmen.spark.tasks import FILE, Py4JError

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
"""The reader's class: the name "parquet" may mean a reader without ``_metadata``."""
_CACHE_BYTES = 1 << 40
SIZE = "__size"
"""The column with the size of a row's file, in bytes."""
SOURCES = {FILE: "_metadata.file_name", SIZE: "_metadata.file_size"}
_UNKNOWN = "raise_error('a file was read that the manifest does not name, or not with this size')"
_WORDS = pa.field("words", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False)
_BEYOND = "CAST(raise_error('a file has more rows than the manifest says') AS bigint)"
_ROW_INDEX = "_tmp_metadata_row_index"
_PRUNING = "spark.sql.optimizer.nestedSchemaPruning.enabled"


def check_sizes(root: str, files: Iterable[DataFile]) -> None:
    """Compares the sizes of files in a directory with the manifest's. Raises CorruptionError.

    Spark's reader believes a file's footer, so it would read a replaced file without an error. On S3 the bucket's
    policy keeps data objects from being replaced. A missing file fails the query by itself.
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
        by_id: find columns with a ``FIELD_ID`` by it; those that a file lacks are NULL.
    """
    read_options = {**OPTIONS, **BY_FIELD_ID} if by_id else OPTIONS
    try:
        relation = _relation(spark, schema, root, files, read_options)
    except (Py4JError, TypeError) as error:  # Spark's inner parts are others in this version
        warn_once(f"Spark lists the files of frames by itself: {type(error).__name__}")
        paths = [f"{root}/{file.path}" for file in files]
        return spark.read.format(_FORMAT).schema(schema).options(**read_options).load(paths)
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


def _relation(
    spark: SparkSession, schema: s.StructType, root: str, files: Sequence[DataFile], read_options: Mapping[str, str]
) -> JavaObject:
    jvm, session = spark._jvm, spark._jsparkSession
    sources, option = jvm.org.apache.spark.sql.execution.datasources, jvm.scala.Option
    options = jvm.PythonUtils.toScalaMap(dict(read_options))
    statuses = _statuses(jvm, root, files)
    # Spark takes relations for equal when their roots are: this one is not there, and names these very files.
    names = hashlib.sha256("\n".join(f"{file.path} {file.size}" for file in files).encode()).hexdigest()
    path = jvm.org.apache.hadoop.fs.Path(f"{root}/data/{names}")
    listed = sources.SharedInMemoryCache(_CACHE_BYTES, -1).createForNewClient()
    listed.putLeafFiles(path, statuses)
    index = sources.InMemoryFileIndex(
        session,
        jvm.PythonUtils.toSeq([path]),
        options,
        option.empty(),
        listed,
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
    listed = [{"path": f"{root}/{file.path}", "length": file.size, "isdir": False} for file in files]
    return mapper.readValue(json.dumps(listed), jvm.java.lang.Class.forName("[Lorg.apache.hadoop.fs.FileStatus;"))


class FileValues:
    """Gives each row of a scan values that belong to its file.

    Sizes are compared first, and names only between files of equal size: numbers cost a tenth of what names cost.
    """

    def __init__(self, files: Sequence[FilePlan]) -> None:
        self.files = files
        self.used: set[str] = set()
        """The columns ``FILE`` and ``SIZE``, if the SQL made so far needs them."""

    def sql(self, values: Sequence[int | bool | None], kind: str) -> str:
        """SQL for the value of a row's file. It is text because each step of a Column would be a call into the JVM.

        It fails in a row of any other file, or of a file without the size that the manifest says; unless all values are
        equal, when nothing is looked up.

        Args:
            values: one for each file.
            kind: Spark's type of the values.
        """
        texts = [f"CAST({'NULL' if value is None else str(value).lower()} AS {kind})" for value in values]
        if len(set(texts)) == 1:
            return texts[0]
        self.used.add(SIZE)
        sized: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for file, text in zip(self.files, texts, strict=True):
            sized[file.file.size].append((file.file.path.rpartition("/")[2], text))
        return self._by_size(sorted(sized.items()))

    def _by_size(self, sized: Sequence[tuple[int, Sequence[tuple[str, str]]]]) -> str:
        """A tree of comparisons."""
        if len(sized) > 1:
            middle = len(sized) // 2
            less, others = self._by_size(sized[:middle]), self._by_size(sized[middle:])
            return f"CASE WHEN {SIZE} < {sized[middle][0]} THEN {less} ELSE {others} END"
        size, named = sized[0]
        if len({text for _, text in named}) == 1:
            return f"CASE WHEN {SIZE} = {size} THEN {named[0][1]} ELSE {_UNKNOWN} END"
        self.used.add(FILE)
        cases = " ".join(f"WHEN {FILE} = '{name}' THEN {text}" for name, text in named)
        return f"CASE WHEN {SIZE} <> {size} THEN {_UNKNOWN} {cases} ELSE {_UNKNOWN} END"


def is_deleted(spark: SparkSession, positions: Mapping[str, BitMap], file_values: FileValues, row: str) -> Column:
    """The condition that a row is deleted. It fails for a row that the manifest does not have.

    Each file has one bit for each of its rows, in words of 64, and the words of all files are one array. The array is
    an uncorrelated subquery: Spark computes it once, and sends it to all tasks.

    Args:
        positions: the deleted ones, by path of their file.
        row: the column with a row's position.
    """
    words = [_words(positions.get(file.file.path), file.file.rows) for file in file_values.files]
    ends = np.cumsum([len(some) for some in words]).tolist()
    lists = pa.ListArray.from_arrays(pa.array([0, ends[-1]], pa.int32()), pa.array(np.concatenate(words)), _WORDS.type)
    one = to_frame(spark, pa.table([lists], schema=pa.schema([_WORDS]))).scalar()
    start = file_values.sql([0, *ends[:-1]], "int")
    word = F.coalesce(F.get(one, F.expr(f"{start} + CAST(shiftright({row}, 6) AS int)")), F.expr(_BEYOND))
    return F.call_function("shiftright", word, F.expr(f"CAST({row} & 63 AS int)")).bitwiseAND(1) == 1


def _words(positions: BitMap | None, rows: int) -> npt.NDArray[np.int64]:
    bits = np.zeros((rows + 63) // 64 * 64, np.uint8)
    if positions:
        bits[np.array(positions.to_array(), np.int64)] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


@dataclass(frozen=True)
class RowIndex:
    """The column with a row's position in its file; ``is_stored`` if it belongs to the schema that is read.

    The documented one is ``_metadata.row_index``, but Spark builds ``_metadata`` row by row. Its source is a column
    that Spark's Parquet reader fills whenever it is in the schema, at half the cost. It is read directly where Spark
    has it under this name, and prunes ``_metadata``: Spark refuses to read both.
    """

    name: str
    is_stored: bool

    @classmethod
    def of(cls, spark: SparkSession) -> RowIndex:
        """The cheapest way of this session."""
        reader = spark._jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat
        try:
            own = reader.ROW_INDEX_TEMPORARY_COLUMN_NAME()
        except (Py4JError, TypeError):  # another version
            own = None
        stored = own == _ROW_INDEX and spark.conf.get(_PRUNING, "true") == "true"
        return cls(_ROW_INDEX if stored else "__row_index", stored)
