"""Reads known files with Spark's own Parquet reader, and turns dolmen's predicates into its conditions.

``spark.read.parquet(*paths)`` looks each path up; for more than a few, it starts a job with a task for each. So Spark
gets an index of files whose cache is filled from the manifest. Each row has its file's name and size, and its position
there. By these it looks up values of its file, and its bit in one array of the deleted positions of all files.

In predicates, literals are moved to the column's own type, as in evaluation on Arrow (``predicate.evaluate``), so Spark
casts nothing and can skip row groups. Spark agrees with dolmen on NaN (equal to itself, greatest), on -0.0 and on
strings (by their bytes). Where it does not, or has no type for the comparison, the predicate is ``Unsupported``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache, reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from pyroaring import BitMap
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.errors import CorruptionError, Error
from dolmen.format.entries import DataFile
from dolmen.predicate.ast import And, Compare, Constant, In, IsNull, Like, Literal, Not, Or, Predicate, Term, Truth
from dolmen.predicate.ast import Column as ColumnOf
from dolmen.predicate.domains import Domain, Op, convert, domain_of, fit, fit_float, grid, join, plain_of
from dolmen.predicate.like import pattern
from dolmen.rows.scan.row_groups import FilePlan
from dolmen.spark.frame_types import spark_type, to_frame
from dolmen.spark.tasks import FILE, Py4JError
from dolmen.store.base import ObjectStore, scheme_of, unquoted_url

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_PATTERN = re.compile(r"[]\\*?{}[]")  # characters that Hadoop reads as a pattern of paths, or as its escape
_log = logging.getLogger("dolmen")
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
"""The option that finds columns by their ids. Spark looks for it in Hadoop's configuration, which gets the session's
settings, and over them the options of one read."""
FIELD_ID = "parquet.field.id"  # the member of a column's metadata with its id
_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
"""The reader's class: the name "parquet" may mean a reader without ``_metadata``."""
_CACHE_BYTES = 1 << 40
SIZE = "__size"  # the column with the size of a row's file, in bytes
SOURCES = {FILE: "_metadata.file_name", SIZE: "_metadata.file_size"}
_UNKNOWN = "raise_error('a file was read that the manifest does not name, or not with this size')"
_WORDS = pa.field("words", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False)
_BEYOND = "CAST(raise_error('a file has more rows than the manifest says') AS bigint)"
_ROW_INDEX = "_tmp_metadata_row_index"
_PRUNING = "spark.sql.optimizer.nestedSchemaPruning.enabled"
FindColumn: TypeAlias = Callable[[ColumnOf], Column]
"""Returns Spark's expression for a column, or a field of a struct. Raises Unsupported."""
_MOST_PIECES = 200
_EPOCH = datetime(1970, 1, 1)
_NULL_TRUTH = "CAST(NULL AS BOOLEAN)"
_COMPARISONS: dict[Op, Callable[[Column, Column], Column]] = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


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
    spark: SparkSession, schema: s.StructType, root: str, files: Sequence[DataFile], name: str, *, by_id: bool = False
) -> DataFrame:
    """The columns of files as they are stored; ``by_id`` finds those with a ``FIELD_ID``, or NULL.

    Spark's plans show ``name``.
    """
    read_options = {**OPTIONS, **BY_FIELD_ID} if by_id else OPTIONS
    try:
        relation = _relation(spark, schema, root, files, name, read_options)
    except (Py4JError, TypeError) as error:  # this version of Spark has other internals
        warn_once(f"Spark lists the files of frames by itself: {type(error).__name__}")
        paths = [f"{root}/{file.path}" for file in files]
        return spark.read.format(_FORMAT).schema(schema).options(**read_options).load(paths)
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


