"""The findings of ``verify``: all kinds with what to do about them, and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, TypeAlias

from dolmen.base.records import FactSheet
from dolmen.base.units import count_text
from dolmen.maintenance.gc.deletion import Amount

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding."""

    name: str  # stable, because scripts and tests use it
    # "error" if something cannot be read, or is read wrong; "warning" if it only costs money or trust
    severity: Severity
    meaning: str  # the promise that is broken
    repair: str  # what to do about it


_COPY = "Put a good copy back under the same key (from an older version of the object, a replica, a backup)"
_COPY_OR_OLDER = f"{_COPY}; without one, read an older version with at(version=...), and overwrite the table with it."
_COPY_OR_LOSE_ROWS = (
    f"{_COPY}; without one its rows are lost: read the others with a filter that leaves the file out, or an older "
    "version with at(version=...), and overwrite the table with that."
)
_COPY_OR_LOSE_DELETE = (
    f"{_COPY}; without one it is unknown which rows it deleted: overwrite the table with an older version, and "
    "repeat the deletes since."
)
_COMPARE = (
    "Rows of the file may be hidden or shown wrongly. Compare with an older version (at(version=...)), and overwrite "
    "the table with the right rows."
)
_REWRITE = (
    "All rows are there, but scans with a filter may leave some out: overwrite the table with the result of a scan "
    "without filter, then verify again."
)
_WRONG_WRITER = (
    "No dolmen writes this: keep a copy of the database, find out what wrote the version, and overwrite the table with "
    "an older version (at(version=...))."
)
_PUBLISH = "publish it again (dolmen publish-iceberg --anew --table ...)."

_ERRORS: dict[str, dict[str, str]] = {
    # ---- pointer, manifests
    f"{_COPY}, or write one for the newest good manifest.": {"pointer-damaged": "the pointer can be read"},
    "Write the pointer again from the manifest it names; then find out who writes to this prefix without dolmen.": {
        "pointer-differs": "the pointer and the manifest it names have the same version and commit id"
    },
    "Stop all writers: each commit from here on makes the lost versions harder to get back. Write the pointer again "
    "for the newest manifest whose commit landed (docs/operations.md), then verify again.": {
        "pointer-back": "no later version than the pointer's was ever committed"
    },
    "Upgrade dolmen, verify again.": {"newer-format": "every object has a readable format"},
    f"{_COPY}; without one this version cannot be read, but the others can. If it is the newest, write a pointer to "
    "the newest manifest that is left; later commits are lost.": {
        "manifest-missing": "the manifest of every kept version is there"
    },
    f"{_COPY}; without one this version cannot be read, but the others can.": {
        "manifest-damaged": "the manifest of every kept version can be read and has its checksum"
    },
    "Rows of one event may be in a table twice: look for them.": {"applied-twice": "an id is applied once"},
    # ---- what no dolmen writes
    _WRONG_WRITER: {
        "chain-broken": "versions follow each other without a gap",
        "history-differs": "the history of each version agrees with the manifests",
        "history-short": "the history goes back to the oldest kept version",
        "commit-ts-order": "commit timestamps increase with versions",
        "created-at-order": "the times of versions never decrease",
        "fence-order": "horizon, orphan cutoff, freed and swept never move back, and are consistent",
        "file-twice": "a data file is referenced only once",
        "table-uuid": "no two tables have the same uuid",
        "table-epoch": "a table's epoch is this version or an earlier one",
        "schema-ids": "column ids are given out once, and keys name columns",
        "delete-timestamps": "a table's last delete is not before its newest tombstone",
        "tombstone-column": "tombstones name existing columns",
        "tombstone-order": "tombstones are in the order of their timestamps",
        "file-entry": "an entry's rows, size and footer fit each other",
        "erasure-entry": "erasures are listed with what made them",
    },
    # ---- objects
    _COPY_OR_LOSE_ROWS: {
        "file-missing": "every referenced data file exists",
        "file-size": "every data file has the size of its entry",
        "footer-damaged": "a data file's footer can be read, and fits its entry",
        "file-columns": "a data file has the table's columns in fitting types",
        "data-damaged": "a data file's pages can be read and have their checksums",
        "row-count": "a data file has as many rows as its entry says",
    },
    _COPY_OR_LOSE_DELETE: {
        "delete-missing": "every referenced .del object exists",
        "delete-short": "every .del object reaches to the end of its blobs",
        "vector-entry": "a vector's cardinality and place fit its file and object",
        "tombstone-damaged": "a tombstone's record is the one in the manifest",
        "vector-damaged": "a vector can be read, and points into its file",
    },
    _COPY_OR_OLDER: {
        "segment-missing": "every referenced segment exists",
        "segment-size": "every segment has the size of its entry",
        "segment-damaged": "segments can be read, and have their checksum and number of entries",
    },
    f"The newest version is complete. {_COPY}; without one, shorten the retention so that these versions expire.": {
        "released-missing": "objects that only older versions need exist as long as these are kept"
    },
    # ---- values
    _COMPARE: {
        "file-timestamps": "row timestamps <= applied_through <= commit timestamp",
        "row-timestamps": "the timestamps of a file's rows are within the bounds of its entry",
    },
    _REWRITE: {
        "stats-entry": "statistics are of existing columns, and of their types",
        "segment-bounds": "the manifest's bounds and totals of a segment are true for its entries",
        "stats-untrue": "statistics contain the values, and their counts are exact",
    },
    "Engines refuse the value, or deletes cannot be evaluated on it. An older dolmen accepted it: scan the table as "
    "Arrow, mend the column (cast it to binary and decode it by its true encoding), and overwrite the table.": {
        "value-invalid": "every value is valid for its column's type, and text is UTF-8"
    },
    # ---- erasures and publications
    "Erase the rows again (dolmen erase, dolmen forget), and find out what wrote the version: no dolmen does this.": {
        "erasure-undone": "a listed erasure hides its rows in every file that may hold them"
    },
    f"{_COPY}; the erasure itself continues.": {"receipt-damaged": "the receipt of an erasure can be read"},
    "Find out what wrote the receipt: no dolmen writes this. The newest version tells the truth.": {
        "receipt-differs": "a receipt says of an erasure what the newest version says"
    },
    f"No row of the table is lost: {_PUBLISH}": {
        "publication-damaged": "every object that a publication names can be read"
    },
    f"No row of the table is lost, but readers of Iceberg see other rows: {_PUBLISH}": {
        "publication-differs": "a publication shows the rows of the version that it names"
    },
}
"""Promises whose breach means that something cannot be read, or is read wrong: repair -> kind of finding -> promise."""

