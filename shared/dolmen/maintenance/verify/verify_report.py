"""The report of ``verify``: findings with their cost and repair, and counts of what was checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any, TypeAlias

from dolmen.base.units import count_text
from dolmen.maintenance.verify.kinds import KINDS, Kind

MOST_FINDINGS = 1_000
"""The most findings of one kind that are listed. Further ones are only counted."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a kind of thing, the number checked so far, and the total; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Args:
        kind: the kind's name, a key of ``KINDS``.
        object: the key of the object that is damaged, missing or wrong.
        reason: the fault in words.
        table: the table's name; "" for the database.
        rows: number of rows that cannot be read or trusted; 0 if no rows are affected.
        versions: (oldest, newest) kept version that needs the object; None if none does.
    """

    kind: str
    object: str
    reason: str
    table: str = ""
    rows: int = 0
    versions: tuple[int, int] | None = None

    @property
    def what(self) -> Kind:
        """Its kind, with severity and meaning."""
        return KINDS[self.kind]

    @property
    def repair(self) -> str:
        """The advice on what to do about it."""
        return self.what.repair

    @property
    def cost(self) -> str:
        """The rows, table and versions affected, in words."""
        told = []
        if self.rows:
            told.append(count_text(self.rows, "row"))
        if self.table:
            told.append(f"table {self.table}")
        if self.versions:
            oldest, newest = self.versions
            told.append(f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}")
        return ", ".join(told) or "the database"

    def to_dict(self) -> dict[str, Any]:
        """The finding for JSON."""
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


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """Objects that no kept version needs, as far as the newest version shows. This is not an error.

    They come from attempts that lost, from crashed or running jobs, or are released and wait for collection.
    """

    objects: int = 0
    bytes: int = 0

    def __add__(self, other: Unreferenced) -> Unreferenced:
        return Unreferenced(self.objects + other.objects, self.bytes + other.bytes)


@dataclass(frozen=True, repr=False)
class VerifyReport:
    """The result of ``verify``.

    Args:
        url: the database's URL.
        version: the version whose contents were checked.
        findings: in the order of discovery, at most ``MOST_FINDINGS`` of a kind.
        counts: number of findings of each kind, including those not listed.
        checked: number of things checked, by kind of thing.
        orphans: objects that nothing references, by the first part of their key.
        deep: whether data was read.
    """

    url: str
    version: int
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    checked: dict[str, int]
    orphans: dict[str, Unreferenced]
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
        """Whether there are no errors."""
        return not self.errors

    @property
    def orphaned(self) -> Unreferenced:
        """All orphans together."""
        return sum(self.orphans.values(), Unreferenced())

    def facts(self) -> list[tuple[str, str]]:
        """The lines that ``repr`` shows, as pairs of name and value."""
        seen = ", ".join(f"{count:,} {name}" for name, count in self.checked.items() if count)
        lost = self.orphaned
        facts = [
            ("verified", f"{self.url}, version {self.version}{', data read' if self.deep else ''}"),
            ("looked at", seen or "nothing"),
            ("orphans", f"{count_text(lost.objects, 'object')}, {lost.bytes:,} bytes" if lost.objects else ""),
            ("found", self._found()),
        ]
        return [(name, value) for name, value in facts if value]

    def _found(self) -> str:
        if not self.counts:
            return "nothing wrong"
        return ", ".join(f"{count:,} x {name} ({KINDS[name].severity})" for name, count in self.counts.items())

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
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
        width = max(len(name) for name, _ in self.facts())
        lines = [f"{name:<{width}}  {value}" for name, value in self.facts()]
        for finding in self.findings:
            lines += [str(finding), f"    {finding.repair}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        facts = "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in self.facts())
        cells = [
            (found.what.severity, found.kind, found.object, found.reason, found.cost, found.repair)
            for found in self.findings
        ]
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        names = ("severity", "kind", "object", "what is wrong", "what it costs", "what to do")
        head = "".join(f"<th>{name}</th>" for name in names)
        listed = f"<table><tr>{head}</tr>{rows}</table>" if cells else ""
        return f"<div><table>{facts}</table>{listed}</div>"


@dataclass
class FindingLog:
    """Collects findings and counts while checks run. Used only in the thread that runs ``verify``.

    Args:
        progress: called every few hundred things.
        newest: the checked version, which findings affect unless they say otherwise.
    """

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
        """Adds the findings of another log, which another thread collected."""
        for finding in other.findings:
            self.counts[finding.kind] += 1
            if self.counts[finding.kind] <= MOST_FINDINGS:
                self.findings.append(finding)
        self.counts += other.counts - Counter(finding.kind for finding in other.findings)