def _relation(
    spark: SparkSession,
    schema: s.StructType,
    root: str,
    files: Sequence[DataFile],
    name: str,
    read_options: Mapping[str, str],
) -> JavaObject:
    jvm, session = spark._jvm, spark._jsparkSession
    sources, option = jvm.org.apache.spark.sql.execution.datasources, jvm.scala.Option
    options = jvm.PythonUtils.toScalaMap(dict(read_options))
    statuses = _statuses(jvm, root, files)
    # Spark compares relations by their roots. So this root, which does not exist, identifies the files. Plans show 100
    # characters of it.
    names = hashlib.sha256("\n".join(f"{root}/{file.path} {file.size}" for file in files).encode()).hexdigest()
    scheme, _, rest = root.partition("://")
    path = jvm.org.apache.hadoop.fs.Path(f"{scheme}://{rest.partition('/')[0]}/{name} {names}")
    cache = sources.SharedInMemoryCache(_CACHE_BYTES, -1).createForNewClient()
    cache.putLeafFiles(path, statuses)
    index = sources.InMemoryFileIndex(
        session,
        jvm.PythonUtils.toSeq([path]),
        options,
        option.empty(),
        cache,
        option.apply(sources.PartitionSpec.emptySpec()),
        option.empty(),
    )
    size = index.sizeInBytes()
    if size != sum(file.size for file in files):
        raise TypeError(f"an index of {size} bytes")
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
    documents = [{"path": f"{root}/{file.path}", "length": file.size, "isdir": False} for file in files]
    return mapper.readValue(json.dumps(documents), jvm.java.lang.Class.forName("[Lorg.apache.hadoop.fs.FileStatus;"))


class FileValues:
    """Gives each row values of its file. Sizes are compared before names, which cost ten times as much."""

    def __init__(self, files: Sequence[FilePlan]) -> None:
        self.files = files
        self.used: set[str] = set()
        """The columns ``FILE`` and ``SIZE``, if the SQL made so far needs them."""

    def sql(self, values: Sequence[int | bool | None], kind: str) -> str:
        """SQL for the value of a row's file. It is text because each step of a Column would be a call into the JVM.

        It fails for a row of another file, or of a file whose size is not the manifest's. If all values are equal, it
        looks nothing up.
        """
        texts = [f"CAST({'NULL' if value is None else str(value).lower()} AS {kind})" for value in values]
        if len(set(texts)) == 1:
            return texts[0]
        self.used.add(SIZE)
        names_and_texts: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for file, text in zip(self.files, texts, strict=True):
            names_and_texts[file.file.size].append((file.file.path.rpartition("/")[2], text))
        return self._by_size(sorted(names_and_texts.items()))

    def _by_size(self, names_and_texts: Sequence[tuple[int, Sequence[tuple[str, str]]]]) -> str:
        if len(names_and_texts) > 1:
            middle = len(names_and_texts) // 2
            below, above = self._by_size(names_and_texts[:middle]), self._by_size(names_and_texts[middle:])
            return f"CASE WHEN {SIZE} < {names_and_texts[middle][0]} THEN {below} ELSE {above} END"
        size, texts = names_and_texts[0]
        if len({text for _, text in texts}) == 1:
            return f"CASE WHEN {SIZE} = {size} THEN {texts[0][1]} ELSE {_UNKNOWN} END"
        self.used.add(FILE)
        cases = " ".join(f"WHEN {FILE} = '{name}' THEN {text}" for name, text in texts)
        return f"CASE WHEN {SIZE} <> {size} THEN {_UNKNOWN} {cases} ELSE {_UNKNOWN} END"


def is_deleted(spark: SparkSession, positions: Mapping[str, BitMap], file_values: FileValues, row: str) -> Column:
    """The condition that a row is deleted. It fails for a row that the manifest does not have.

    Each file has one bit for each of its rows, in words of 64, and the words of all files are one array. The array is
    an uncorrelated subquery: Spark computes it once, and sends it to all tasks.
    """
    words = [_words(positions.get(file.file.path), file.file.rows) for file in file_values.files]
    ends = np.cumsum([len(array) for array in words]).tolist()
    lists = pa.ListArray.from_arrays(pa.array([0, ends[-1]], pa.int32()), pa.array(np.concatenate(words)), _WORDS.type)
    bits = to_frame(spark, pa.table([lists], schema=pa.schema([_WORDS]))).scalar()
    start = file_values.sql([0, *ends[:-1]], "int")
    word = F.coalesce(F.get(bits, F.expr(f"{start} + CAST(shiftright({row}, 6) AS int)")), F.expr(_BEYOND))
    return F.call_function("shiftright", word, F.expr(f"CAST({row} & 63 AS int)")).bitwiseAND(1) == 1