_WARNINGS: dict[str, tuple[str, str]] = {
    "applied-version": ("an applied id names an existing version", "ids still work."),
    "orphan-left": (
        "orphans older than the last sweep are deleted",
        "the object takes space; delete it once you know that it was not put there on purpose.",
    ),
    "released-untrimmed": (
        "deleted objects are no longer on the list of objects to delete",
        "the next run of gc trims the list.",
    ),
    "tombstone-twice": ("a tombstone is listed only once", "it hides the same rows twice; resolve the table."),
    "overlay-stray": (
        "overlays and removals are for files in segments",
        "they only take space in the manifest; merging the table's segments drops them.",
    ),
    "delete-footer": (
        "the footer of a .del object agrees with the manifest about its blobs",
        "readers use the manifest; resolving and compacting the table replaces the object.",
    ),
    "intent-damaged": (
        "heartbeats of jobs can be read",
        "gc looks for the job's objects everywhere if it dies, and removes the heartbeat in time.",
    ),
    "index-damaged": (
        "a data file's page index, Bloom filters and first bytes are as they were written",
        "dolmen then reads the file without them. Other engines that read it may leave out rows, or refuse it: put a "
        "good copy back, or compact the table until the file is gone.",
    ),
    "row-order": (
        "rows are sorted by the sort key within a row group",
        "scans are right, but may read more than they need, until a compaction sorts the file again.",
    ),
    "publication-foreign": (
        "the newest metadata of a publication is dolmen's own",
        "publish the table again, and find out who writes to iceberg/ without dolmen.",
    ),
    "publication-hint": (
        "the hint of a publication names its newest metadata",
        "publish the table again: until then some readers of Iceberg see an earlier publication, or none.",
    ),
}
"""Promises whose breach only costs money or trust, and what to do about it."""

KINDS: dict[str, Kind] = {
    name: Kind(name, "error", meaning, repair) for repair, some in _ERRORS.items() for name, meaning in some.items()
} | {
    name: Kind(name, "warning", meaning, f"Nothing is lost: {repair}") for name, (meaning, repair) in _WARNINGS.items()
}
"""All kinds by name."""

