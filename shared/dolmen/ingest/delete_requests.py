"""Delete requests: composes and parses their messages (docs/ingest.md), applies a batch in one commit, tracks states.

Numbers keep all digits: one that a double cannot hold becomes a decimal, and is never rounded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
from msgspec import Struct

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.base.units import MIB
from dolmen.commit.change import digest_of
from dolmen.commit.uploads import check_key_count
from dolmen.entries.segments.erasures_in_force import SUBJECT
from dolmen.errors import AppliedIdError, InputError, InvalidNameError, LimitError
from dolmen.format.layout import check_table_name
from dolmen.ingest.announcements import DROP_SCHEME
from dolmen.ingest.batch import BatchRequest, BatchResult, Decision, apply_together
from dolmen.ingest.queues import DirectoryQueue, Queue
from dolmen.ingest.redaction import MessageError, first_duplicate, parse_message
from dolmen.predicate.parse import Where
from dolmen.transactions.erase import check_subject_count
from dolmen.transactions.row_arguments import parse_where
from dolmen.transactions.transaction import Transaction, unit_of

MAX_BODY_BYTES = 64 * MIB
MAX_TABLES = 100
MAX_ID_LENGTH = 256
MAX_NESTING = 8  # how deep lists and objects may be nested; a valid request needs six levels
MAX_DIGITS = 400  # the most digits of a number: more than any column holds
RequestMode: TypeAlias = Literal["tombstone", "positions"]
"""How a request deletes. There is no "auto": a request has a predicate or keys, which a tombstone can always hold."""

_TABLE_MEMBERS = frozenset({"table", "where", "keys", "on", "mode"})
_REQUEST_MEMBERS = frozenset({"tables", "request_id"})
_ERASURE_MEMBERS = frozenset({"table", "where", "keys", "on"})


class TableDelete(Struct, frozen=True):
    """The part of a request that is about one table: exactly one of ``where`` and ``keys`` is given."""

    table: str
    where: str | Mapping[str, Any] | None
    keys: list[Any] | None
    on: list[str] | None
    mode: RequestMode

    @property
    def content(self) -> dict[str, Any]:
        """The content for the digest, without ``mode``, which only says how rows are found."""
        return {"table": self.table, "where": self.where, "keys": self.keys, "on": self.on}


class DeleteRequest(Struct, frozen=True):
    """One delete over one or several tables, applied as a whole and once; or an erasure."""

    id: str
    digest: str  # of the content, so that another request under the same id is refused
    deletes: tuple[TableDelete, ...]  # one for an erasure of a table; none if subjects are forgotten
    erases: bool = False  # whether the rows are erased: in older versions too, and permanently
    # values of the columns that tables name as their ``subject``, whose rows are erased in all tables
    subjects: tuple[int | str, ...] = ()
    dropped: bool = False  # whether the subjects' rows may be in dropped tables alone: see ``Database.forget``


def parse_request(body: str | Mapping[str, Any] | None, message_id: str | None) -> DeleteRequest:
    """Reads a message, as JSON text or parsed; a request without an id gets ``message_id``. Raises InputError."""
    document = body
    if isinstance(body, str):
        document = parse_message(body, MAX_BODY_BYTES, parse_constant=_refuse_constant, parse_float=_number)
    if not isinstance(document, Mapping):
        raise MessageError(f"a delete request is a JSON object, not {_kind(document)}")
    if _is_deeper(document, MAX_NESTING):
        raise MessageError(f"lists and objects are nested more than {MAX_NESTING} deep")
    if not isinstance(body, str) or not body.isascii() or "\\u" in body:
        _check_values(document)
    request_id = _request_id(document, message_id)
    if "forget" in document:
        members = _sole_member(document, "forget")
        subjects, dropped = _subjects(members), bool(members.get("dropped"))
        digest = digest_of({"forget": list(subjects), **({"dropped": True} if dropped else {})})
        return DeleteRequest(request_id, digest, (), erases=True, subjects=subjects, dropped=dropped)
    if "erase" in document:
        delete = _parse_erasure(_sole_member(document, "erase"))
        return DeleteRequest(request_id, digest_of({"erase": delete.content}), (delete,), erases=True)
    deletes = tuple(_deletes(document))
    check_key_count(sum(len(delete.keys) for delete in deletes if delete.keys is not None))
    if duplicate := first_duplicate([delete.table for delete in deletes]):
        raise MessageError("table {} is in the request twice; name it once, and join its conditions with OR", duplicate)
    contents: list[dict[str, Any]] = [delete.content for delete in deletes]
    return DeleteRequest(request_id, digest_of(contents[0] if len(contents) == 1 else contents), deletes)


def _refuse_constant(name: str) -> Any:
    raise MessageError(f"{name} is not JSON; compare with CAST('{name}' AS DOUBLE) in a predicate's text")


def _number(text: str) -> float | Decimal:
    """Parses a number with a point or an exponent: as a double only if that is exact."""
    if len(text) > MAX_DIGITS:
        raise MessageError(f"a number of {len(text):,} digits: at most {MAX_DIGITS} are allowed")
    number, exact = float(text), Decimal(text)
    if math.isinf(number) or (exact and not number):
        raise MessageError("number {} is beyond what a double holds", text)
    return number if Decimal(repr(number)) == exact else exact


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return levels == 0 or any(isinstance(part, list | Mapping) and _is_deeper(part, levels - 1) for part in value)


def _check_values(document: Mapping[str, Any]) -> None:
    """Refuses values that JSON does not have: halves of surrogate pairs, NaN and Infinity in parsed documents."""
    try:
        json.dumps(document, ensure_ascii=False, allow_nan=False, default=str).encode()
    except UnicodeEncodeError:
        raise MessageError("an escaped half of a surrogate pair is not text") from None
    except ValueError:
        raise MessageError("NaN and Infinity are not JSON") from None


def _request_id(document: Mapping[str, Any], message_id: str | None) -> str:
    id_, drops = document.get("request_id", message_id), DROP_SCHEME.bucket_url("")
    if id_ is None:
        raise MessageError("no request_id, and no message id to stand in for it")
    if not isinstance(id_, str):
        raise MessageError("request_id: text")
    if not 0 < len(id_) <= MAX_ID_LENGTH or not id_.isprintable():
        raise MessageError(f"request_id: 1 to {MAX_ID_LENGTH} printable characters")
    if id_.startswith(drops):
        raise MessageError(f"request_id: ids that begin with {drops} are for dropped files")
    return id_


def _deletes(document: Mapping[str, Any]) -> list[TableDelete]:
    if unknown := sorted(str(name) for name in document.keys() - _TABLE_MEMBERS - _REQUEST_MEMBERS):
        allowed = ", ".join(sorted(_TABLE_MEMBERS | _REQUEST_MEMBERS | {"erase", "forget"}))
        raise MessageError(f"unknown member {{}}; there are: {allowed}", unknown[0])
    if ("table" in document) == ("tables" in document):
        raise MessageError("give either 'table', or 'tables' for several")
    if "table" in document:
        return [_delete(document)]
    tables = document["tables"]
    if not isinstance(tables, list) or not tables:
        raise MessageError("tables: a list of names, or of objects with a table each")
    if len(tables) > MAX_TABLES:
        raise LimitError(f"{len(tables)} tables in one request: at most {MAX_TABLES} are allowed")
    shared = {name: value for name, value in document.items() if name in _TABLE_MEMBERS}
    if all(isinstance(table, str) for table in tables):
        return [_delete({**shared, "table": table}) for table in tables]
    if not all(isinstance(table, Mapping) for table in tables):
        raise MessageError("tables: names or objects, not both")
    if shared:
        raise MessageError(f"{sorted(shared)[0]!r} is beside tables that each say what to delete: put it into them")
    for number, table in enumerate(tables, 1):
        if unknown := sorted(str(name) for name in table.keys() - _TABLE_MEMBERS):
            raise MessageError(f"table {number}: unknown member {{}}", unknown[0])
    return [_delete(table) for table in tables]


def _sole_member(document: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    """The object of a member that must be alone, except for the request's id."""
    if unknown := sorted(str(name) for name in document.keys() - {member, "request_id"}):
        raise MessageError(f"beside {member!r} only a request_id is allowed, not {{}}", unknown[0])
    if not isinstance(document[member], Mapping):
        raise MessageError(f"{member}: an object, not {_kind(document[member])}")
    members: Mapping[str, Any] = document[member]
    return members


