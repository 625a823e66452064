"""What a version should hold, computed from the journals alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dolmen import Snapshot
from soak.journal import Entry, Steps
from soak.world import COUNTER_IDS

Journals = Mapping[str, list[Entry]]


@dataclass(frozen=True)
class Content:
    """All rows of one version."""

    rows: Counter[tuple[str, int, int]]
    events: Counter[int]
    log: Counter[tuple[str, int]]
    counters: dict[int, int]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Content:
        """Reads it."""
        rows = snapshot.table("rows").scan(["writer", "id", "value"]).to_arrow()
        log = snapshot.table("log").scan(["writer", "step"]).to_arrow()
        counters = snapshot.table("counters").scan(["id", "value"]).to_arrow().to_pylist()
        return cls(
            Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True)),
            Counter(snapshot.table("events").scan(["id"]).to_arrow()["id"].to_pylist()),
            Counter(zip(*(column.to_pylist() for column in log.columns), strict=True)),
            {row["id"]: row["value"] for row in counters},
        )

    def of_writer(self, name: str) -> dict[int, int]:
        """One writer's rows: value by id."""
        return {id_: value for writer, id_, value in self.rows if writer == name}


def check(content: Content, version: int, before: Journals, after: Journals, *, is_end: bool = False) -> list[str]:
    """What is wrong with a version.

    Args:
        before: the journals as they were before the version was looked up, when it was the newest.
        after: as they were once it had been.
        is_end: nobody writes any more, and the pipeline has nothing left to do.
    """
    found = [f"lost: {row} stands in rows {count} times" for row, count in content.rows.items() if count > 1]
    found += [f"twice: {id_} stands in events {count} times" for id_, count in content.events.items() if count > 1]
    found += [f"twice: {step} stands in log {count} times" for step, count in content.log.items() if count > 1]
    counted = Counter[int]()
    for name, entries in after.items():
        steps = Steps(entries)
        match name.partition("-")[0]:
            case "appender" | "upserter":
                found += _in_turn(name, steps, content.of_writer(name), version)
            case "transactor":
                acknowledged = {e["step"] for e in before.get(name, []) if e["kind"] == "acknowledged"}
                found += _all_or_nothing(name, steps, content, version, acknowledged, counted)
            case "dropper":
                found += _dropped_at_the_end(steps, content) if is_end else _dropped(steps, content)
    expected = {id_: counted[id_] for id_ in COUNTER_IDS}
    if content.counters != expected:
        found.append(f"half: counters are {content.counters}, and the log counts {expected}")
    return found


def after_steps(intents: Sequence[Entry]) -> dict[int, int]:
    """A writer's rows once these steps have been taken, one after the other."""
    rows: dict[int, int] = {}
    for intent in intents:
        if intent["do"] in ("append", "upsert"):
            rows |= dict.fromkeys(intent["ids"], intent["step"])
        else:
            for id_ in intent["ids"]:
                rows.pop(id_, None)
    return rows


def _in_turn(name: str, steps: Steps, rows: dict[int, int], version: int) -> Iterator[str]:
    """Exactly the steps up to one of them, each once: those acknowledged by then, and perhaps the next."""
    landed = [steps.landed(intent["step"], version) for intent in steps.intents]
    sure = sum(done is True for done in landed)
    if True in landed[sure:]:
        yield f"misreported: {name}'s steps have landed in another order than they were acknowledged in"
    expected = after_steps(steps.intents[:sure])
    if rows == expected:
        return
    if None in landed[sure : sure + 1] and rows == after_steps(steps.intents[: sure + 1]):
        return
    if expected.items() - rows.items():
        yield f"lost: {name} after {sure} steps: missing or other {_some(expected, rows)}"
    if more := {id_: value for id_, value in rows.items() if id_ not in expected}:
        yield f"revived: {name} after {sure} steps: too many {_some(more, expected)}"


def _some(these: dict[int, int], those: dict[int, int]) -> str:
    differing = {id_: value for id_, value in these.items() if those.get(id_) != value}
    return f"{len(differing)} rows {dict(list(differing.items())[:5])}"


def _all_or_nothing(
    name: str, steps: Steps, content: Content, version: int, acknowledged: set[int], counted: Counter[int]
) -> Iterator[str]:
    """Steps that stand in the log stand in the other table too, and no others; acknowledged ones do."""
    there = {step for writer, step in content.log if writer == name}
    rows: dict[int, int] = {}
    gone: set[int] = set()
    for intent in steps.intents:
        step = intent["step"]
        is_sure = steps.landed(step, version)
        if is_sure is None and step in acknowledged:
            is_sure = True
        if is_sure is not None and is_sure != (step in there):
            yield f"misreported: {name}'s step {step} is {'not ' if is_sure else ''}in version {version}"
        if step not in there:
            continue
        if intent["do"] == "count":
            counted[intent["id"]] += 1
        else:
            rows |= dict.fromkeys(intent["ids"], step)
            gone |= set(intent["gone"])
    expected = {id_: value for id_, value in rows.items() if id_ not in gone}
    found = content.of_writer(name)
    if found != expected:
        yield f"half: {name}: missing {_some(expected, found)}, too many {_some(found, expected)}"


def _of_kind(intents: Sequence[Entry], kind: str) -> list[Entry]:
    return [intent for intent in intents if intent["do"] == kind]


def _left(intents: Sequence[Entry]) -> set[int]:
    """The rows of a dropper once all of these steps have been taken."""
    dropped, deleted, added = (
        {id_ for intent in _of_kind(intents, kind) for id_ in intent["ids"]} for kind in ("drop", "delete", "again")
    )
    return (dropped - deleted) | added


def _dropped(steps: Steps, content: Content) -> Iterator[str]:
    """Each file is there whole or not at all, and each delete request is applied whole or not at all."""
    asked = {id_ for intent in _of_kind(steps.intents, "delete") for id_ in intent["ids"]}
    for intent in _of_kind(steps.intents, "drop"):
        there = {id_ in content.events for id_ in intent["ids"] if id_ not in asked}
        if len(there) > 1:
            yield f"half: file {intent['file']} is there in part"
    again = {intent["request"] for intent in _of_kind(steps.intents, "again")}
    for intent in _of_kind(steps.intents, "delete"):
        if intent["request"] not in again and len({id_ in content.events for id_ in intent["ids"]}) > 1:
            yield f"half: delete {intent['request']} is applied in part"


def _dropped_at_the_end(steps: Steps, content: Content) -> Iterator[str]:
    """All files but what was deleted, and what was added again since. A last step without an end is open."""
    found = set(content.events)
    expected = _left(steps.intents)
    if steps.unended and found == _left(steps.intents[:-1]):
        return
    if missing := expected - found:
        yield f"lost: {len(missing)} rows of dropped files, {sorted(missing)[:5]} first"
    if more := found - expected:
        yield f"revived: {len(more)} rows of files that were deleted, {sorted(more)[:5]} first"
