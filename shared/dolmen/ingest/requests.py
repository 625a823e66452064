"""Delete requests, as messages say them.

A message is one JSON object. It names one table, or several for one atomic delete over all of them::

    {"table": "events", "where": "user_id = 42 AND event_time < '2025-01-01'", "request_id": "gdpr-17"}
    {"table": "events", "where": {"user_id": 42}}
    {"table": "events", "keys": [1, 2, 3]}                        by the primary key
    {"table": "events", "keys": [[1, "a"], [2, "b"]], "on": ["user_id", "kind"]}
    {"tables": ["events", "sessions"], "where": {"user_id": 42}}  the same from each
    {"tables": [{"table": "events", "where": {"user_id": 42}},    something else from each
                {"table": "users", "keys": [42]}]}

==============  =======================================================================================================
``table``       name of a table
``tables``      names that share the other members, or objects that each have their own; at most 100
``where``       a predicate: SQL text, or an object of columns and values; ``"TRUE"`` deletes all rows
``keys``        values of the key, or lists of them where it has several columns; at most 1,000,000 in all
``on``          the key's columns; the primary key by default
``mode``        ``"tombstone"`` (the default: constant time) or ``"positions"`` (looks the rows up now)
``request_id``  1 to 256 printable characters; under one id a request is applied once, however often it comes, and
                another request is refused. The message's own id by default.
==============  =======================================================================================================

Any other member is refused, and so is one that stands there twice. A message has at most 64 MB. Pure: nothing here
knows the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from dolmen.commit.applied import digest_of
from dolmen.errors import InputError, LimitError
from dolmen.format.layout import check_table_name
from dolmen.mutation import MAX_KEYS, Mode

MAX_BODY_BYTES = 64 << 20
MAX_TABLES = 100
MAX_ID_LENGTH = 256

_OF_ONE = frozenset({"table", "where", "keys", "on", "mode"})
_OF_ALL = frozenset({"tables", "request_id"})


@dataclass(frozen=True, slots=True)
class TableDelete:
    """What one request deletes from one table: by ``where`` or by ``keys``, one of them."""

    table: str
    where: str | Mapping[str, Any] | None
    keys: list[Any] | None
    on: list[str] | None
    mode: Mode

    @property
    def content(self) -> dict[str, Any]:
        """What a digest is made over: how the rows are found (``mode``) changes nothing about which they are."""
        return {"table": self.table, "where": self.where, "keys": self.keys, "on": self.on}


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """One delete over one or several tables, applied as a whole and once."""

    id: str
    digest: str
    deletes: tuple[TableDelete, ...]


def parse_request(body: str | Mapping[str, Any], message_id: str | None) -> DeleteRequest:
    """Reads a message.

    Args:
        body: JSON text, or what was read from it.
        message_id: stands in where there is no ``request_id``.

    Raises:
        LimitError: it is too large, or has too many keys or tables.
        InputError: it is no such message; says what to correct.
    """
    document = _json(body) if isinstance(body, str) else body
    if not isinstance(document, Mapping):
        raise InputError(f"a delete request is a JSON object, not {_kind(document)}")
    request_id = _request_id(document, message_id)
    deletes = tuple(_deletes(document))
    keys = sum(len(delete.keys) for delete in deletes if delete.keys is not None)
    if keys > MAX_KEYS:
        raise LimitError(f"{keys:,} keys in one request: at most {MAX_KEYS:,} are allowed, so split it")
    names = [delete.table for delete in deletes]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"table {name!r} stands in the request twice; say it once, with OR")
    contents: list[dict[str, Any]] = [delete.content for delete in deletes]
    return DeleteRequest(request_id, digest_of(contents[0] if len(contents) == 1 else contents), deletes)


def _json(text: str) -> Any:
    if len(text) > MAX_BODY_BYTES:
        raise LimitError(f"a request of {len(text):,} characters: at most {MAX_BODY_BYTES:,} are allowed")
    try:
        document = json.loads(text, object_pairs_hook=_members, parse_constant=_no_constant)
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except UnicodeEncodeError:
        raise InputError("an escaped half of a surrogate pair is not text") from None
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, InputError) else InputError(f"not JSON: {error}") from None
    return document


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"member {twice!r} stands in an object twice")
    return members


def _no_constant(name: str) -> Any:
    raise InputError(f"{name} is not JSON; compare with CAST('{name}' AS DOUBLE) in a predicate's text")


def _request_id(document: Mapping[str, Any], message_id: str | None) -> str:
    given = document.get("request_id", message_id)
    if not isinstance(given, str):
        raise InputError("no request_id, and no message id to stand in for it" if given is None else "request_id: text")
    if not 0 < len(given) <= MAX_ID_LENGTH or not given.isprintable():
        raise InputError(f"request_id: 1 to {MAX_ID_LENGTH} printable characters")
    if given.startswith("s3://"):
        raise InputError("request_id: one that begins with s3:// would be taken for a dropped file's")
    return given


def _deletes(document: Mapping[str, Any]) -> list[TableDelete]:
    if unknown := sorted(str(name) for name in document.keys() - _OF_ONE - _OF_ALL):
        raise InputError(f"unknown member {unknown[0]!r}; there are: {', '.join(sorted(_OF_ONE | _OF_ALL))}")
    if ("table" in document) == ("tables" in document):
        raise InputError("name a table: 'table', or 'tables' for several, one of them")
    if "table" in document:
        return [_delete(document)]
    tables = document["tables"]
    if not isinstance(tables, list) or not tables:
        raise InputError("tables: a list of names, or of objects with a table each")
    if len(tables) > MAX_TABLES:
        raise LimitError(f"{len(tables)} tables in one request: at most {MAX_TABLES} are allowed")
    shared = {name: value for name, value in document.items() if name in _OF_ONE}
    if all(isinstance(table, str) for table in tables):
        return [_delete({**shared, "table": table}) for table in tables]
    if not all(isinstance(table, Mapping) for table in tables):
        raise InputError("tables: names or objects, not both")
    if shared:
        raise InputError(f"{sorted(shared)[0]!r} stands beside tables that each say what to delete: put it into them")
    for place, table in enumerate(tables, 1):
        if unknown := sorted(str(name) for name in table.keys() - _OF_ONE):
            raise InputError(f"table {place}: unknown member {unknown[0]!r}")
    return [_delete(table) for table in tables]


def _delete(said: Mapping[str, Any]) -> TableDelete:
    table = check_table_name(said.get("table", ""))
    if ("where" in said) == ("keys" in said):
        raise InputError(f"table {table!r}: delete what? Say where or keys, one of them")
    mode = said.get("mode", "tombstone")
    if mode not in get_args(Mode):
        raise InputError(f"mode {mode!r}: {' or '.join(map(repr, get_args(Mode)))}")
    if "keys" in said:
        if mode == "positions":
            raise InputError("mode 'positions' goes with where, not with keys")
        return TableDelete(table, None, _keys(said["keys"]), _on(said.get("on")), mode)
    if "on" in said:
        raise InputError("'on' goes with keys, not with where")
    return TableDelete(table, _where(said["where"]), None, None, mode)


def _where(where: Any) -> str | Mapping[str, Any]:
    if isinstance(where, str) and where.strip():
        return where
    if isinstance(where, Mapping) and where:
        return where
    if not isinstance(where, str | Mapping):
        raise InputError(f"where: a predicate as text, or an object of columns and values, not {_kind(where)}")
    raise InputError('where is empty; "TRUE" deletes all rows')


def _keys(keys: Any) -> list[Any]:
    if not isinstance(keys, list):
        raise InputError(f"keys: a list, not {_kind(keys)}")
    if not keys:
        raise InputError("keys: an empty list deletes nothing")
    if any(isinstance(key, Mapping) for key in keys):
        raise InputError("keys: values, or lists of them in the order of 'on', not objects")
    if any(isinstance(part, list | Mapping) for key in keys if isinstance(key, list) for part in key):
        raise InputError("keys: a key of several columns is a list of plain values")
    return keys


def _on(on: Any) -> list[str] | None:
    if on is None:
        return None
    if isinstance(on, str):
        return [on]
    if not isinstance(on, list) or not on or not all(isinstance(name, str) for name in on):
        raise InputError("on: a list of names of columns")
    return on


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
