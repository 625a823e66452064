"""Deleted positions of some files as one array of bits that Spark looks rows up in.

Looks up values of files row by row, by the name and size that Spark's reader gives of a row's file.

Sizes are compared, and names only between files of equal size: numbers cost a tenth of what names do.

Chooses the column from which Spark gets a row's position in its file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa

from dolmen.rows.scan.plan import FilePlan
from dolmen.spark.failures import Py4JError
from dolmen.spark.file_tasks import FILE
from dolmen.spark.spark_types import to_frame

SIZE = "__size"
"""The column with the size of a row's file, in bytes."""


SOURCES = {FILE: "_metadata.file_name", SIZE: "_metadata.file_size"}


_UNKNOWN = "raise_error('a file was read that the manifest does not name, or not with this size')"


class ByFile:
    """Looks up values of the files that one scan reads.

    Args:
        used: which of the columns ``FILE`` and ``SIZE`` the SQL made so far needs.
    """

    def __init__(self, files: Sequence[FilePlan]) -> None:
        self.files = files
        self.used: set[str] = set()

    def sql(self, values: Sequence[int | bool | None], kind: str) -> str:
        """Writes SQL that gives each row the value of its file.

        It fails in a row of any other file, and of one that has not the size that the manifest says; unless all values
        are equal, which takes no looking up. (Text, as each step of building a column would be a call into the JVM.)

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


_WORDS = pa.field("words", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False)


_BEYOND = "CAST(raise_error('a file has more rows than the manifest says') AS bigint)"


def is_deleted(spark: SparkSession, positions: Mapping[str, BitMap], by_file: ByFile, row: str) -> Column:
    """Makes the condition that a row is deleted. It fails for a row that the manifest does not have.

    The bits of one file stand after those of the other, each as long as the file has rows, in words of 64. They are one
    uncorrelated subquery: Spark computes it once, and hands the array to all tasks.

    Args:
        positions: deleted ones, by path of their file.
        row: the column with a row's position in its file.
    """
    words = [_words(positions.get(file.file.path), file.file.rows) for file in by_file.files]
    ends = np.cumsum([len(some) for some in words]).tolist()
    lists = pa.ListArray.from_arrays(pa.array([0, ends[-1]], pa.int32()), pa.array(np.concatenate(words)), _WORDS.type)
    one = to_frame(spark, pa.table([lists], schema=pa.schema([_WORDS]))).scalar()
    start = by_file.sql([0, *ends[:-1]], "int")
    word = F.coalesce(F.get(one, F.expr(f"{start} + CAST(shiftright({row}, 6) AS int)")), F.expr(_BEYOND))
    return F.call_function("shiftright", word, F.expr(f"CAST({row} & 63 AS int)")).bitwiseAND(1) == 1


def _words(positions: BitMap | None, rows: int) -> npt.NDArray[np.int64]:
    bits = np.zeros((rows + 63) // 64 * 64, np.uint8)
    if positions:
        bits[np.array(positions.to_array(), np.int64)] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


_NAME = "_tmp_metadata_row_index"


_PRUNING = "spark.sql.optimizer.nestedSchemaPruning.enabled"


@dataclass(frozen=True)
class RowIndex:
    """The way to get positions.

    The documented way is ``_metadata.row_index``, but ``_metadata`` is put together row by row. Its source is a column
    that Spark's Parquet reader fills whenever it is in the schema. Asked for directly it costs half, so that is done
    where Spark has it under the known name, and where it prunes ``_metadata``: it refuses to read both.

    Args:
        name: of the column.
        is_stored: whether it belongs into the schema that is read.
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
        stored = own == _NAME and spark.conf.get(_PRUNING, "true") == "true"
        return cls(_NAME if stored else "__row_index", stored)
