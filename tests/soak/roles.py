"""Who takes part in a soak: those who change rows."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

from dolmen import Commit, Transaction
from soak.actor import Actor, Stepping
from soak.attendants import Drain, Keeper, Pipeline, Reader
from soak.world import COUNTER_IDS, World

SPAN = 10_000_000
"""Each actor's rows have ids of its own."""


class Writer(Stepping):
    """Has a range of ids, and a way to say which request was applied when."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.first = (1 + int(name.rpartition("-")[2])) * SPAN

    def rows(self, ids: list[int], value: int) -> list[dict[str, Any]]:
        """Rows of its own."""
        return [{"id": id_, "writer": self.name, "value": value} for id_ in ids]

    def request(self, intent: dict[str, Any]) -> str:
        """A step's id."""
        return f"{self.name}/{intent['step']}"

    def version_of(self, commit: Commit, intent: dict[str, Any]) -> int:
        """The version that applied a step, now or before."""
        before = commit.already.get(self.request(intent))
        if before is not None:
            self.journal.write("settled", step=intent["step"])
        return before or commit.version


class Appender(Writer):
    """Adds rows, and repeats a request under its id until it is acknowledged: also one that it died over."""

    def intend(self, number: int, dice: random.Random) -> dict[str, Any]:
        first = self.first + number * 10
        return {"do": "append", "ids": list(range(first, first + dice.randint(1, 6)))}

    def carry_out(self, intent: dict[str, Any]) -> int:
        rows = self.rows(intent["ids"], intent["step"])
        return self.version_of(self.db.table("rows").append(rows, request=self.request(intent)), intent)


class Upserter(Writer):
    """Replaces and deletes the same few keys again and again, in the same way."""

    def intend(self, number: int, dice: random.Random) -> dict[str, Any]:
        ids = sorted(dice.sample(range(self.first, self.first + 40), dice.randint(1, 5)))
        return {"do": dice.choice(["upsert", "upsert", "upsert", "keys", "where", "positions"]), "ids": ids}

    def carry_out(self, intent: dict[str, Any]) -> int:
        table, ids, request = self.db.table("rows"), intent["ids"], self.request(intent)
        where = f"id IN ({', '.join(map(str, ids))})"
        match intent["do"]:
            case "upsert":
                commit = table.upsert(self.rows(ids, intent["step"]), request=request)
            case "keys":
                commit = table.delete(keys=ids, request=request)
            case "where":
                commit = table.delete(f"({where}) AND value >= 0", request=request)
            case _:
                commit = table.delete(where, mode="positions", request=request)
        return self.version_of(commit, intent)


class Transactor(Writer):
    """Changes two tables at once, or reads a counter and writes it back; a step that may have landed is left at that.

    Each step leaves a row in ``log`` by which it can be told whether it has landed.
    """

    is_repeatable = False

    def intend(self, number: int, dice: random.Random) -> dict[str, Any]:
        if number % 3 == 2:
            return {"do": "count", "id": dice.choice(COUNTER_IDS)}
        first = self.first + number * 10
        old = [i for i in self.steps.intents[-6:-3] if i["do"] == "two" and self._is_acknowledged(i)][:1]
        gone = [intent["ids"][0] for intent in old if not self._is_gone(intent["ids"][0])]
        return {"do": "two", "ids": list(range(first, first + dice.randint(2, 4))), "gone": gone}

    def _is_acknowledged(self, intent: dict[str, Any]) -> bool:
        return bool(self.steps.ends[intent["step"]]["kind"] == "acknowledged")

    def _is_gone(self, id_: int) -> bool:
        return any(id_ in intent.get("gone", ()) for intent in self.steps.intents)

    def carry_out(self, intent: dict[str, Any]) -> int | None:
        noted = [{"writer": self.name, "step": intent["step"]}]
        if intent["do"] == "two":
            with self.db.transaction() as tx:
                tx.table("rows").append(self.rows(intent["ids"], intent["step"]))
                if intent["gone"]:
                    tx.table("rows").delete(keys=intent["gone"])
                tx.table("log").append(noted)
                return tx.commit().version

        def add_one(tx: Transaction) -> None:
            counters = tx.table("counters")
            (value,) = counters.scan(["value"], {"id": intent["id"]}).to_arrow()["value"].to_pylist()
            counters.upsert([{"id": intent["id"], "value": value + 1}])
            tx.table("log").append(noted)

        self.db.run(add_one)
        return None


class Dropper(Writer):
    """Drops files and delete requests for the pipeline, again at times; and adds rows again that it had deleted."""

    def intend(self, number: int, dice: random.Random) -> dict[str, Any]:
        time.sleep(0.2)
        first = self.first + number * 10
        fresh = {"do": "drop", "file": number, "ids": list(range(first, first + dice.randint(1, 9)))}
        kind = dice.choice(["drop", "drop", "drop", "redrop", "delete", "delete", "again", "redelete"])
        done = self.steps.intents
        drops, deletes = ([i for i in done if i["do"] == word] for word in ("drop", "delete"))
        if kind == "drop" or not drops:
            return fresh
        if kind == "redrop":
            return _repeated(dice.choice(drops[-20:]), "redrop")
        if kind == "redelete" and deletes:
            return _repeated(dice.choice(deletes[-20:]), "redelete")
        there = set(self.patiently(lambda: self.db.table("events").scan(["id"]).to_arrow())["id"].to_pylist())
        if kind == "delete":
            asked = {id_ for intent in deletes for id_ in intent["ids"]}
            free = [ids for i in drops[-20:] if (ids := sorted(set(i["ids"]) & there - asked))]
            return {"do": "delete", "request": number, "ids": dice.choice(free)[:3]} if free else fresh
        added = {i["request"] for i in done if i["do"] == "again"}
        applied = [i for i in deletes if i["request"] not in added and not there & set(i["ids"])]
        return _repeated(dice.choice(applied[-20:]), "again") if applied else fresh

    def carry_out(self, intent: dict[str, Any]) -> int | None:
        layout, ids = self.world.layout, intent["ids"]
        if "drop" in intent["do"]:
            lines = ["id,file", *(f"{id_},{intent['file']}" for id_ in ids)]
            _put(layout.landing / "events" / f"{intent['file']}.csv", "\n".join(lines) + "\n")
        elif "delete" in intent["do"]:
            request = f"{self.name}/delete/{intent['request']}"
            body = {"table": "events", "keys": ids, "request_id": request}
            _put(layout.queue / f"{intent['request']}.json", json.dumps(body))
        else:
            rows = [{"id": id_, "file": -1} for id_ in ids]
            return self.version_of(self.db.table("events").append(rows, request=self.request(intent)), intent)
        return None


def _repeated(intent: dict[str, Any], do: str) -> dict[str, Any]:
    """Another step about what an earlier one was about."""
    return {**{name: value for name, value in intent.items() if name != "kind"}, "do": do}


def _put(path: Path, text: str) -> None:
    """A file that is there whole or not at all, and new each time."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    os.replace(partial, path)


ROLES: dict[str, type[Actor]] = {
    role.__name__.lower(): role for role in (Appender, Upserter, Transactor, Dropper, Pipeline, Drain, Keeper, Reader)
}
