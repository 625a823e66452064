"""Finds the rows for which any of many predicates is TRUE, without evaluating each predicate on each row.

One lookup finds the predicates whose equality a row satisfies, such as ``user = 7 AND kind LIKE 'x%'`` of a hundred
deletes, and only these are evaluated on it. Each conjunct narrows the rows for the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.runtime import cached_property
from dolmen.format.types import to_mask
from dolmen.predicate import ast
from dolmen.predicate.ast import Predicate, Term
from dolmen.predicate.evaluate import equal_values, matches, values_of, with_fields

_COMPARE_NS, _CALL_NS = 5, 20  # A comparison of numbers or text, and a function call, for a row
LOOK_UP_NS = 30  # about the time to look up one row among all equalities

Mask: TypeAlias = npt.NDArray[np.bool_]
_Rows: TypeAlias = npt.NDArray[np.int64]

_FEW_EQUALITIES = 3  # with fewer equalities of a term, comparing with each is faster than a lookup
_SHARED = 2  # A conjunct of this number of predicates is evaluated once, on all rows
_MAX_CACHED = 256  # the most conjuncts whose masks are cached, a byte for each row
_SPARSE = 4  # once fewer than 1 / _SPARSE of all rows remain, conjuncts are evaluated on these rows alone


class Conjunction:
    """A predicate as a list of conjuncts that must all be TRUE, the cheapest first."""

    def __init__(self, predicate: Predicate) -> None:
        self.predicate = predicate
        self.columns = ast.all_columns(predicate)
        self.ids, self.term_ids = ast.columns(predicate), ast.term_ids(predicate)
        self.conjuncts = tuple(sorted(_conjuncts(predicate), key=_cost))
        self._values: dict[pa.DataType, pa.Array | None] = {}

    @cached_property
    def alternatives(self) -> tuple[Conjunction, ...]:
        """Conjunctions of which one must be TRUE: the operands of an OR, or the predicate itself."""
        if isinstance(self.predicate, ast.Or):
            return tuple(each for arg in self.predicate.args for each in Conjunction(arg).alternatives)
        return (self,)

    @cached_property
    def equality(self) -> ast.Compare | None:
        """A conjunct that compares a column or call with one value by ``=``; None if there is none."""
        return next((each for each in self.conjuncts if isinstance(each, ast.Compare) and _is_equality(each)), None)

    @cached_property
    def other_conjuncts(self) -> tuple[Predicate, ...]:
        return tuple(each for each in self.conjuncts if each is not self.equality)

    def value(self, arrow_type: pa.DataType) -> pa.Array | None:
        if arrow_type not in self._values:
            assert self.equality is not None
            assert isinstance(self.equality.right, ast.Literal)
            self._values[arrow_type] = equal_values(self.equality.left, self.equality.right, arrow_type)
        return self._values[arrow_type]


def row_cost_ns(predicate: Predicate | None) -> int:
    """About the nanoseconds that one more predicate (None if unknown) adds to ``any_of`` per row.

    A row is looked up once for all predicates with an equality.
    """
    if predicate is None:
        return _COMPARE_NS
    if isinstance(predicate, ast.Or):
        return sum(map(row_cost_ns, predicate.args))
    if any(map(_is_equality, _conjuncts(predicate))):
        return 0
    return _CALL_NS if ast.uses_calls(predicate) else _COMPARE_NS


def any_of(
    predicates: Sequence[Conjunction], arrays: Mapping[int, pa.Array], length: int, limits: Sequence[Mask | None]
) -> Mask:
    """A mask of the rows for which any of the predicates is TRUE.

    Args:
        arrays: by id, the columns that the predicates name.
        limits: for each predicate, a mask of the rows it applies to; None for all rows.
    """
    each = [(one, limit) for whole, limit in zip(predicates, limits, strict=True) for one in whole.alternatives]
    return _AnyOf([one for one, _ in each], arrays, length, [limit for _, limit in each]).find()


class _AnyOf:
    def __init__(
        self,
        predicates: Sequence[Conjunction],
        arrays: Mapping[int, pa.Array],
        length: int,
        limits: Sequence[Mask | None],
    ) -> None:
        self._predicates, self._length, self._limits = predicates, length, limits
        used = chain.from_iterable(ast.all_columns(each.predicate) for each in predicates)
        self._arrays = with_fields(arrays, used)
        self._matches = np.zeros(length, np.bool_)
        counts = Counter(each for predicate in predicates for each in predicate.conjuncts if _is_short(each))
        self._shared = {each for each, count in counts.items() if count >= _SHARED}
        self._masks: dict[Predicate, Mask] = {}

    def find(self) -> Mask:
        by_term: dict[Term, list[int]] = defaultdict(list)
        others: list[int] = []
        for at, predicate in enumerate(self._predicates):
            if predicate.equality is None:
                others.append(at)
            else:
                by_term[predicate.equality.left].append(at)
        for term, some in by_term.items():
            others += some if len(some) < _FEW_EQUALITIES else self._look_up(term, some)
        for at in others:
            self._scan(at)
        return self._matches

    def _look_up(self, term: Term, some: Sequence[int]) -> list[int]:
        """Finds the rows of predicates with an equality of one term. Returns the predicates that need a scan."""
        array = values_of(term, self._arrays)
        values = {at: self._predicates[at].value(array.type) for at in some}
        others = [at for at, value in values.items() if value is None]
        some = [at for at, value in values.items() if value is not None and len(value)]
        if not some:
            return others
        sought = pa.concat_arrays([values[at] for at in some])
        distinct = sought.unique()
        where = pc.index_in(array, distinct).fill_null(len(distinct)).to_numpy()
        if len(distinct) < np.iinfo(np.int16).max:
            where = where.astype(np.int16)  # which numpy sorts by radix
        order = np.argsort(where, kind="stable")
        ends = np.searchsorted(where[order], np.arange(len(distinct) + 1, dtype=where.dtype)).tolist()
        for at, index in zip(some, pc.index_in(sought, distinct).to_pylist(), strict=True):
            rows = order[ends[index] : ends[index + 1]]
            if len(rows) * _SPARSE < self._length:
                self._narrow(at, rows, self._predicates[at].other_conjuncts)
            else:
                others.append(at)
        return others

    def _scan(self, at: int) -> None:
        mask = self._limits[at]
        conjuncts = self._predicates[at].conjuncts
        for done, conjunct in enumerate(conjuncts):
            if mask is not None:
                count = int(np.count_nonzero(mask))
                if count * _SPARSE < self._length:
                    self._narrow(at, np.flatnonzero(mask), conjuncts[done:])
                    return
            found = self._mask_of(conjunct)
            mask = found if mask is None else mask & found
        self._matches |= mask if mask is not None else True

    def _narrow(self, at: int, rows: _Rows, conjuncts: Iterable[Predicate]) -> None:
        """Evaluates conjuncts on some rows, and records those for which all are TRUE."""
        limit = self._limits[at]
        rows = rows[~self._matches[rows]] if limit is None else rows[~self._matches[rows] & limit[rows]]
        for conjunct in conjuncts:
            if not len(rows):
                return
            if conjunct in self._shared:
                rows = rows[self._mask_of(conjunct)[rows]]
                continue
            values = {id_: self._arrays[id_].take(pa.array(rows)) for id_ in ast.term_ids(conjunct)}
            rows = rows[to_mask(matches(conjunct, values, len(rows)))]
        self._matches[rows] = True

    def _mask_of(self, conjunct: Predicate) -> Mask:
        mask = self._masks.get(conjunct)
        if mask is None:
            mask = to_mask(matches(conjunct, self._arrays, self._length))
            if conjunct in self._shared and len(self._masks) < _MAX_CACHED:
                self._masks[conjunct] = mask
        return mask


def _conjuncts(predicate: Predicate) -> list[Predicate]:
    if isinstance(predicate, ast.And):
        return [each for arg in predicate.args for each in _conjuncts(arg)]
    return [predicate]


def _is_equality(conjunct: Predicate) -> bool:
    return isinstance(conjunct, ast.Compare) and conjunct.op == "=" and isinstance(conjunct.right, ast.Literal)


def _is_short(conjunct: Predicate) -> bool:
    """Whether a conjunct has no long list of values, which takes long to hash."""
    return isinstance(conjunct, (ast.Compare, ast.IsNull, ast.Like, ast.Truth))


_RANKS: dict[type, int] = {ast.Compare: 1, ast.IsNull: 2, ast.Truth: 2, ast.In: 3, ast.Like: 4}


def _cost(conjunct: Predicate) -> int:
    """The rank of a conjunct: lower if it costs less or leaves fewer rows."""
    if ast.computes(conjunct):
        return 5
    if _is_equality(conjunct):
        return 0
    return _RANKS.get(type(conjunct), 6)