MOST_FINDINGS = 1_000  # the most findings of one kind that are listed. Further ones are only counted.

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a kind of object, the number checked so far, and the total; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    kind: str  # the kind's name, a key of ``KINDS``
    object: str  # the key of the object that is damaged, missing or wrong
    reason: str  # the problem in words
    table: str = ""  # the table's name; "" for the database
    rows: int = 0  # number of rows that cannot be read or trusted; 0 if no rows are affected
    versions: tuple[int, int] | None = None  # (oldest, newest) kept version that needs the object; None if none does

    @property
    def what(self) -> Kind:
        return KINDS[self.kind]

    @property
    def repair(self) -> str:
        return self.what.repair

    @property
    def cost(self) -> str:
        parts = [count_text(self.rows, "row")] if self.rows else []
        if self.table:
            parts.append(f"table {self.table}")
        if self.versions:
            oldest, newest = self.versions
            parts.append(f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}")
        return ", ".join(parts) or "the database"

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.what.severity,
            "object": self.object,
            "reason": self.reason,
            "table": self.table or None,
            "rows": self.rows,
            "versions": list(self.versions) if self.versions else None,
            "repair": self.repair,
        }

    def __str__(self) -> str:
        return f"{self.what.severity} {self.kind}: {self.object}: {self.reason} ({self.cost})"


@dataclass(frozen=True, repr=False)
class VerifyReport(FactSheet):
    """The result of ``verify``."""

    url: str
    version: int  # the version whose contents were checked
    findings: tuple[Finding, ...]  # in the order of discovery, at most ``MOST_FINDINGS`` of a kind
    counts: dict[str, int]  # number of findings of each kind, including those not listed
    checked: dict[str, int]  # number of things checked, by kind of thing
    # objects that no kept version needs, as far as the newest version shows, by the first part of their key: from
    # attempts that lost, from crashed or running jobs, or released and not yet collected. Not an error.
    orphans: dict[str, Amount]
    deep: bool

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings because of which something cannot be read, or is read wrong."""
        return tuple(finding for finding in self.findings if finding.what.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that only cost money or trust."""
        return tuple(finding for finding in self.findings if finding.what.severity == "warning")

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def orphaned(self) -> Amount:
        return sum(self.orphans.values(), Amount())

    def facts(self) -> list[tuple[str, str]]:
        checked = ", ".join(f"{count:,} {name}" for name, count in self.checked.items() if count)
        total = self.orphaned
        counts = [f"{count:,} x {name} ({KINDS[name].severity})" for name, count in self.counts.items()]
        facts = [
            ("verified", f"{self.url}, version {self.version}{', data read' if self.deep else ''}"),
            ("looked at", checked or "nothing"),
            ("orphans", f"{count_text(total.objects, 'object')}, {total.bytes:,} bytes" if total.objects else ""),
            ("found", ", ".join(counts) or "nothing wrong"),
        ]
        return [(name, value) for name, value in facts if value]

    def to_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "version": self.version,
            "ok": self.ok,
            "deep": self.deep,
            "checked": self.checked,
            "orphans": {name: {"objects": some.objects, "bytes": some.bytes} for name, some in self.orphans.items()},
            "counts": self.counts,
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def __repr__(self) -> str:
        lines = [super().__repr__()]
        for finding in self.findings:
            lines += [str(finding), f"    {finding.repair}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = [
            (finding.what.severity, finding.kind, finding.object, finding.reason, finding.cost, finding.repair)
            for finding in self.findings
        ]
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        names = ("severity", "kind", "object", "what is wrong", "what it costs", "what to do")
        head = "".join(f"<th>{name}</th>" for name in names)
        table = f"<table><tr>{head}</tr>{rows}</table>" if cells else ""
        return f"<div>{super()._repr_html_()}{table}</div>"


@dataclass
class FindingLog:
    """Collects findings and counts while checks run, for ``newest`` by default. Used by one thread only."""

    progress: Progress | None = None
    newest: int = 0
    oldest: int = 0
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        kind: str,
        object: str,
        reason: str,
        *,
        table: str = "",
        rows: int = 0,
        versions: tuple[int, int] | None = None,
    ) -> None:
        """Adds a finding. Beyond ``MOST_FINDINGS`` of a kind it is only counted."""
        self.counts[KINDS[kind].name] += 1
        if self.counts[kind] <= MOST_FINDINGS:
            if versions is None and table:
                versions = (self.newest, self.newest)
            self.findings.append(Finding(kind, object, reason, table, rows, versions))

    def count(self, what: str, count: int = 1, total: int = 0) -> None:
        """Counts things that were checked, and reports progress."""
        before = self.checked[what]
        self.checked[what] = before + count
        if self.progress and (before // 256 != self.checked[what] // 256 or self.checked[what] == total or not before):
            self.progress(what, self.checked[what], total)

    def merge(self, other: FindingLog) -> None:
        for finding in other.findings:
            self.counts[finding.kind] += 1
            if self.counts[finding.kind] <= MOST_FINDINGS:
                self.findings.append(finding)
        self.counts += other.counts - Counter(finding.kind for finding in other.findings)
