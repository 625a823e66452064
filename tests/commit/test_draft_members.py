"""Every member of a manifest passes from version to version, or is made for each: none can be forgotten in silence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dolmen.commit.draft import COPIED_MEMBERS, Draft
from dolmen.format.manifest import Manifest
from support.commit_world import World

OTHER: dict[str, Any] = {"tables": {}, "properties": {"retention": "1d"}, "features": ("tags",), "horizon": 1}
"""A value of these members that differs from a first version's; of others any will do, as a draft only passes it on."""


@pytest.fixture
def draft() -> Draft:
    world = World()
    writer = world.writer()
    writer.create()
    return Draft(world.newest, writer.head.segments)


def finish(draft: Draft) -> Manifest:
    return draft.finish(attempt="0" * 8, commit_id="c", operation="x", commit_ts=9, created_at=9, applied=())


@pytest.mark.parametrize("member", COPIED_MEMBERS)
def test_a_member_that_a_statement_changes_reaches_the_next_change_and_the_next_version(
    draft: Draft, member: str
) -> None:
    old = getattr(draft.base, member)
    new = OTHER.get(member, type(old)({"a": 1}) if isinstance(old, dict) else old + type(old)((1,)) if old == () else 7)
    assert not draft.has_changes
    setattr(draft, COPIED_MEMBERS[member], new)
    assert draft.has_changes
    assert getattr(draft.copy(), COPIED_MEMBERS[member]) == new
    assert getattr(draft.next_draft(8, ()).base, member) == new
    assert getattr(draft.committed, member) == old


def test_every_member_of_a_manifest_is_carried_or_made(draft: Draft) -> None:
    kept = finish(draft)
    assert {name for name in COPIED_MEMBERS if getattr(kept, name) != getattr(draft.committed, name)} == set()
    assert COPIED_MEMBERS.keys() < set(Manifest.__struct_fields__)


def test_a_member_that_nothing_carries_or_makes_fails_the_first_commit(
    draft: Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Grown(msgspec.Struct, frozen=True, kw_only=True):
        forgotten: int = 0

    fields = (*Manifest.__struct_fields__, *Grown.__struct_fields__)
    monkeypatch.setattr("dolmen.commit.draft.MEMBERS", frozenset(fields))
    with pytest.raises(AssertionError, match="forgotten"):
        finish(draft)
