"""Mutations: production code without one of its rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """One replacement.

    Args:
        file: path in ``shared/dolmen``.
        old: a text that occurs exactly once in the file.
        new: the replacement.
    """

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The file's text with the replacement. Raises ValueError unless the old text occurs once."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.file}: this occurs {times} times, not once:\n{self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutation:
    """Code that runs and does all simple things correctly, but no longer keeps a promise.

    Args:
        name: what the mutated code does.
        rule: the rule of the protocol that it breaks.
        edits: one edit, or several if one alone would change nothing.
    """

    name: str
    rule: str
    edits: tuple[Edit, ...]

    def apply(self, package: Path) -> None:
        """Changes a copy of ``shared/dolmen``. Raises ValueError if the code has changed since."""
        for edit in self.edits:
            path = package / edit.file
            path.write_text(edit.applied(path.read_text()))


def mutation(name: str, rule: str, file: str, old: str, new: str) -> Mutation:
    """A mutation with one edit."""
    return Mutation(name, rule, (Edit(file, old, new),))
