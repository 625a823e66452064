"""The result of a collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from dolmen.maintenance.erasures.figures import ErasureFigures
from dolmen.maintenance.gc.eraser import Amount

REASONS: dict[str, str] = {
    "released": "dropped by expired versions",
    "manifests": "manifests of expired versions",
    "orphans": "orphans",
    "revoked": "left by dead jobs",
    "intents": "intents",
    "publications": "replaced publications",
}
"""Reasons for deleting objects, in words."""


@dataclass(frozen=True)
class Collected:
    """The result of one collection.

    Args:
        version: the newest version at its end.
        horizon: the oldest version that can be read now.
        versions_expired: number of versions that expired; their objects go once ``reader_grace`` is over.
        deleted: objects and bytes by reason (``REASONS``). Objects that versions released are not measured; their bytes
            count as 0.
        revoked: txids of jobs that were taken for dead.
        waiting: orphans that are too young to delete, including those of commits under way; None if none were listed.
        errors: reasons by key of objects that could not be deleted, or of receipts that could not be written; the next
            run tries them again.
        erasures: figures of erasures that are not gone yet.
        erasures_gone: number of erasures whose receipts say since this run that no object holds their rows.
        finished: True if nothing was left for lack of time.
        dry_run: True if nothing was deleted: the figures say what would be.
    """

    version: int
    horizon: int
    versions_expired: int = 0
    deleted: Mapping[str, Amount] = field(default_factory=dict)
    revoked: tuple[str, ...] = ()
    waiting: Amount | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    erasures: ErasureFigures = field(default_factory=ErasureFigures)
    erasures_gone: int = 0
    finished: bool = True
    dry_run: bool = False

    @property
    def objects(self) -> int:
        """Number of objects deleted, for all reasons."""
        return sum(amount.objects for amount in self.deleted.values())

    @property
    def bytes(self) -> int:
        """Bytes deleted, as far as they are known."""
        return sum(amount.bytes for amount in self.deleted.values())

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The lines that ``repr`` shows, as pairs of name and value."""
        told = [("oldest version kept", f"{max(self.horizon, 1):,}")] if self.version else []
        if self.versions_expired:
            told.append(("versions expired", f"{self.versions_expired:,}"))
        for reason, words in REASONS.items():
            if amount := self.deleted.get(reason):
                told.append((words, _amount_text(amount)))
        if self.revoked:
            told.append(("dead jobs revoked", f"{len(self.revoked):,}"))
        if self.waiting and self.waiting.objects:
            told.append(("orphans too young to go", _amount_text(self.waiting)))
        if self.erasures_gone:
            told.append(("erasures gone from the disk", f"{self.erasures_gone:,}"))
        if self.errors:
            told.append(
                ("not deleted", f"{len(self.errors):,}, {min(self.errors)} first: {self.errors[min(self.errors)]}")
            )
        if not self.finished:
            told.append(("finished", "no: the next run goes on"))
        return told

    def __repr__(self) -> str:
        head = "would delete" if self.dry_run else "deleted"
        facts = "".join(f", {name} {value}" for name, value in self.facts)
        return f"<Collected: {head} {self.objects:,} objects{facts}>"

    def _repr_html_(self) -> str:
        head = f"<b>{'would delete' if self.dry_run else 'deleted'} {self.objects:,} objects</b>"
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in self.facts)
        return f"<div>{head}<table>{rows}</table></div>"


def _amount_text(amount: Amount) -> str:
    return f"{amount.objects:,}" + (f" ({amount.bytes:,} bytes)" if amount.bytes else "")
