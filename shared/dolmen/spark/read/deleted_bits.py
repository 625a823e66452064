"""Deleted positions of some files as one array of bits that Spark looks rows up in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.spark.read.by_file import ByFile
from dolmen.spark.types import to_frame

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