def _parse_erasure(members: Mapping[str, Any]) -> TableDelete:
    if unknown := sorted(str(name) for name in members.keys() - _ERASURE_MEMBERS):
        raise MessageError(f"erase: unknown member {{}}; there are: {', '.join(sorted(_ERASURE_MEMBERS))}", unknown[0])
    if "table" not in members:
        raise MessageError("erase: name a table; an erasure is of one, or of a subject in all of them ('forget')")
    return _delete(members)


def _subjects(members: Mapping[str, Any]) -> tuple[int | str, ...]:
    if not {"subject"} <= members.keys() <= {"subject", "dropped"}:
        raise MessageError("forget: an object with the member 'subject', and no other but 'dropped'")
    if not isinstance(members.get("dropped", False), bool):
        raise MessageError(f"dropped: true or false, not {_kind(members['dropped'])}")
    subjects = members["subject"] if isinstance(members["subject"], list) else [members["subject"]]
    if not subjects:
        raise MessageError("subject: an empty list forgets nobody")
    check_subject_count(len(subjects))
    if wrong := [value for value in subjects if isinstance(value, bool) or not isinstance(value, int | str)]:
        raise MessageError(f"subject: a whole number or a text, or a list of them, not {_kind(wrong[0])}")
    return tuple(dict.fromkeys(subjects))


