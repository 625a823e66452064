"""SQL expressions over columns of rows: DuckDB evaluates them on record batches, one batch after the other.

Rows may have several sides, as in a merge the table's and the source's: ``target.price + source.price``.
An expression sees the columns of its own row, so subqueries, aggregates and window functions are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
from msgspec import Struct

from dolmen.base.late_imports import optional
from dolmen.errors import InputError, short_repr
from dolmen.format.schema import same_names
from dolmen.format.types import contains_kind, is_text, one_array
from dolmen.rows.scan.engines.sandbox import has_zone, join_sandbox, reject_functions

Node = Mapping[str, Any]  # a node of the tree that DuckDB parses an expression to

_MADE_OF_ARGUMENTS = {"list_value", "array_value", "struct_pack", "row", "map", "ifnull", "if"}
_ARITHMETIC = {"+", "-", "*", "/", "//", "%", "**", "^"}


_REFUSED = {"SUBQUERY": "a subquery", "STAR": "all columns at once", "PARAMETER": "a parameter"}

_CONSTANTS = ("CONSTANT", "CAST", "TYPE")
_NO_COLUMNS = "__rows"  # the column that rows have if expressions use none


class Literals(Struct, frozen=True):
    """The literals among the results of an expression, which DuckDB gives a type before it knows their column's.

    ``0.5`` is a DECIMAL(2, 1), ``1e3`` a DOUBLE, ``'2026-01-05'`` a VARCHAR, and NULL an INTEGER up to DuckDB 1.5.
    Literals may become values of another type; values of columns and computed values may not.
    """

    only_literals: bool  # every result is a literal
    only_literal_texts: bool  # every result that is a text is a literal
    has_null: bool  # NULL or an empty list is among the results

    @classmethod
    def of(cls, tree: Node, columns: Mapping[str, list[pa.DataType]]) -> Literals:
        """Finds the literals in the tree of an expression; ``columns`` are the types by name in lower case."""
        found = list(_results(tree))
        others = [node for node in found if node["class"] != "CONSTANT" and not _is_empty(node)]
        null = any(_is_empty(node) or _is_null(node) for node in found)
        return cls(not others, not any(_may_be_text(node, columns) for node in others), null)


class _AnyText(dict[str, list[pa.DataType]]):
    """Types of columns that are not known: each may be text."""

    def get(self, name: str, default: Any = None) -> Any:
        return [pa.string()]


def literals_of_query(query: str) -> list[Literals] | None:
    """The literals among the values of each column of a query; None where its columns are not in its text."""
    connection = join_sandbox()
    try:
        [(body,)] = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    finally:
        connection.close()
    tree = _decode(body, query)
    return None if tree["error"] else _literals_of_node(tree["statements"][0]["node"])


def _decode(body: str, text: str) -> Any:
    """A tree from ``json_serialize_sql``."""
    try:
        return json.loads(body)
    except RecursionError:
        raise InputError(f"{short_repr(text)} is nested too deeply: write it with fewer levels") from None


def _literals_of_node(node: Node) -> list[Literals] | None:
    if node["type"] == "SET_OPERATION_NODE":
        sides = list(map(_literals_of_node, node.get("children") or [node["left"], node["right"]]))
        return None if None in sides else [_combine(pair) for pair in zip(*sides, strict=False)]
    if node["type"] != "SELECT_NODE":
        return None
    rows = [node["select_list"]]
    if node["from_table"]["type"] == "EXPRESSION_LIST" and [each["class"] for each in rows[0]] == ["STAR"]:
        rows = node["from_table"]["values"]
    elif any(each["class"] == "STAR" for each in rows[0]):
        return None
    return [_combine([Literals.of(value, _AnyText()) for value in column]) for column in zip(*rows, strict=False)]


def _combine(each: Sequence[Literals]) -> Literals:
    return Literals(
        all(one.only_literals for one in each),
        all(one.only_literal_texts for one in each),
        any(one.has_null for one in each),
    )


def _results(node: Node) -> Iterator[Node]:
    inner: list[Node] | None = None
    if node["class"] == "CASE":
        inner = [*(check["then_expr"] for check in node["case_checks"]), node["else_expr"]]
    elif node["type"] == "OPERATOR_COALESCE":
        inner = _arguments(node)
    elif node["class"] == "FUNCTION":
        name = node["function_name"]
        if name in _MADE_OF_ARGUMENTS:
            inner = _arguments(node)[name == "if" :] or None
        elif name in ("+", "-") and len(_arguments(node)) == 1:
            inner = _arguments(node)
    if inner is None:
        yield node
    for each in inner or ():
        yield from _results(each)


def _arguments(node: Node) -> list[Node]:
    """The arguments of a function; DuckDB 2.0 also gives each a name."""
    arguments = node.get("arguments") or node.get("children") or ()
    return [each.get("expression", each) for each in arguments]


def _is_empty(node: Node) -> bool:
    """True if it makes an empty list or map."""
    return node["class"] == "FUNCTION" and node["function_name"] in _MADE_OF_ARGUMENTS and not _arguments(node)


def _is_null(node: Node) -> bool:
    if node["class"] != "CONSTANT":
        return False
    literal = node.get("literal")
    return bool(node["value"]["is_null"]) if literal is None else literal["kind"] == "NULL_LITERAL"


def _may_be_text(node: Node, columns: Mapping[str, list[pa.DataType]]) -> bool:
    if node["class"] == "COLUMN_REF":
        kinds = chain.from_iterable(columns.get(name.lower(), ()) for name in node["column_names"])
        return any(contains_kind(kind, is_text) for kind in kinds)
    return not (node["class"] == "FUNCTION" and node["function_name"] in _ARITHMETIC)


Sides: TypeAlias = Mapping[str, pa.RecordBatch]  # rows by the name of their side; all have as many


class Evaluator:
    """Evaluates SQL expressions, in one thread. ``now()`` is the same for all rows of one evaluator."""

    def __init__(self) -> None:
        # Rewritten, ``u + 1 = 18446744073709551615`` fails inside of DuckDB: expressions are evaluated unchanged.
        self._connection = join_sandbox(threads="1", disabled_optimizers="expression_rewriter")
        self._trees: dict[str, Any] = {}
        self._errors: Any = optional("duckdb", "dolmen[sql]").Error

    def columns(self, text: str) -> frozenset[str]:
        """The words in an expression that may name columns, in lower case. Raises InputError."""
        return frozenset(chain.from_iterable(self.references(text)))

    def references(self, text: str) -> list[tuple[str, ...]]:
        """The references to columns: their parts in lower case, such as a column and a field inside it."""
        if not text.strip():
            raise InputError("an expression is empty")
        if text not in self._trees:
            self._trees[text] = self._read(text)
        column_names = (node.get("column_names") or () for node in _nodes(self._trees[text]))
        return [tuple(map(str.lower, parts)) for parts in column_names if parts]

    def is_constant(self, text: str) -> bool:
        """True if an expression is a literal, with a sign or a cast. Raises InputError, as ``columns``."""
        self.columns(text)
        kinds = [node for node in _nodes(self._trees[text]) if "class" in node]
        return all(node["class"] in _CONSTANTS or node.get("function_name") in ("-", "+") for node in kinds)

    def equal_columns(self, text: str) -> list[tuple[list[str], list[str]]]:
        """The pairs of columns that a condition requires to be equal, if it only joins such pairs by AND; else none."""
        self.columns(text)
        found, pending = [], [self._trees[text]]
        while pending:
            node = pending.pop(0)
            if node["type"] == "CONJUNCTION_AND":
                pending += node["children"]
                continue
            sides = [node.get(side, {}).get("column_names") for side in ("left", "right")]
            if node["type"] != "COMPARE_EQUAL" or not all(sides):
                return []
            found.append((sides[0], sides[1]))
        return found

    def literals(self, text: str, sides: Mapping[str, pa.Schema]) -> Literals:
        """The literals among the results of an expression over some columns. Raises InputError, as ``columns``."""
        self.columns(text)
        types: dict[str, list[pa.DataType]] = {}
        for schema in sides.values():
            for field in schema:
                types.setdefault(field.name.lower(), []).append(field.type)
        return Literals.of(self._trees[text], types)

    def uses(self, texts: Iterable[str], names: Iterable[str]) -> list[str]:
        words = frozenset[str]().union(*(self.columns(text) for text in texts))
        return [name for name in names if name.lower() in words]

    def types(self, texts: Sequence[str], sides: Mapping[str, pa.Schema]) -> list[pa.DataType]:
        """The types of expressions. Raises InputError if DuckDB refuses one, or it gives times of day with a zone."""
        rows = {
            side: pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
            for side, schema in sides.items()
        }
        for text in texts:
            self.columns(text)
            with self._explaining(text):
                self._run(f"SELECT 1 FROM {_join_sides(rows)} WHERE (({text}\n)) IS NULL", [text], rows)  # noqa: S608 - a user's
        return [array.type for array in self.evaluate(texts, rows)]

    def evaluate(self, texts: Sequence[str], sides: Sides) -> list[pa.Array]:
        """The values of expressions, one for each row of the sides. Raises InputError if one fails."""
        if not texts:
            return []
        listed = ", ".join(f'({text}\n) AS "{index}"' for index, text in enumerate(texts))
        try:
            result = self._run(f"SELECT {listed} FROM {_join_sides(sides)}", texts, sides)  # noqa: S608 - of one expression each
        except self._errors as error:
            for text in texts if len(texts) > 1 else ():  # the first one that fails alone is named
                self.evaluate([text], sides)
            raise _refusal(texts[0], error) from error
        rows = min(side.num_rows for side in sides.values())
        if (result.num_rows, result.num_columns) != (rows, len(texts)):
            raise InputError(f"{short_repr(texts[0])} gives {result.num_rows} values for {rows} rows: one is needed")
        try:
            return [one_array(column) for column in result.columns]
        except pa.ArrowNotImplementedError as error:
            raise InputError(
                f"{short_repr(texts[0])} gives values of a type that no column can have: {error}"
            ) from error

    def is_true(self, text: str, sides: Sides) -> pa.Array:
        """Whether a condition is TRUE, for each row. As after WHERE, what follows an AND may not be evaluated.

        Raises InputError if it fails for a row.
        """
        is_true = f"CASE WHEN ({text}\n) THEN TRUE ELSE FALSE END"
        with self._explaining(text):
            return one_array(self._run(f"SELECT {is_true} FROM {_join_sides(sides)}", [text], sides).column(0))  # noqa: S608 - of one expression

    def close(self) -> None:
        self._connection.close()

    def _run(self, query: str, texts: Sequence[str], sides: Sides) -> pa.Table:
        for side, rows in sides.items():
            names = self.uses(texts, rows.schema.names)
            if alike := same_names(names):
                raise InputError(f"columns {alike[0]!r} and {alike[1]!r} of {side} are the same to SQL: rename one")
            narrow = rows.select(names or [])
            if not names:
                narrow = pa.record_batch([pa.nulls(rows.num_rows, pa.bool_())], [_NO_COLUMNS])
            # DuckDB reads a stream in this thread, and asks nothing of it.
            self._connection.register(side, pa.RecordBatchReader.from_batches(narrow.schema, [narrow]))
        try:
            relation = self._connection.sql(query)
            for text, kind in zip(texts, relation.types, strict=False):
                if has_zone(kind):  # Arrow has no type for it: the zone would be lost
                    raise InputError(f"{short_repr(text)} gives a time of day with a zone: cast it to TIME")
            return relation.to_arrow_table()
        except self._errors:
            with suppress(self._errors):  # the database may have failed inside
                self._connection.execute("ROLLBACK; BEGIN TRANSACTION")
            raise
        finally:
            with suppress(self._errors):
                for side in sides:
                    self._connection.unregister(side)

    def _read(self, text: str) -> Any:
        with self._explaining(text):
            serialize = "SELECT json_serialize_sql(?), json_serialize_sql(?)"
            [(body, bare)] = self._connection.execute(serialize, [f"SELECT ({text}\n)", f"SELECT {text}"]).fetchall()
        tree = _decode(body, text)
        if tree["error"]:
            raise _refusal(text, tree["error_message"])
        select = tree["statements"][0]["node"]
        is_one = len(tree["statements"]) == 1 and len(select.get("select_list", ())) == 1
        is_one = is_one and not _decode(bare, text)["error"]  # parentheses in it are pairs
        if not is_one or select["from_table"]["type"] != "EMPTY" or select["where_clause"] or select["modifiers"]:
            raise InputError(f"{short_repr(text)} is no single expression")
        reject_functions(body, self._connection)
        for node in _nodes(select["select_list"]):
            if node.get("class") in _REFUSED:
                raise InputError(f"{short_repr(text)} has {_REFUSED[node['class']]}, which a single row cannot give")
        return select["select_list"][0]

    @contextmanager
    def _explaining(self, text: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise _refusal(text, error) from error


def _join_sides(sides: Iterable[str]) -> str:
    return " POSITIONAL JOIN ".join(sides)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    below = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    if isinstance(tree, dict):
        yield tree
    for each in below:
        yield from _nodes(each)


def _refusal(text: str, error: object) -> InputError:
    reason = str(error).partition("\n\nStack Trace")[0].strip().partition("\n")[0]
    return InputError(f"DuckDB can't evaluate {short_repr(text)}: {reason}")
