"""A world with an empty table, for tests that need no other one."""

from __future__ import annotations

import pytest

from support.commit_world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.writer().create()
    return world