def _delete(members: Mapping[str, Any]) -> TableDelete:
    try:
        table = check_table_name(members.get("table", ""))
    except InvalidNameError:
        raise MessageError("table name {} is not 1 to 64 of a-z, 0-9 and _", members.get("table", "")) from None
    if ("where" in members) == ("keys" in members):
        raise MessageError(f"table {table!r}: give either 'where' or 'keys'")
    mode: Any = members.get("mode", "tombstone")
    if mode not in get_args(RequestMode):
        raise MessageError(f"mode {{}}: {' or '.join(map(repr, get_args(RequestMode)))}", mode)
    if "keys" in members:
        if mode == "positions":
            raise MessageError("mode 'positions' goes with where, not with keys")
        return TableDelete(table, None, _keys(members["keys"]), _on(members.get("on")), mode)
    if "on" in members:
        raise MessageError("'on' goes with keys, not with where")
    return TableDelete(table, _where(members["where"]), None, None, mode)


def _where(where: Any) -> str | Mapping[str, Any]:
    if isinstance(where, str) and where.strip():
        return where
    if isinstance(where, Mapping) and where:
        return where
    if not isinstance(where, str | Mapping):
        raise MessageError(f"where: a predicate as text, or an object of columns and values, not {_kind(where)}")
    raise MessageError('where is empty; "TRUE" deletes all rows')


def _keys(keys: Any) -> list[Any]:
    if not isinstance(keys, list):
        raise MessageError(f"keys: a list, not {_kind(keys)}")
    if not keys:
        raise MessageError("keys: an empty list deletes nothing")
    if any(isinstance(key, Mapping) for key in keys):
        raise MessageError("keys: values, or lists of them in the order of 'on', not objects")
    if any(isinstance(part, list | Mapping) for key in keys if isinstance(key, list) for part in key):
        raise MessageError("keys: a key of several columns is a list of plain values")
    return keys


def _on(on: Any) -> list[str] | None:
    if on is None:
        return None
    if isinstance(on, str):
        return [on]
    if not isinstance(on, list) or not on or not all(isinstance(name, str) for name in on):
        raise MessageError("on: a list of names of columns")
    return on


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def apply_deletes(
    database: Database, requests: Sequence[DeleteRequest], *, deadline: Callable[[], bool] = lambda: False
) -> BatchResult:
    """Applies delete requests in ONE commit, each over all of its tables or not at all.

    A request that cannot be applied does not affect the others. Once ``deadline`` is true, the rest is postponed.
    """

    def add_to(transaction: Transaction, request: DeleteRequest) -> Decision:
        add_request(transaction, request)
        return "apply"

    batch = [BatchRequest(each.id, each.digest, partial(add_to, request=each)) for each in requests]
    return apply_together(database, "delete", batch, deadline=deadline)


def request_values(request: DeleteRequest) -> list[Any]:
    """The predicates, keys and subjects of a request, which an error about it may quote."""
    return [*([delete.where, delete.keys, delete.on] for delete in request.deletes), list(request.subjects)]


def request_names(transaction: Transaction | None, request: DeleteRequest) -> frozenset[str]:
    tables = {*(delete.table for delete in request.deletes), *request_tables(transaction, request)}
    if transaction is None:
        return frozenset(tables)
    entries = [unit_of(transaction).entry(name) for name in tables if name in unit_of(transaction).tables]
    return frozenset(tables).union(field.name for entry in entries for field in entry.schema.fields)


def request_tables(transaction: Transaction | None, request: DeleteRequest) -> list[str]:
    """The tables that a request names; if it forgets subjects, the tables with a subject when the batch began."""
    if request.subjects and transaction is not None:
        entries = unit_of(transaction).base.tables.items()
        return sorted(name for name, entry in entries if entry.properties.get(SUBJECT) is not None)
    return [delete.table for delete in request.deletes]


def add_request(transaction: Transaction, request: DeleteRequest) -> None:
    if request.subjects:
        transaction.forget(request.subjects, dropped=request.dropped, request=request.id)
    for delete in request.deletes:
        table = transaction.table(delete.table)
        if request.erases:
            table.erase(delete.where, keys=delete.keys, on=delete.on, request=request.id)
        else:
            where: Where = delete.where
            if delete.mode == "positions":
                unit = unit_of(transaction)
                where = parse_where(unit.context, unit.entry(delete.table), where)  # a message brings no other SQL
            table.delete(where, keys=delete.keys, on=delete.on, mode=delete.mode, request=request.id)


