"""Finds how far erasures have come, from the newest manifest and their receipts, and checks receipts."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from dolmen.base.records import FactSheet
from dolmen.base.units import count_text, utc
from dolmen.commit.head import Context
from dolmen.entries.segments.erasures_in_force import first_rewritten_version, last_rewritten_ts, least_erasure
from dolmen.entries.segments.segment_reader import SegmentReader, erasures_of
from dolmen.errors import InputError, NotFoundError, ObjectNotFoundError
from dolmen.format.layout import parse_manifest_key
from dolmen.format.manifest import Erasure, LeavingErasures, Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.format.receipts import MOST_OUTSIDE, RECEIPT_PREFIX, Outside, Receipt, State, parse_receipt_key
from dolmen.iceberg.publication_upkeep import publications_before
from dolmen.maintenance.erasures.erasure_receipts import load_receipt, receipt_of, receipt_problem, unnamed_receipt
from dolmen.maintenance.erasures.erasure_work import expire_at, rewrite_due_at
from dolmen.rows.scan.data_objects import data_object


@dataclass(frozen=True, repr=False)
class ErasureStatus(FactSheet):
    """How far an erasure has come."""

    receipt: Receipt  # its receipt; one made from the manifest if there is none yet
    # ``hidden``: no version shows its rows. ``rewritten``: no file of the newest version holds them. ``gone``: no
    # object of the database does.
    state: State
    next_step: str = ""  # what comes next, in words; "" if nothing does
    next_at: int = 0  # when that happens at the latest, in microseconds; 0 if it depends on other things

    @property
    def id(self) -> str:
        return self.receipt.id

    def facts(self) -> list[tuple[str, str]]:
        receipt, tables = self.receipt, []
        for each in receipt.tables:
            details = [*each.columns, count_text(each.keys, "key")] if each.keys else each.columns
            tables.append(f"{each.name or each.uuid} ({', '.join(details)})")
        counted = f"{len(receipt.files):,}, {count_text(sum(file.rows or 0 for file in receipt.files), 'row')} counted"
        lines = [
            ("erasure", receipt.id),
            ("state", self.state),
            ("asked for", _time(receipt.requested_at)),
            ("due", _time(receipt.due_at)),
            ("tables", "; ".join(tables)),
            ("hidden since", f"version {receipt.version:,}" if receipt.version else ""),
            ("files with its rows", counted if receipt.files else ""),
            ("tags removed", ", ".join(receipt.tags)),
            ("rewritten", f"version {receipt.rewritten_version:,}" if receipt.rewritten_version else ""),
            ("gone", _time(receipt.gone_at)),
            ("kept by the bucket", self._kept_by_the_bucket()),
            ("outside", "; ".join(map(_outside_text, receipt.outside))),
            ("next", self.next_step + (f", by {_time(self.next_at)}" if self.next_at else "")),
        ]
        return [(name, value) for name, value in lines if value]

    def _kept_by_the_bucket(self) -> str:
        kept = self.receipt.noncurrent
        if not self.receipt.gone_at:
            return ""
        if kept is None:
            return "not known: see whether the bucket keeps older versions of objects"
        return f"{count_text(kept.objects, 'older version')} of objects, {kept.bytes:,} bytes, when it was gone"

    def to_dict(self) -> dict[str, Any]:
        members: dict[str, Any] = msgspec.to_builtins(self.receipt)
        return members | {"state": self.state, "next_step": self.next_step, "next_at": self.next_at}


def list_statuses(context: Context, *, gone: bool) -> list[ErasureStatus]:
    """Statuses of all erasures that are not gone yet, oldest first; with ``gone`` also the others, before these."""
    manifest = context.head.refresh().manifest
    pending = list(pending_statuses(context, manifest))
    if not gone:
        return pending
    pending_ids = {status.id for status in pending}
    ids = (parse_receipt_key(info.key) for info in context.store.list(RECEIPT_PREFIX))
    closed = [_receipt_status(context, id_) for id_ in ids if id_ is not None and id_ not in pending_ids]
    closed.sort(key=lambda status: (status.receipt.requested_at, status.id))
    return closed + pending


def status_of(context: Context, id_: str) -> ErasureStatus:
    """Looks up the status of one erasure.

    Raises NotFoundError if there is neither an erasure nor a receipt; CorruptionError.
    """
    if not isinstance(id_, str) or parse_receipt_key(f"{RECEIPT_PREFIX}{id_}.json") is None:
        raise InputError("the id of an erasure is 32 hexadecimal digits")
    manifest = context.head.refresh().manifest
    for status in pending_statuses(context, manifest, (id_,)):
        return status
    return _receipt_status(context, id_)


def pending_statuses(
    context: Context, manifest: Manifest, ids: Container[str] | None = None
) -> Iterator[ErasureStatus]:
    """Yields statuses of (these) erasures in the newest version, oldest first: one request for each receipt."""
    for entry in manifest.leaving:
        for each in entry.ids:
            if ids is None or each in ids:
                yield _leaving_status(context, manifest, entry, each)
    listed = erasures_of(manifest, context.segments)
    if not listed:
        return
    settings = DatabaseSettings.of(manifest)
    through = last_rewritten_ts(manifest.tables.values(), context.segments, listed)
    oldest = min([manifest.horizon, *(tag.version for tag in manifest.tags.values())])

    def status(erasure: Erasure) -> ErasureStatus:
        receipt = load_receipt(context.store, erasure.id) or receipt_of(erasure, manifest)
        if erasure.ts > through:
            return ErasureStatus(receipt, "hidden", "its files are rewritten", rewrite_due_at(erasure, settings))
        first = first_rewritten_version(manifest.rewritten, erasure.ts)
        if not receipt.rewritten_version and first:
            receipt = msgspec.structs.replace(receipt, rewritten_version=first)
        if not first or first > oldest:
            return ErasureStatus(receipt, "rewritten", "older versions expire", expire_at(erasure, settings))
        until = erasure.requested_at + erasure.memory_us(settings.late_drops_us)
        if erasure.hurried_at:
            return ErasureStatus(receipt, "rewritten", "older erasures leave the list, and then this one does")
        return ErasureStatus(receipt, "rewritten", "its value is removed, and with it the check of late drops", until)

    yield from (status(erasure) for erasure in listed if ids is None or erasure.id in ids)


def _leaving_status(context: Context, manifest: Manifest, entry: LeavingErasures, id_: str) -> ErasureStatus:
    receipt = load_receipt(context.store, id_) or unnamed_receipt(id_)
    if receipt.gone_at:
        return ErasureStatus(receipt, "gone")
    if manifest.horizon < entry.version:
        return ErasureStatus(receipt, "rewritten", f"versions before {entry.version:,} expire", entry.expire_at)
    if others := sorted({manifest.name_of(uuid) or uuid for file in receipt.files for uuid in file.shared}):
        files = sum(bool(file.shared) for file in receipt.files)
        tables = ", ".join(map(repr, others))
        if files == 1:
            step = f"1 file with the rows is also a file of {tables}, where they were not erased: erase there"
        else:
            step = f"{files:,} files with the rows are also files of {tables}, where they were not erased: erase there"
        return ErasureStatus(receipt, "rewritten", step)
    if published := publications_before(context, entry.version):
        names = sorted(manifest.name_of(uuid) or uuid for uuid in published)
        step = (
            f"older Iceberg publications are deleted ({', '.join(names)}): dolmen gc does that once others "
            "replace them (dolmen publish-iceberg), or at orphan_age if the table is not published any more"
        )
        return ErasureStatus(receipt, "rewritten", step, entry.due_at)
    return ErasureStatus(receipt, "rewritten", "collection deletes objects and orphans of that time", entry.due_at)


def _receipt_status(context: Context, id_: str) -> ErasureStatus:
    receipt = load_receipt(context.store, id_)
    if receipt is None:
        raise NotFoundError(f"no erasure {id_}, and no receipt of it")
    return ErasureStatus(receipt, receipt.state)


def _outside_text(outside: Outside) -> str:
    if outside.objects is None:
        return f"{outside.url} could not be listed"
    least = "at least " if outside.objects == MOST_OUTSIDE else ""
    since = f" since {_time(outside.oldest_at)}" if outside.objects else ""
    return f"{outside.url} {least}{count_text(outside.objects, 'object')}, {outside.bytes:,} bytes{since}"


def _time(at_us: int) -> str:
    return f"{utc(at_us):%Y-%m-%d %H:%M:%S} UTC" if at_us else ""


@dataclass(frozen=True, repr=False)
class ReceiptCheck(FactSheet):
    """The status of an erasure, and findings that contradict its receipt."""

    status: ErasureStatus
    findings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    def facts(self) -> list[tuple[str, str]]:
        return [*self.status.facts(), ("verified", "yes" if self.ok else "; ".join(self.findings))]

    def to_dict(self) -> dict[str, Any]:
        return {**self.status.to_dict(), "ok": self.ok, "findings": list(self.findings)}


def check_receipt(context: Context, id_: str) -> ReceiptCheck:
    """Compares an erasure's receipt with the database: a HEAD for each file that held rows, and a LIST of manifests.

    Raises NotFoundError if there is neither an erasure nor a receipt; CorruptionError.
    """
    status = status_of(context, id_)
    manifest = context.head.refresh().manifest
    with context.reading(manifest.version):
        check = _check_gone if status.state == "gone" else _check_pending
        return ReceiptCheck(status, tuple(check(context, manifest, status)))


def _check_gone(context: Context, manifest: Manifest, status: ErasureStatus) -> Iterator[str]:
    store, receipt, first = context.store, status.receipt, status.receipt.forgotten_version
    for file in receipt.files:
        location = data_object(store, file.path)
        try:
            location.store.head(location.key)
        except ObjectNotFoundError:
            continue
        yield f"{location.label} is there"
    if any(erasure.id == receipt.id for erasure in erasures_of(manifest, context.segments)):
        yield "the erasure is still listed"
    least_ts = least_erasure(manifest.tables.values(), context.segments, ())
    if least_ts and least_ts <= receipt.ts:
        yield f"version {manifest.version:,} may hold its rows"
    if manifest.horizon < first:
        yield f"versions from {manifest.horizon:,} on can be read, not from {first:,} on"
    for name, tag in sorted(manifest.tags.items()):
        if tag.version < first:
            yield f"tag {name!r} names version {tag.version:,}"
    for info in store.list("manifest/"):
        parsed = parse_manifest_key(info.key)
        if parsed is not None:
            if parsed[0] < first:
                yield f"{info.key} is there"
            break  # in the order of versions


def _check_pending(context: Context, manifest: Manifest, status: ErasureStatus) -> Iterator[str]:
    receipt, listed = status.receipt, erasures_of(manifest, context.segments)
    erasure = next((each for each in listed if each.id == receipt.id), None)
    if erasure is None:
        return
    if problem := receipt_problem(receipt, erasure):
        yield problem
    if (
        status.state == "rewritten"
        and last_rewritten_ts(manifest.tables.values(), context.segments, listed) < erasure.ts
    ):
        yield f"version {manifest.version:,} may hold its rows"


DANGER_PART = 16  # an erasure is in danger when less than 1/DANGER_PART of its time is left


class ErasureFigures(Struct, frozen=True):
    """Figures of the erasures of a version."""

    pending: int = 0  # number of erasures whose rows some object may still hold
    oldest_age_us: int = 0  # microseconds since the oldest of them was requested; 0 if there is none
    # microseconds until the first of them is due, below 0 if that is past; None if there is none
    deadline_us: int | None = None
    in_danger: int = 0  # number of erasures with hardly any time left


def figures_of(manifest: Manifest, reader: SegmentReader, now_us: int) -> ErasureFigures:
    """Computes the figures at a time of the server's clock. Costs no request for a database without erasures."""
    spans = pending_spans(manifest, reader).values()
    if not spans:
        return ErasureFigures()
    return ErasureFigures(
        len(spans),
        max(0, now_us - min(span.requested_at for span in spans)),
        min(span.due_at for span in spans) - now_us,
        sum(span.is_in_danger(now_us) for span in spans),
    )


class PendingSpan(NamedTuple):
    """The time of an erasure."""

    due_at: int
    requested_at: int

    def is_in_danger(self, now_us: int) -> bool:
        """Whether hardly any of it is left, or nothing."""
        return now_us > self.due_at - (self.due_at - self.requested_at) // DANGER_PART


def pending_spans(manifest: Manifest, reader: SegmentReader) -> dict[str, PendingSpan]:
    """The time of each erasure whose rows some object may still hold, by its id."""
    spans = {each.id: PendingSpan(each.due_at, each.requested_at) for each in erasures_of(manifest, reader)}
    return spans | {id_: PendingSpan(each.due_at, each.requested_at) for each in manifest.leaving for id_ in each.ids}
