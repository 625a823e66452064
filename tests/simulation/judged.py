"""A database under the eyes of the judge of histories, whose next manifest can be forged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from dolmen import Commit, Database
from dolmen.base.runtime import Runtime
from dolmen.format.layout import POINTER
from dolmen.store.base import Buffer, Deleted, PutOutcome, Stored
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.actors.writers import arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.ledger import CommitLedger
from dolmen_simulator.judge.model import SCHEMA, Effect, Operation, OperationRun, Row
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.world.scheduler import START_US

DAY_US = 86_400_000_000
Document = dict[str, Any]
Forgery = Callable[[Document], None]


class Judged(MemoryStore):
    """A store all of whose puts and deletes are judged, and in which the next manifest can be forged."""

    def __init__(self, bucket: MemoryBucket, runtime: Runtime, ledger: CommitLedger) -> None:
        super().__init__(bucket, runtime)
        self.ledger, self.run = ledger, OperationRun(Operation("nothing", "nobody", 0, 0))
        self.forgery: Forgery | None = None
        self.publication_forgery: Callable[[bytes], bytes] | None = None

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        content = bytes(body)
        if self.run.first_put is None:
            self.run.first_put = self.ledger.version
        self.run.puts(key)
        if key.startswith("manifest/") and self.forgery:
            document = msgspec.json.decode(content)
            self.forgery(document)
            content = msgspec.json.encode(document)
        if key == POINTER:
            self.ledger.record_sent(content, self.run)
        if key.endswith(".metadata.json") and self.publication_forgery:
            content = self.publication_forgery(content)
        outcome = super().put(key, content, if_match=if_match)
        if isinstance(outcome, Stored):
            self.ledger.publications.record_put(key, self.bucket.clock_us())
        if key == POINTER and isinstance(outcome, Stored):
            self.ledger.record_pointer(content, self.bucket.clock_us())
        return outcome

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        for key in keys:
            self.ledger.retention.check_delete(key, self.bucket.clock_us())
            self.ledger.publications.check_delete(key, self.bucket.clock_us())
        return super().delete(keys)


class World:
    """A database under a judge's eyes, one call after the other."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.bucket = MemoryBucket(lambda: self.now_us, "checked")
        self.ledger = CommitLedger(self.bucket, Counter())
        runtime = Runtime(
            clock_us=lambda: self.now_us,
            monotonic=lambda: self.now_us / 1e6,
            sleep=lambda seconds: None,
            random=random.Random(1),
            threads=1,
        )
        self.store = Judged(self.bucket, runtime, self.ledger)
        self.db = Database(self.store, runtime)
        self._given_out = 0
        self.operation = self.store.run.operation

    def rows(self, *keys: int) -> tuple[Row, ...]:
        """New rows with these keys."""
        self._given_out += len(keys)
        return tuple(Row(k, k * 10, self._given_out - len(keys) + n, None) for n, k in enumerate(keys, 1))

    def begin(self, kind: str, *effects: Effect, **said: Any) -> OperationRun:
        """What the next commit will be."""
        self.now_us += 1_000_000
        version = self.ledger.version
        self.operation = Operation(kind, "tester", version, version, began_us=self.now_us, **said)
        self.store.run = OperationRun(self.operation, list(effects))
        return self.store.run

    def do(self, kind: str, effects: Sequence[Effect], call: Callable[[], Any], **said: Any) -> Any:
        """One call, judged."""
        run = self.begin(kind, *effects, **said)
        done = call()
        self.ledger.check_acknowledged(self.operation, run, done if isinstance(done, Commit) else None)
        return done

    def create(self) -> None:
        self.do("create", [model.CreateEffect("left")], lambda: self.db.create_table("left", SCHEMA, primary_key="k"))

    def append(self, *keys: int, table: str = "left", **said: Any) -> tuple[Row, ...]:
        rows = self.rows(*keys)
        self.do("append", [model.AppendEffect(table, rows)], lambda: self.db.table(table).append(arrow(rows)), **said)
        return rows

    def delete(self, k: int) -> None:
        effect = model.DeleteEffect("left", lambda row: row.k == k)
        self.do("delete", [effect], lambda: self.db.table("left").delete({"k": k}))

    def delete_positions(self, k: int) -> None:
        effect = model.DeletePositionsEffect("left", lambda row: row.k == k)
        self.do("delete", [effect], lambda: self.db.table("left").delete({"k": k}, mode="positions"))

    def apply(self, id_: str, *keys: int) -> tuple[Row, ...]:
        """An append with an applied id."""
        rows = self.rows(*keys)

        def block() -> Commit:
            with self.db.transaction() as transaction:
                transaction.bind(id_, f"digest of {id_}")
                transaction.table("left").append(arrow(rows), request=id_)
                return transaction.commit()

        self.do("batch", [model.AppendEffect("left", rows, id_)], block, digests={id_: f"digest of {id_}"})
        return rows

    def upkeep(self, kind: str, call: Callable[[], Any]) -> None:
        self.do(kind, [], call, upkeep=True)

    def set(self, **settings: Any) -> None:
        self.do("set", [model.SettingsEffect("", settings)], lambda: self.db.set(**settings))

    @property
    def table(self) -> Document:
        """What the newest manifest says of the table."""
        key = self.ledger.chain[-1].key
        table: Document = msgspec.json.decode(self.bucket.objects[key].body)["tables"]["left"]
        return table


def check_forgery(world: World, forgery: Forgery, never: Never, told: str) -> None:
    """Lets a commit land whose manifest is forged, and sees what the judge says of it."""
    world.store.forgery = forgery
    with pytest.raises(ViolationError, match=told) as caught:
        world.append(8)
    assert caught.value.never is never, caught.value


def left(document: Document) -> Document:
    table: Document = document["tables"]["left"]
    return table
