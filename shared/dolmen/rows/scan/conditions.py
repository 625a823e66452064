"""Conditions of scans, updates and deletes: predicates, and SQL that DuckDB evaluates on the rows.

A predicate can be stored, as a tombstone, and every reader evaluates it. Any other text DuckDB evaluates now, on
the rows for which a predicate that it implies is TRUE: the conditions that DuckDB would push into a scan.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.late_imports import optional
from dolmen.base.runtime import cached_property
from dolmen.errors import InputError, PredicateError
from dolmen.format.schema import Field, Schema, same_names
from dolmen.format.types import TYPES, Mask, Plain, to_boolean_array, to_mask
from dolmen.predicate import bind
from dolmen.predicate.ast import TRUE, Predicate, columns
from dolmen.predicate.constants import LISTS, from_python
from dolmen.predicate.domains import Domain
from dolmen.predicate.parse import Parameters, Where, parse
from dolmen.predicate.text import plain_text, typed_literal
from dolmen.rows.scan.engines import polars_expressions
from dolmen.rows.scan.engines.dataframes import RowSource
from dolmen.rows.scan.engines.expressions import Evaluator
from dolmen.rows.scan.engines.sandbox import join_sandbox

_ROWS = "target"  # the name of the rows in a condition, as in the expressions of an update


class SqlCondition(Struct, frozen=True, dict=True):
    """A condition that is not a predicate: an SQL expression over the columns of a row."""

    text: str  # with literals in place of parameters
    fields: tuple[Field, ...]  # the columns that it reads, at least one
    implied: Predicate  # a predicate that is TRUE for every row for which the condition is TRUE

    @cached_property
    def ids(self) -> frozenset[int]:
        return frozenset(field.id for field in self.fields)


Condition: TypeAlias = Predicate | SqlCondition


def implied_by(condition: Condition | None) -> Predicate | None:
    """A predicate that is TRUE for every row for which the condition is TRUE; None for all rows."""
    if not isinstance(condition, SqlCondition):
        return condition
    return None if condition.implied == TRUE else condition.implied


def columns_of(condition: Condition) -> frozenset[int]:
    """Ids of the columns that it reads."""
    return condition.ids if isinstance(condition, SqlCondition) else columns(condition)


def join_conditions(conditions: Sequence[Condition]) -> Condition:
    """AND of conditions of one table."""
    implied = bind.conjunction(implied_by(each) or TRUE for each in conditions)
    sql = [each for each in conditions if isinstance(each, SqlCondition)]
    if not sql:
        return implied
    fields = {field.id: field for each in sql for field in each.fields}
    return SqlCondition(" AND ".join(f"({each.text}\n)" for each in sql), tuple(fields.values()), implied)


def read_predicate(where: Where, schema: Schema, *, now_us: int) -> Predicate:
    """The predicate of a text, a mapping, or an expression of pyarrow or Polars. See ``parse``."""
    if isinstance(where, pc.Expression):
        from dolmen.rows.scan.engines.arrow_expressions import read_expression  # imports ctypes

        return read_expression(where, schema)
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(where, polars.Expr):
        return polars_expressions.read_expression(where, schema)
    return parse(where, schema, now_us=now_us)


def read_condition(where: Where, schema: Schema, *, now_us: int) -> Condition:
    """The predicate of ``where``, or for any other text the condition that DuckDB evaluates. Raises PredicateError."""
    try:
        return read_predicate(where, schema, now_us=now_us)
    except PredicateError as error:
        if error.is_mistake:
            raise
        try:
            text = _with_literals(*(where if isinstance(where, tuple) else (str(where), ())))
            return _read_sql(text, schema)
        except InputError as refusal:
            reason = f"{error.reason}; nor is it a condition for DuckDB: {refusal}"
            raise PredicateError(reason, position=error.position) from refusal


def _read_sql(text: str, schema: Schema) -> SqlCondition:
    with closing(Evaluator()) as evaluator:
        known, names = {field.name.lower() for field in schema.fields}, set[str]()
        for first, *others in evaluator.references(text):
            is_column = first in known and (first != _ROWS or not others)  # of s.a it is s, not a column named a
            names.update([first] if is_column else {first, *others} & known)
        fields = tuple(field for field in schema.fields if field.name.lower() in names) or schema.fields[:1]
        arrow = pa.schema([field.to_arrow() for field in fields])
        [kind] = evaluator.types([text], {_ROWS: arrow})
        if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise InputError(f"it is of type {kind}")
    return SqlCondition(text, fields, _implied_predicate(text, schema))


@dataclass
class _NoRows:
    schema: pa.Schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def explain(self) -> object:
        return ""


def _implied_predicate(text: str, schema: Schema) -> Predicate:
    """The conditions that DuckDB pushes into a scan of rows for which a condition is TRUE."""
    from dolmen.rows.scan.engines.dataset import ScanDataset  # imports pyarrow.dataset

    arrow = pa.schema([field.to_arrow() for field in schema.fields])
    if same_names(arrow.names):
        return TRUE
    pushed: list[Predicate] = []

    def narrow(columns: Sequence[str], where: Predicate | None) -> RowSource:
        pushed.extend([] if where is None else [where])
        return _NoRows(pa.schema([arrow.field(name) for name in columns]))

    connection, errors = join_sandbox(threads="1"), optional("duckdb", "dolmen[sql]").Error
    try:
        relation = ScanDataset(_ROWS, arrow, schema, narrow).relation(connection)
        relation.set_alias(_ROWS).filter(f"({text}\n)").to_arrow_table()
    except errors:
        return TRUE
    finally:
        connection.close()
    return bind.conjunction(pushed)


class ConditionTest:
    """Evaluates a condition on rows, in any thread. ``now()`` is the same for all rows."""

    def __init__(self, condition: SqlCondition) -> None:
        self.fields, self._text = condition.fields, condition.text
        self._evaluator, self._lock = Evaluator(), threading.Lock()

    def narrow(self, keep: Mask | None, arrays: Sequence[pa.Array]) -> Mask:
        """A mask of the rows for which it is TRUE, among those of another mask; only these are evaluated."""
        rows = pa.record_batch(arrays, [field.name for field in self.fields])
        if keep is not None:
            rows = rows.filter(to_boolean_array(keep))
        if not rows.num_rows:
            return np.zeros(len(arrays[0]), np.bool_)
        with self._lock:
            found = to_mask(self._evaluator.is_true(self._text, {_ROWS: rows}))
        if keep is None:
            return found
        mask = np.zeros(len(keep), np.bool_)
        mask[np.flatnonzero(keep)[found]] = True
        return mask


def _with_literals(text: str, parameters: Parameters) -> str:
    """A condition with a literal in place of each parameter, ``?`` or ``:name``. Raises PredicateError."""
    if not parameters:
        return text
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import TokenError
    from sqlglot.tokens import TokenType

    try:
        tokens = Dialect.get_or_raise("duckdb").tokenize(text)
    except TokenError:
        raise PredicateError("a quote or a comment is left open") from None
    is_named = not isinstance(parameters, (list, tuple))
    values: dict[str, Any] = {str(n): v for n, v in (parameters.items() if is_named else enumerate(parameters, 1))}  # type: ignore[union-attr]
    ends_operand = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER, TokenType.R_BRACKET)
    parts, end, used = list[str](), 0, set[str]()
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        if token.token_type is TokenType.PLACEHOLDER:
            name, last = str(len(used) + 1), token
        elif token.token_type is TokenType.COLON and after is not None and after.start == token.end + 1:
            if not is_named or (before is not None and before.token_type in ends_operand):
                continue  # a slice, or a member of a struct
            name, last = after.text, after
        else:
            continue
        if name not in values:
            raise PredicateError(f"no value for parameter {name!r}: {len(values)} were given", position=token.start)
        used.add(name)
        in_list = before is not None and before.token_type is TokenType.IN
        parts += [text[end : token.start], f" {_literal(values[name], in_list=in_list)} "]
        end = last.end + 1
    if unused := values.keys() - used:
        raise PredicateError(f"parameter {min(unused)!r} is not in the text")
    return "".join([*parts, text[end:]])


def _literal(value: Any, *, in_list: bool = False) -> str:
    """A value of a parameter as DuckDB's SQL, of the type that it has in predicates."""
    if value is None:
        return "NULL"
    if isinstance(value, LISTS):
        members = ", ".join(map(_literal, value))
        return f"({members})" if in_list and value else f"[{members}]"
    constant = from_python(value)
    assert isinstance(constant.kind, Domain)
    stored = next(each.stored for each in TYPES if each.domain == constant.kind.name and each.stored)
    plain: Plain = constant.value  # type: ignore[assignment]  # no interval
    if constant.kind is Domain.EXACT:
        return f"({plain_text(plain, stored)})"  # or a sign before it would begin a comment
    return typed_literal(plain, stored)
