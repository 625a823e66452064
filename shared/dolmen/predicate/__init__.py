"""Predicates, the conditions on rows: parses, binds, stores, evaluates and prints them, and prunes files by statistics.

docs/predicates.md says what they mean, on every engine. They follow SQL's three-valued logic, compare numbers as in
mathematics, and round only in comparisons with floats. NaN equals itself and is greater than every number.

It imports ``dolmen.format`` and the rooms below it, but not ``dolmen.store``.
Begin with ``dolmen.predicate.ast``, then ``dolmen.predicate.parse``, ``dolmen.predicate.bind`` and
``dolmen.predicate.evaluate``.
"""

from dolmen.predicate.ast import (
    And,
    Column,
    Compare,
    Constant,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Predicate,
    Truth,
    as_keys,
    columns,
    from_builtins,
    from_json,
    to_builtins,
    to_json,
    uses_calls,
)  # fmt: skip
from dolmen.predicate.bind import days_to_timestamps, find_column, rebind
from dolmen.predicate.evaluate import check_evaluates, evaluate, matches
from dolmen.predicate.parse import Parameters, Where, parse, with_parameters
from dolmen.predicate.prune import StatsVerdict, judge
from dolmen.predicate.text import to_sql

__all__ = [
    "And", "Column", "Compare", "Constant", "In", "IsNull", "Like", "Literal", "Not", "Or", "Parameters",
    "Predicate", "StatsVerdict", "Truth", "Where", "as_keys", "check_evaluates", "columns", "days_to_timestamps",
    "evaluate", "find_column", "from_builtins", "from_json", "judge", "matches", "parse", "rebind", "to_builtins",
    "to_json", "to_sql", "uses_calls", "with_parameters",
]  # fmt: skip
