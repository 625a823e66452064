"""What a soak tells in the end: counts, violations, a table for people and JSON for machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from rich.console import Console
from rich.table import Table

from soak.journal import Entry


@dataclass
class Report:
    """A soak's outcome.

    Args:
        operations: acknowledged steps by actor's kind and what they did, rounds of work, checks.
        blows: what was done to which kind of process.
        troubles: errors that were met and may be met: the server was away, the outcome unknown, a conflict.
        unknowns: steps that may have landed: as it turned out.
        violations: what must never happen, and did.
    """

    seed: int
    directory: str
    seconds: float = 0.0
    versions: int = 0
    objects: int = 0
    dead_letters: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    blows: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    unknowns: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        told = {known.name: getattr(self, known.name) for known in fields(self)}
        return {
            name: dict(sorted(value.items())) if isinstance(value, Counter) else value for name, value in told.items()
        }

    def count(self, name: str, entries: list[Entry]) -> None:
        """Adds what an actor's journal tells."""
        kind = name.partition("-")[0]
        did = {entry["step"]: entry["do"] for entry in entries if entry["kind"] == "intent"}
        for entry in entries:
            match entry["kind"]:
                case "acknowledged":
                    self.operations[f"{kind}: {did[entry['step']]}"] += 1
                case "did" | "told":
                    self.operations[f"{kind}: {entry['what']}"] += 1
                case "trouble":
                    self.troubles[f"{kind}: {entry['what']}"] += 1
                case "refused":
                    self.troubles[f"{kind}: refused, not landed"] += 1
                case "settled":
                    self.unknowns["sent again, had landed"] += 1
                case "violation":
                    self.violations.append(f"{name}: {entry['what']}")

    def show(self, console: Console) -> None:
        """Prints it."""
        table = Table(title=f"soak: {self.seconds:.0f} s, seed {self.seed}")
        table.add_column("what")
        table.add_column("how often", justify="right")
        for title, counts in (
            ("operations", self.operations),
            ("blows", self.blows),
            ("starts", self.starts),
            ("troubles met", self.troubles),
            ("unknown outcomes", self.unknowns),
        ):
            table.add_section()
            table.add_row(f"[bold]{title}", f"[bold]{counts.total():,}")
            for name, number in sorted(counts.items()):
                table.add_row(f"  {name}", f"{number:,}")
        table.add_section()
        table.add_row("commits", f"{self.versions:,}")
        table.add_row("objects in the end", f"{self.objects:,}")
        table.add_row("dead letters delivered again", f"{self.dead_letters:,}")
        table.add_row("[bold]violations", f"[bold {'red' if self.violations else 'green'}]{len(self.violations):,}")
        console.print(table)
        for violation in self.violations[:50]:
            console.print(violation, style="red", markup=False)
