"""What a mutation is: production code less one of its rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """One replacement.

    Args:
        file: of ``shared/dolmen``.
        old: text that stands there exactly once.
        new: what takes its place.
    """

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The file's text after it. Raises ValueError unless the old text stands there once."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.file}: this stands there {times} times, not once:\n{self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutation:
    """Code that runs, and does all simple things right, but no longer keeps a promise.

    Args:
        name: what it does, in words.
        rule: which rule of the protocol it takes away.
        edits: one, or several where one alone would change nothing.
    """

    name: str
    rule: str
    edits: tuple[Edit, ...]

    def apply(self, package: Path) -> None:
        """Changes a copy of ``shared/dolmen``. Raises ValueError where the code is not what it was."""
        for edit in self.edits:
            path = package / edit.file
            path.write_text(edit.applied(path.read_text()))


def mutation(name: str, rule: str, file: str, old: str, new: str) -> Mutation:
    """A mutation of one place."""
    return Mutation(name, rule, (Edit(file, old, new),))