def _words(positions: BitMap | None, rows: int) -> npt.NDArray[np.int64]:
    bits = np.zeros((rows + 63) // 64 * 64, np.uint8)
    if positions:
        bits[np.array(positions.to_array(), np.int64)] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


class RowIndex(Struct, frozen=True):
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
            name = reader.ROW_INDEX_TEMPORARY_COLUMN_NAME()
        except (Py4JError, TypeError):  # another version
            name = None
        is_stored = name == _ROW_INDEX and spark.conf.get(_PRUNING, "true") == "true"
        return cls(_ROW_INDEX if is_stored else "__row_index", is_stored)


class Unsupported(Error):  # noqa: N818 - no failure: the caller reads another way
    """Spark has no expression that is TRUE, FALSE or NULL for the same rows."""


def to_column(predicate: Predicate, column: FindColumn) -> Column:
    """The predicate over Spark's columns of ``spark_type``. Raises Unsupported: read the rows by the core."""
    match predicate:
        case Compare():
            return _compare(predicate, column)
        case In():
            return _in(predicate, column)
        case And():
            return reduce(and_, (to_column(arg, column) for arg in predicate.args))
        case Or():
            return reduce(or_, (to_column(arg, column) for arg in predicate.args))
        case Not():
            return ~to_column(predicate.arg, column)
        case IsNull():
            return _column(predicate.column, column).isNull()
        case Like():
            return _like(predicate, column)
        case Truth():
            return _column(predicate.column, column)
        case Constant():
            return F.expr(_NULL_TRUTH) if predicate.value is None else F.lit(predicate.value)


def _column(term: Term, column: FindColumn) -> Column:
    if isinstance(term, ColumnOf):
        return column(term)
    raise Unsupported("Spark computes differently where numbers are too large, and changes case differently")


def _compare(p: Compare, column: FindColumn) -> Column:
    left = _column(p.left, column)
    if not isinstance(p.right, Literal):
        if p.left.type != p.right.type:
            raise Unsupported(f"columns of types {p.left.type} and {p.right.type} are compared")
        return _COMPARISONS[p.op](left, _column(p.right, column))
    return _compare_value(p.op, left, p.left.arrow_type, p.right.plain, p.right.arrow_type)


def _compare_value(op: Op, left: Column, column_type: pa.DataType, value: Any, value_type: pa.DataType) -> Column:
    """A column of type ``column_type`` compared with a plain value of type ``value_type``."""
    domain = join(domain_of(column_type), domain_of(value_type))
    if domain is None:
        raise Unsupported(f"a column of type {column_type} is compared with a value of type {value_type}")
    value = convert(value, domain_of(value_type), domain)
    if domain is Domain.TIME:
        raise Unsupported("times of day are compared")
    if domain.is_float:
        return _compare_float(op, left, column_type, float(value), domain)
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        return _COMPARISONS[op](left, F.lit(bytearray(value) if isinstance(value, bytes) else value))
    return _compare_exact(op, left, column_type, value, domain)


def _compare_float(op: Op, left: Column, column_type: pa.DataType, value: float, domain: Domain) -> Column:
    if not pa.types.is_floating(column_type):
        return _compare_as_float(op, left, column_type, value, domain)
    if domain is Domain.FLOAT32:
        return _COMPARISONS[op](left, F.lit(value).cast("float"))
    return _COMPARISONS[op](left.cast("double"), F.lit(value))


def _compare_as_float(op: Op, left: Column, column_type: pa.DataType, value: float, domain: Domain) -> Column:
    """Compares integers or decimals with a float, as the floats next to them, but without a cast."""
    if op in ("=", "<>"):
        at_least, at_most = (_compare_as_float(side, left, column_type, value, domain) for side in (">=", "<="))
        return at_least & at_most if op == "=" else ~(at_least & at_most)
    fitted = fit_float(op, value, domain)
    if isinstance(fitted, bool):
        return _constant_unless_null(left, fitted)
    return _compare_exact(fitted[0], left, column_type, fitted[1])


def _compare_exact(op: Op, left: Column, column_type: pa.DataType, value: Any, domain: Domain = Domain.EXACT) -> Column:
    comparison = fit(op, value, grid(column_type, domain))
    if isinstance(comparison, bool):
        return _constant_unless_null(left, comparison)
    op, raw = comparison
    return _COMPARISONS[op](left, literal_of(raw, column_type))


def _constant_unless_null(left: Column, truth: bool) -> Column:
    return F.when(left.isNotNull(), F.lit(truth))


def literal_of(raw: Any, column_type: pa.DataType) -> Column:
    """A value of a type's grid, as Spark's literal of that type. Raises Unsupported."""
    t = pa.types
    if t.is_uint64(column_type):
        return F.lit(Decimal(raw)).cast("decimal(20,0)")
    if t.is_integer(column_type):
        return F.lit(raw).cast(spark_type(column_type).simpleString())
    if t.is_decimal(column_type):
        return F.lit(plain_of(raw, column_type)).cast(f"decimal({column_type.precision},{column_type.scale})")
    if t.is_date(column_type):
        return F.expr(f"date_from_unix_date({raw})")
    if t.is_timestamp(column_type) and column_type.tz:
        return F.expr(f"timestamp_micros({raw})")
    if t.is_timestamp(column_type):
        try:
            moment = _EPOCH + timedelta(microseconds=raw)
        except OverflowError:
            raise Unsupported("a timestamp beyond the year 9999") from None
        return F.expr(f"timestamp_ntz '{moment.isoformat(sep=' ', timespec='microseconds')}'")
    raise Unsupported(f"a literal of type {column_type}")


def _in(p: In, column: FindColumn) -> Column:
    """IN as a disjunction of its members: Spark's own IN compares floats by their bits."""
    left, column_type, value_type = _column(p.column, column), p.column.arrow_type, p.arrow_type
    parts = [_compare_value("=", left, column_type, value, value_type) for value in p.plain]
    if p.null:
        parts.append(F.expr(_NULL_TRUTH))
    return _any(parts) if parts else _constant_unless_null(left, False)


def _any(parts: list[Column]) -> Column:
    """OR as a balanced tree: a chain of thousands would exhaust Spark's stack."""
    while len(parts) > 1:
        parts = [reduce(or_, parts[index : index + 2]) for index in range(0, len(parts), 2)]
    return parts[0]


def _like(p: Like, column: FindColumn) -> Column:
    if p.ignore_case:
        raise Unsupported("ILIKE folds case character by character, Spark does not")
    left = _column(p.column, column)
    like = pattern(p.pattern, p.escape)
    if like.is_text:
        return left == F.lit(like.prefix)
    if like.is_prefix:
        return left.startswith(like.prefix) if like.prefix else F.when(left.isNotNull(), F.lit(True))
    if len(like.pieces) > _MOST_PIECES:
        raise Unsupported("a LIKE pattern of many pieces, for which Java's regular expressions take a deep stack")
    return left.rlike(_regex(like.runs))


def _regex(runs: Sequence[Sequence[str | bool]]) -> str:
    """A pattern for Java.

    A run between two ``%`` matches only where it first occurs: trying each later position takes long in a long text.
    """
    first, *others = ("".join(_quote(piece) if isinstance(piece, str) else "." for piece in run) for run in runs)
    if not others:
        return rf"(?s)\A{first}\z"
    return rf"(?s)\A{first}{''.join(f'(?>.*?{run})' for run in others[:-1])}.*{others[-1]}\z"


def _quote(text: str) -> str:
    return re.sub(r"([\x00-/:-@\[-`{-\x7f])", r"\\\1", text)


def spark_root(spark: SparkSession, store: ObjectStore) -> str | None:
    """The path of a store's root for Spark's own readers; None, and a warning, if they can't reach it.

    Like all paths of Hadoop it is not percent-encoded. ``s3://`` is read as ``s3a://``, with hadoop-aws on the class
    path, whose credentials are part of Hadoop's configuration (docs/spark.md).
    """
    url = store.url
    scheme = scheme_of(url)
    if scheme is None or scheme.hadoop is None:
        return None
    if scheme.hadoop_class is not None and not is_on_class_path(spark, scheme.hadoop_class):
        warn_once(
            f"{url} is read by Python workers: Spark's own readers need {scheme.hadoop_package} on the class path"
        )
        return None
    root = f"{scheme.hadoop}://{unquoted_url(url).removeprefix(f'{scheme.name}://')}"
    if _PATTERN.search(root):
        warn_once(rf"{url} is read by Python workers: Spark's own readers take \ * ? [ ] {{ }} for patterns of paths")
        return None
    return root


@cache
def warn_once(message: str) -> None:
    _log.warning(message)


def is_on_class_path(spark: SparkSession, name: str) -> bool:
    return bool(spark._jvm.org.apache.spark.util.Utils.classIsLoadable(name))
