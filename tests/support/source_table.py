"""A table at a source, with its changes as Debezium writes them: unchanged values are left out."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

PLACEHOLDER = "__debezium_unavailable_value"


@dataclass
class SourceTable:
    """Rows of a key and two columns, ``note`` and ``tags``, and the events of their changes so far.

    Args:
        rows: by key.
        events: of all changes, in order. Each has a sequence of its own, but a key that changes in two events has one.
    """

    random: random.Random
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    _sequence: int = 0

    def change(self, keys: int, *, moves: bool = True) -> None:
        """Makes one change of a few keys."""
        self._sequence += 1
        key = self.random.randrange(keys)
        if key not in self.rows:
            self.rows[key] = {"id": key, "note": self._text(), "tags": [self._text()]}
            self._add("c", None, dict(self.rows[key]))
            return
        chance, free = self.random.random(), [other for other in range(keys) if other not in self.rows]
        if chance < 0.2:
            del self.rows[key]
            self._add("d", {"id": key, "note": None, "tags": None}, None)
        elif chance < 0.4 and free and moves:
            self._move(key, self.random.choice(free))
        else:
            self._add("u", None, self._updated(key))

    def _updated(self, key: int) -> dict[str, Any]:
        image = {"id": key}
        for name in ("note", "tags"):
            if self.random.random() < 0.5:
                self.rows[key][name] = None if self.random.random() < 0.1 else self._text()
                if name == "tags" and self.rows[key][name] is not None:
                    self.rows[key][name] = [self.rows[key][name]]
                image[name] = self.rows[key][name]
            else:
                image[name] = PLACEHOLDER if name == "note" else [PLACEHOLDER]
        return image

    def _move(self, key: int, to: int) -> None:
        image = self._updated(key) | {"id": to}
        self.rows[to] = self.rows.pop(key) | {"id": to}
        if self.random.random() < 0.5:
            self._add("u", {"id": key}, image)
        else:  # as Debezium does by itself
            self._add("d", {"id": key}, None)
            self._add("c", None, image)

    def _text(self) -> str:
        return f"text {self._sequence}"

    def _add(self, op: str, before: Any, after: Any) -> None:
        self.events.append({"op": op, "before": before, "after": after, "source": {"lsn": self._sequence}})

    def files(self, rng: random.Random) -> list[list[dict[str, Any]]]:
        """The events in files. A key that changes in two events does so in one file."""
        files: list[list[dict[str, Any]]] = []
        size = 0
        for event in self.events:
            if size <= 0 and not (files and files[-1][-1]["source"] == event["source"]):
                files.append([])
                size = rng.randrange(1, 8)
            files[-1].append(event)
            size -= 1
        return files

    def expected(self) -> dict[int, tuple[Any, ...]]:
        """The rows by key."""
        return {key: (row["note"], row["tags"]) for key, row in self.rows.items()}


def body(events: list[dict[str, Any]]) -> bytes:
    """A file of events."""
    return "".join(json.dumps(each) + "\n" for each in events).encode()
