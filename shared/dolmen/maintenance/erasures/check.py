"""Checks that a receipt is true: the database holds nothing of what it says is gone. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dolmen.commit.context import Context
from dolmen.entries.segments.erasures import erasures_of
from dolmen.entries.segments.held import least_held
from dolmen.errors import ObjectNotFoundError
from dolmen.format.layout import parse_manifest_key
from dolmen.format.manifest import Manifest
from dolmen.format.receipts import Receipt
from dolmen.maintenance.erasures.progress import rewritten_through
from dolmen.maintenance.erasures.status import ErasureStatus, status_of
from dolmen.rows.scan.data_objects import data_object
from dolmen.rows.scan.display import html, text


@dataclass(frozen=True, repr=False)
class ReceiptCheck:
    """Whether the database still is as a receipt says.

    Args:
        status: the erasure's status.
        findings: what contradicts the receipt; empty if nothing does.
    """

    status: ErasureStatus
    findings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts the receipt."""
        return not self.findings

    def facts(self) -> list[tuple[str, str]]:
        """The lines that ``repr`` shows, as pairs of name and value."""
        return [*self.status.facts(), ("verified", "yes" if self.ok else "; ".join(self.findings))]

    def to_dict(self) -> dict[str, Any]:
        """These facts for JSON."""
        return {**self.status.to_dict(), "ok": self.ok, "findings": list(self.findings)}

    def __repr__(self) -> str:
        return text(self.facts())

    def _repr_html_(self) -> str:
        return html(self.facts())


def check_receipt(context: Context, id_: str) -> ReceiptCheck:
    """Compares an erasure's receipt with the database: a HEAD for each file that held rows, and a LIST of manifests.

    Raises:
        NotFoundError: there is neither an erasure nor a receipt of this id.
        CorruptionError: the receipt, or what has to be read of the database, is damaged.
    """
    status = status_of(context, id_)
    manifest = context.head.refresh().manifest
    with context.reading(manifest.version):
        if status.state == "gone":
            findings = tuple(_against_gone(context, manifest, status.receipt))
        else:
            findings = tuple(_against_pending(context, manifest, status))
    return ReceiptCheck(status, findings)


def _against_gone(context: Context, manifest: Manifest, receipt: Receipt) -> Iterator[str]:
    store, first = context.store, receipt.forgotten_version
    for file in receipt.files:
        there = data_object(store, file.path)
        try:
            there.store.head(there.key)
        except ObjectNotFoundError:
            continue
        yield f"{there.label} is there"
    if any(erasure.id == receipt.id for erasure in erasures_of(manifest, context.segments)):
        yield "the erasure is still listed"
    held = least_held(manifest.tables.values(), context.segments, ())
    if held and held <= receipt.ts:
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


def _against_pending(context: Context, manifest: Manifest, status: ErasureStatus) -> Iterator[str]:
    receipt, listed = status.receipt, erasures_of(manifest, context.segments)
    erasure = next((each for each in listed if each.id == receipt.id), None)
    if erasure is None:
        return
    if (erasure.ts, erasure.version, erasure.due_at) != (receipt.ts, receipt.version, receipt.due_at):
        yield "its timestamp, version or deadline is another one than in the manifest"
    if status.state == "rewritten" and rewritten_through(manifest, context.segments, listed) < erasure.ts:
        yield f"version {manifest.version:,} may hold its rows"