RequestState = Literal["applied", "waiting", "failed", "unknown"]


def compose(
    tables: Sequence[str],
    *,
    where: str | None = None,
    keys: pa.Table | list[Any] | None = None,
    on: Sequence[str] | None = None,
    mode: str = "tombstone",
    request_id: str,
) -> str:
    """Composes the message of a delete request, and checks it like the function does. Raises InputError.

    ``keys`` are values, or lists of them for a key of several columns, or a table of the columns that ``on`` names.
    """
    members: dict[str, Any] = {"table": tables[0]} if len(tables) == 1 else {"tables": list(tables)}
    if where is not None:
        members["where"] = where
    if keys is not None:
        members["keys"] = _values(keys) if isinstance(keys, pa.Table) else keys
    if on is not None:
        members["on"] = list(on)
    if mode != "tombstone":
        members["mode"] = mode
    body = json.dumps({**members, "request_id": request_id}, separators=(",", ":"))
    parse_request(body, None)
    return body


def check(database: Database, request: DeleteRequest) -> int:
    """Checks that a request can be applied to the newest version, without changing anything; returns the version.

    Raises AppliedIdError if another request was applied under this id; InputError, NotFoundError.
    """
    transaction = database.transaction()
    unit = unit_of(transaction)
    applied = unit.find_applied([request.id]).get(request.id)
    if applied is not None and applied.digest != request.digest:
        raise AppliedIdError(f"version {applied.version} has applied another request under the id {request.id!r}")
    deletes = tuple(replace(delete, mode="tombstone") for delete in request.deletes)  # without looking rows up
    add_request(transaction, replace(request, deletes=deletes))
    return unit.base.version  # the transaction ends here: nothing of it is uploaded


def check_size(body: str, queue: Queue) -> None:
    """Raises LimitError if a message is too large for a queue. The error says what to do instead."""
    size = len(body.encode())
    if size <= queue.max_bytes:
        return
    keys = sum(len(delete.keys or ()) for delete in parse_request(body, None).deletes)
    most = max(1, keys * queue.max_bytes // size * 9 // 10)
    raise LimitError(
        f"the request has {size:,} bytes, and {queue.url} takes messages of {queue.max_bytes:,}: "
        + (f"send at most about {most:,} keys in a request, each under an id of its own, " if keys else "shorten it, ")
        + "say with --where what they have in common, or apply it directly with 'dolmen delete'"
    )


class RequestStatus(Struct, frozen=True):
    """The state of a request: applied by ``version``, waiting in the queue, or given up for ``reason``.

    It is unknown if it is not applied, or so old that its id is forgotten. SQS queues cannot be searched.
    """

    id: str
    state: RequestState
    version: int | None = None
    reason: str | None = None


def status_of(database: Database, ids: Sequence[str], queue: Queue | None = None) -> list[RequestStatus]:
    """Looks up the states of requests, in their order: two requests for all of them, more only for old ids."""
    letters = dict(_letters(queue, frozenset(ids))) if isinstance(queue, DirectoryQueue) else {}
    # The database is read after the queue, so that a request that moves from one to the other is seen at least once.
    applied = unit_of(database.transaction()).find_applied(ids)
    statuses = []
    for id_ in ids:
        if id_ in applied:
            statuses.append(RequestStatus(id_, "applied", applied[id_].version))
        else:
            state, reason = letters.get(id_, ("unknown", None))
            statuses.append(RequestStatus(id_, state, reason=reason))
    return statuses


def _letters(queue: DirectoryQueue, ids: frozenset[str]) -> Iterator[tuple[str, tuple[RequestState, str | None]]]:
    """Finds requests in a directory's queue, dead letters first, so that a request that was sent again is waiting."""
    for letter in queue.find_dead_letters():
        id_ = _id_in(letter.get("body")) or letter.get("message_id")
        if id_ in ids:
            yield str(id_), ("failed", str(letter.get("reason")))
    for message in queue.find_messages():
        id_ = message.get("request_id")
        if id_ in ids:
            yield str(id_), ("waiting", None)


def _id_in(body: Any) -> Any:
    try:
        document = json.loads(body) if isinstance(body, str) else body
    except (ValueError, RecursionError):
        return None
    return document.get("request_id") if isinstance(document, dict) else None


def _values(keys: pa.Table) -> list[Any]:
    """Converts keys to JSON. Raises InputError for types that JSON does not have."""
    for field in keys.schema:
        if not (pa.types.is_integer(field.type) or pa.types.is_string(field.type) or pa.types.is_boolean(field.type)):
            raise InputError(
                f"keys of column {field.name!r} are {field.type}, which a message cannot hold: "
                "say the same with --where, or use 'dolmen delete'"
            )
    columns = [column.to_pylist() for column in keys.columns]
    return columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)]
