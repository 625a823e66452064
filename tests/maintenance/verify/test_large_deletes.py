"""Large ``.del`` objects are verified blob by blob, with the same findings as small ones, which are read whole."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from support.tables import World


def world() -> World:
    made = World(runtime=Runtime(threads=1))
    made.create(pa.table({"k": range(3_000)}), group_rows=1_000)
    table = made.db.table("t")
    table.delete("k = 7", mode="positions")
    with made.db.transaction() as tx:
        tx.table("t").delete(keys=list(range(1_000, 2_000)), on=["k"])
        tx.table("t").delete(keys=list(range(500, 1_500)), on=["k"])
        tx.table("t").delete("k = 2500")
    return made


def test_deletes_are_verified_in_pieces_as_they_are_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    keys = made.entry().tombstones[0].blob
    body = made.store.get(keys.object).body
    places = (2, keys.offset + keys.length // 2, len(body) - 30, len(body) - 7)
    bodies = [body, *(body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :] for at in places)]
    bodies += [body[:length] for length in (0, 5, 11, len(body) - 1)]
    for place, each in enumerate(bodies):
        made.store.delete([keys.object])
        made.store.put(keys.object, each)
        told = []
        for whole in (1 << 20, 0):
            monkeypatch.setattr("dolmen.maintenance.verify.contents.WHOLE_BYTES", whole)
            told.append(sorted(map(repr, made.db.verify(deep=True).findings)))
        assert told[0] == told[1]
        assert bool(told[0]) == (place > 0)
