"""Predicates, the conditions on rows: parses, binds, stores, evaluates and prints them, and prunes files by statistics.

It imports ``dolmen.format`` and the rooms below it, but not ``dolmen.store``.
Begin with ``dolmen.predicate.ast``, then ``dolmen.predicate.parse``, ``dolmen.predicate.bind`` and
``dolmen.predicate.evaluate``.

What a predicate means, on every engine:

- SQL's three-valued logic: a comparison with NULL is NULL, ``NOT NULL`` is NULL, ``FALSE AND NULL`` is FALSE, ``TRUE
  OR NULL`` is TRUE; ``x IN (1, NULL)`` is TRUE or NULL. WHERE keeps, and DELETE removes, rows for which the predicate
  is TRUE.
- Integers and decimals of any width compare as in mathematics: ``tiny = 300`` is FALSE for an int8, ``n < 1.5`` means
  ``n <= 1``; nothing wraps or is rounded.
- Compared with a float, a number is rounded to the nearest float of that width: an int64 equals the double
  9007199254740992.0 if it rounds to it, as in DuckDB and Spark. A literal with a point is a decimal: ``f = 0.1`` finds
  the float32 nearest to 0.1. A literal with an exponent is a double: ``f = 1e-1`` compares doubles and misses it.
- NaN equals itself and is greater than every number; -0.0 equals 0.0.
- Strings compare by their UTF-8 bytes (which is by code point), and binary values by bytes. In LIKE, ``%`` is any text
  and ``_`` is any one character, newlines included; without ESCAPE there is no escape character. ILIKE lower-cases both
  sides, character by character.
- Timestamps with a zone are instants; a text without an offset or a date that is compared with them is in UTC. They
  cannot be compared with timestamps without a zone, among which a date is its midnight.
- A comparison uses the widest of the columns' bound types, their types in the file, and the literal's type.

``parse`` makes a predicate; ``to_builtins``, ``to_json`` and their inverses store it; ``rebind`` follows a schema
change; ``evaluate`` and ``matches`` run it on Arrow columns; ``judge`` prunes; ``as_keys`` finds deletes by key; and
``to_sql`` shows it.
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
