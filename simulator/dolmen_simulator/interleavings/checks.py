"""Checks an execution against plain Python rows, with a reader that runs alone and without faults."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby, permutations
from typing import Any, TypeAlias

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context, context_of
from dolmen.errors import CorruptionError, Error, StoreUnavailableError
from dolmen.format.layout import POINTER, memory_name
from dolmen.format.receipts import parse_receipt_key
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.erasures.status import check_receipt
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore
from dolmen_simulator.interleavings.execution import Execution, Task
from dolmen_simulator.interleavings.steps import TaskOutcome
from dolmen_simulator.judge.content import Content
from dolmen_simulator.judge.iceberg import PREFIX, IcebergReader, MalformedError
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable, unexpected_error
from dolmen_simulator.world.fates import Fate, Verb

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = dict[str, list[Row]]
"""Sorted rows by table."""

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.timestamp("us"))])
"""The columns of every table: ``k`` is the primary key, and rows may expire by ``t``."""


_MEMORY = memory_name("")

_Order: TypeAlias = tuple[tuple[int, ...], list[Rows]]
"""The numbers of the calls that had an effect, in order, and the rows before, between and after them."""


def arrow(rows: Sequence[Row]) -> pa.Table:
    """Converts rows to an Arrow table, as production code takes them."""
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=SCHEMA.names).cast(SCHEMA)


def rows_of(data: pa.Table) -> list[Row]:
    """Converts a table that production code returned to sorted rows of any columns, with times in microseconds."""
    own = [data[name] for name in data.column_names if not name.startswith("_")]
    columns = [
        column.cast(SCHEMA.field("t").type).cast(pa.int64()) if pa.types.is_temporal(column.type) else column
        for column in own
    ]
    return sorted(zip(*map(_values, columns), strict=True), key=repr)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Values that can be counted: structs as pairs of name and value."""
    if pa.types.is_struct(column.type):
        return [tuple(value.items()) for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


@dataclass
class ExpectedTables:
    """The expected content of all tables, in plain Python.

    Args:
        tables: rows by table.
        applied: applied ids.
        memory: deleted keys and their sequences.
        added: values of columns that were added, in rows that come without them.
        taken: what columns were called that have another name now, or are gone.
        erased: tells which rows were erased, by each erasure so far.
        ttl_hours: how long rows live, where a pair expires them.
    """

    tables: Rows
    applied: set[str] = field(default_factory=set)
    memory: dict[Any, Any] = field(default_factory=dict)
    added: tuple[Any, ...] = ()
    taken: set[str] = field(default_factory=set)
    erased: list[Callable[[Row], bool]] = field(default_factory=list)
    ttl_hours: int = 1

    def without_erased(self, rows: Sequence[Row]) -> list[Row]:
        """Rows of an earlier version, as they are read now."""
        return [row for row in rows if not any(gone(row) for gone in self.erased)]

    @property
    def rows(self) -> Rows:
        """Sorted rows by table, as a reader returns them."""
        return {name: sorted(rows, key=repr) for name, rows in self.tables.items()}


@dataclass(frozen=True)
class PairedCall:
    """One call of a pair.

    Args:
        name: description for people.
        task: the call, by production code.
        effect: applies the call to the expected tables. The caller must get its result, or the Error that it raises;
            None accepts any result.
        compared: extracts the call of the task's result that is compared.
        allowed_errors: errors that may refuse the call, each with a predicate that finds the reason in the execution.
        is_erasure: whether earlier versions are read without the rows that its effect adds to ``erased``.
    """

    name: str
    task: Task
    effect: Callable[[ExpectedTables], Any]
    compared: Callable[[Any], Any] = lambda value: value
    allowed_errors: dict[type[Error], Callable[[Execution, TaskOutcome], bool]] = field(default_factory=dict)
    is_erasure: bool = False


@dataclass(frozen=True)
class Pair:
    """Two calls on one database.

    Args:
        name: name of the pair.
        prepare: makes the database in which both calls begin.
        calls: the two calls.
        hours: hours between the preparation and the calls.
        events: whether both calls apply requests with ids.
        stalls: numbers of the calls that may also stall for hours before each of their requests.
        quick: numbers of the calls whose requests faults strike in quick mode: one of two calls that differ only in
            their rows, and one where there are very many interleavings.
        quick_fates: the only fates, of pointer puts, that quick mode tries for a pair with too many interleavings to
            try more; may be empty. None tries all faults.
        outages: if given, each fault is an outage of the store that refuses this many requests of one call.
    """

    name: str
    prepare: Callable[[Database], None]
    calls: tuple[PairedCall, PairedCall]
    hours: float = 0.0
    events: bool = False
    stalls: tuple[int, ...] = ()
    quick: tuple[int, ...] = (0, 1)
    quick_fates: tuple[Fate, ...] | None = None
    outages: tuple[int, ...] = ()


@dataclass(frozen=True)
class PreparedDatabase:
    """The database in which all executions of a pair begin.

    Args:
        objects: content of the bucket.
        versions: rows of every version.
        now_us: the time at which both calls begin.
    """

    objects: dict[str, MemoryObject]
    versions: dict[int, Rows]
    now_us: int


def undisturbed_database(bucket: MemoryBucket, seed: str = "reader") -> Database:
    """Opens the database in a process that runs alone and without faults."""
    rng = random.Random(seed)
    clock_us = bucket.clock_us
    runtime = Runtime(clock_us, lambda: clock_us() / 1e6, lambda seconds: None, rng, threads=1)
    return Database(MemoryStore(bucket, runtime), runtime)


def prepare(pair: Pair, now_us: int) -> PreparedDatabase:
    """Makes the database of a pair."""
    bucket = MemoryBucket(lambda: now_us, "simulation")
    pair.prepare(undisturbed_database(bucket, pair.name))
    versions = _versions(undisturbed_database(bucket)) if bucket.objects else {}
    return PreparedDatabase(dict(bucket.objects), versions, now_us + round(pair.hours * 3_600_000_000))


class Judge:
    """Judges the executions of one pair. Executions with the same end are judged once."""

    def __init__(self, pair: Pair, prepared: PreparedDatabase) -> None:
        self.pair, self._prepared = pair, prepared
        self._judged: set[tuple[bytes, str, str]] = set()

    @staticmethod
    def end(execution: Execution) -> bytes:
        """A digest of the final bucket and of both outcomes."""
        digest = hashlib.blake2b(digest_size=16)
        for key, there in sorted(execution.bucket.objects.items()):
            digest.update(f"{key} {there.etag} {there.last_modified_us}\n".encode())
        for outcome in execution.outcomes:
            digest.update(f"{outcome}\n".encode())
        return digest.digest()

    def judge(self, execution: Execution) -> bytes:
        """Checks an execution and returns its ``end``. Raises ViolationError."""
        excused = [
            (self._may_have_no_effect(execution, number), self._may_be_unknown(execution, number))
            for number in range(len(execution.outcomes))
        ]
        end = self.end(execution)
        key = end, str(excused), str(self._may_have_finished_first(execution))
        if key not in self._judged:
            self._check(execution)
            self._judged.add(key)
        return end

    def _check(self, execution: Execution) -> None:
        self._check_errors(execution)
        with _raising_unreadable(execution, "the database after the execution"):
            db = undisturbed_database(execution.bucket)
            horizon = max(context_of(db).head.refresh().manifest.horizon, 1)
            versions = self._read(db, execution)
        before = self._prepared.versions
        base = max(before, default=0)
        chain = [versions[version] for version in sorted(versions) if version >= max(base, horizon)]
        if not base:
            chain.insert(0, {})
        model = self._check_serial(execution, chain, whole=horizon <= base or not base)
        for version, rows in before.items():
            if version >= horizon and versions[version] != _without_erased(rows, model):
                never = Never.SEEN if versions[version] == rows else Never.LOST
                raise ViolationError(never, f"version {version} has changed to {versions[version]}")
        self._check_publications(execution.bucket, model)
        self._check_verification(context_of(db), execution)
        self._check_maintenance(execution, versions.get(db.version, {}))

    def _read(self, db: Database, execution: Execution) -> dict[int, Rows]:
        """The rows of every kept version. Versions of the base are read again only if an object of the base changed."""
        if not db.version:
            return {}
        before, there = self._prepared, execution.bucket.objects
        base_changed = bool(context_of(db).head.refresh().manifest.erasures) or any(
            there.get(key) is not was for key, was in before.objects.items() if key != POINTER
        )
        newest = max(before.versions, default=0)
        return {**({} if base_changed else before.versions), **_versions(db, since=0 if base_changed else newest)}

    def _check_errors(self, execution: Execution) -> None:
        """Every unknown outcome and every error needs a reason."""
        for number, (call, outcome) in enumerate(zip(self.pair.calls, execution.outcomes, strict=True)):
            error = outcome.error
            if outcome.kind == "unknown" and not self._may_be_unknown(execution, number):
                raise ViolationError(Never.MISREPORTED, f"{call.name} got {error}, though nothing went wrong")
            if outcome.kind == "failed" and not isinstance(error, Error):
                assert error is not None
                if isinstance(error, Exception) and not isinstance(error, ViolationError):
                    raise unexpected_error(call.name, error) from error
                raise error

    def _check_serial(self, execution: Execution, chain: list[Rows], *, whole: bool) -> ExpectedTables:
        """The rows of the versions must be those of some serial order of the calls. Returns what it ends with."""
        seen = [rows for rows, _ in groupby(chain)]
        found = list(self._orders(execution, as_answered=True))
        orders = [(order, chain) for order, chain, _ in found]
        for _, order, model in found:
            expected = [rows for rows, _ in groupby(order)]
            if seen == expected or (not whole and seen == expected[-len(seen) :]):
                return model
        raise self._violation(execution, seen, orders)

    def _orders(self, execution: Execution, *, as_answered: bool) -> Iterator[tuple[*_Order, ExpectedTables]]:
        """Yields each order of the calls that fits their outcomes, with the rows that are read now after each call.

        Args:
            as_answered: False ignores the outcomes, and yields all orders.
        """
        done_first = self._may_have_finished_first(execution)
        for order in ((), (0,), (1,), *permutations((0, 1))):
            if len(order) == 2 and as_answered and order[1] in done_first:
                continue
            left = [number for number in (0, 1) if number not in order]
            if as_answered and not all(self._may_have_no_effect(execution, number) for number in left):
                continue
            versions = self._prepared.versions
            model = ExpectedTables(deepcopy(versions[max(versions)]) if versions else {})
            chain = [model.rows]
            for number in order:
                if not self._matches_answer(execution, number, model, as_answered=as_answered):
                    break
                chain.append(model.rows)
                if model.erased and self.pair.calls[number].is_erasure:
                    chain = [_without_erased(rows, model) for rows in chain[:-1]] + chain[-1:]
            else:
                yield order, chain, model

    def _matches_answer(self, execution: Execution, number: int, model: ExpectedTables, *, as_answered: bool) -> bool:
        """Applies a call to the model; whether the call's outcome is the expected one there."""
        call, outcome = self.pair.calls[number], execution.outcomes[number]
        try:
            expected = call.effect(model)
        except Error as error:
            return not as_answered or (outcome.kind == "failed" and type(outcome.error) is type(error))
        if not as_answered or outcome.kind in ("unknown", "crashed"):
            return True
        if outcome.kind == "failed":
            return False
        return expected is None or call.compared(outcome.value) == expected

    def _may_have_no_effect(self, execution: Execution, number: int) -> bool:
        outcome, call = execution.outcomes[number], self.pair.calls[number]
        if outcome.kind in ("unknown", "crashed"):
            return True
        if outcome.kind == "done":
            return False
        if isinstance(outcome.error, StoreUnavailableError):
            return _fault_struck(execution, number)
        return _has_reason(execution, outcome, call)

    def _may_be_unknown(self, execution: Execution, number: int) -> bool:
        outcome = execution.outcomes[number]
        if outcome.kind != "unknown":
            return False
        return _fault_struck(execution, number) or _has_reason(execution, outcome, self.pair.calls[number])

    @staticmethod
    def _may_have_finished_first(execution: Execution) -> list[int]:
        """The calls that may have returned before the other began, so that the other must have seen their effect."""
        return [
            number
            for number, outcome in enumerate(execution.outcomes)
            if outcome.kind == "done" and execution.may_come_first(number, 1 - number)
        ]

    def _violation(self, execution: Execution, seen: list[Rows], orders: list[_Order]) -> ViolationError:
        """The violation that explains why no order fits."""
        answers = "; ".join(
            f"{call.name} {outcome}" for call, outcome in zip(self.pair.calls, execution.outcomes, strict=True)
        )
        what = f"{answers}; the versions hold {seen}, which no serial order explains"
        final = _count_rows(seen[-1]) if seen else Counter()
        ends = [_count_rows(chain[-1]) for _, chain in orders]
        if any(count > max((end[row] for end in ends), default=1) > 0 for row, count in final.items()):
            return ViolationError(Never.TWICE if self.pair.events else Never.LOST, what)
        kinds = [outcome.kind for outcome in execution.outcomes]
        fitting = [
            order
            for order, chain, _ in self._orders(execution, as_answered=False)
            if seen == [rows for rows, _ in groupby(chain)]
        ]
        consistent = [order for order in fitting if all((kinds[at] != "failed") == (at in order) for at in (0, 1))]
        if fitting and not consistent:
            return ViolationError(Never.MISREPORTED, what)
        for outcome in execution.outcomes:
            if isinstance(outcome.error, Exception) and outcome.kind == "failed" and not orders:
                return unexpected_error(answers, outcome.error)
        if consistent:  # the writes are right, so a read is wrong
            return ViolationError(Never.HALF, what)
        before = sum((_count_rows(rows) for rows in (*self._prepared.versions.values(), *seen[:-1])), Counter())
        if ends and any(not any(end[row] for end in ends) and before[row] for row in final):
            return ViolationError(Never.REVIVED, what)
        if ends and any(all(end[row] for end in ends) and before[row] and not final[row] for row in ends[0]):
            return ViolationError(Never.LOST, what)
        return ViolationError(Never.HALF, what)

    @staticmethod
    def _check_verification(context: Context, execution: Execution) -> None:
        if not execution.bucket.objects:
            return
        with raising_unreadable("verify"):
            report = verify(context, deep=True, all_versions=True)
        if report.errors:
            gone = any("missing" in str(error) for error in report.errors)
            never = Never.COLLECTED if gone else Never.UNREADABLE
            raise ViolationError(never, f"verify: {'; '.join(map(str, report.errors[:3]))}")
        for id_ in filter(None, map(parse_receipt_key, list(execution.bucket.objects))):
            with raising_unreadable(f"receipt {id_}"):
                check = check_receipt(context, id_)
            if check.findings:
                raise ViolationError(Never.KEPT, f"receipt {id_}: {'; '.join(check.findings)}")

    def _check_publications(self, bucket: MemoryBucket, model: ExpectedTables) -> None:
        """Checks that publications show the versions they name, and that a later one shows the newest."""
        if not any(key.startswith(PREFIX) for key in bucket.objects):
            return
        check_published(bucket, model)
        later = MemoryBucket(bucket.clock_us, "simulation")
        later.objects.update(bucket.objects)
        db = undisturbed_database(later, "publisher")
        with raising_unreadable("a later publication"):
            manifest = context_of(db).head.refresh().manifest
            there = {key.split("/")[1] for key in later.objects if key.startswith(PREFIX)}
            published = [name for name, entry in manifest.tables.items() if entry.uuid in there]
            found = {name: db.table(name).publish_iceberg().version for name in published}
        check_published(later, model, found)

    @staticmethod
    def _check_maintenance(execution: Execution, rows: Rows) -> None:
        """A later resolution and compaction must leave the rows as they are."""
        bucket = MemoryBucket(execution.bucket.clock_us, "simulation")
        bucket.objects.update(execution.bucket.objects)
        with _raising_unreadable(execution, "the database after a later resolution and compaction"):
            db = undisturbed_database(bucket, "later")
            for name in rows:
                resolve(context_of(db), name)
                compact(context_of(db), name)
            newest = db.refresh()
            later = _versions(db, newest).get(newest, {})
        if later == rows:
            return
        more = _count_rows(later) - _count_rows(rows)
        raise ViolationError(
            Never.REVIVED if more else Never.LOST, f"a later resolution and compaction turned {rows} into {later}"
        )


@contextmanager
def _raising_unreadable(execution: Execution, what: str) -> Iterator[None]:
    """Like ``readable``, but raises COLLECTED where a missing object was deleted by one of the calls."""
    try:
        with raising_unreadable(what):
            yield
    except ViolationError as error:
        cause = error.__cause__
        deletes = any(step.waiting.request and step.waiting.request.verb is Verb.DELETE for step in execution.steps)
        if deletes and isinstance(cause, CorruptionError) and cause.is_missing:
            raise ViolationError(Never.COLLECTED, error.what) from cause
        raise


def check_published(bucket: MemoryBucket, model: ExpectedTables, newest: dict[str, int] | None = None) -> None:
    """Raises ViolationError unless publications show the rows of the versions that they name.

    Args:
        newest: the versions that must be published, by table; None for any.
    """
    db, reader = undisturbed_database(bucket), IcebergReader(bucket, Content(bucket))
    manifest = context_of(db).head.refresh().manifest
    for name, entry in manifest.tables.items():
        try:
            for table in reader.published(entry.uuid):
                version = table.found["current-snapshot-id"]
                if newest is not None and newest[name] != version:
                    raise MalformedError(f"version {newest[name]} was published, and readers see {version}")
                if f"iceberg.{entry.uuid}.{version}" not in manifest.tags:
                    raise MalformedError(f"version {version} is published without a pin")
                fields = table.schema(table.current["schema-id"])  # without columns that have no place in v2
                if {field["name"] for field in fields} - set(db.at(version).table(name).schema.names):
                    raise MalformedError(f"it has other columns than version {version}")
                there = rows_of(db.at(version).table(name).scan([field["name"] for field in fields]).to_arrow())
                shown = (tuple(row[field["id"]] for field in fields) for row in reader.rows(table, table.current))
                rows = sorted(shown, key=repr)
                if newest is not None:  # it has just been published
                    there = rows_of(db.table(name).scan([field["name"] for field in fields]).to_arrow())
                if model.without_erased(rows) != there:
                    raise MalformedError(f"it shows {rows}, and version {version} {there}")
        except (MalformedError, KeyError) as error:
            raise ViolationError(Never.MISPUBLISHED, f"the publication of {name!r}: {error}") from error


def _has_reason(execution: Execution, outcome: TaskOutcome, call: PairedCall) -> bool:
    reasons = [reason for kind, reason in call.allowed_errors.items() if isinstance(outcome.error, kind)]
    return any(reason(execution, outcome) for reason in reasons)


def _fault_struck(execution: Execution, number: int) -> bool:
    return execution.struck and execution.fault is not None and execution.fault.task == number


def _versions(db: Database, since: int = 0) -> dict[int, Rows]:
    """Reads the rows of all kept versions from ``since`` on."""
    manifest = context_of(db).head.refresh().manifest
    found: dict[int, Rows] = {}
    for version in range(max(manifest.horizon, since, 1), manifest.version + 1):
        snapshot = db.at(version=version)
        users = [name for name in snapshot.tables() if not name.endswith(_MEMORY)]
        found[version] = {name: rows_of(snapshot.table(name).to_arrow()) for name in users}
    return found


def _without_erased(rows: Rows, model: ExpectedTables) -> Rows:
    return {name: model.without_erased(there) for name, there in rows.items()}


def _count_rows(rows: Rows) -> Counter[Any]:
    return Counter((name, row) for name, there in rows.items() for row in there)
