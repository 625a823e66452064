"""The world in which the judge of histories is itself judged."""

from __future__ import annotations

import pytest

from simulation.judged import World


@pytest.fixture
def world() -> World:
    """One table with three files: keys 1 to 3, 4 to 6, and 7."""
    world = World()
    world.create()
    for keys in ((1, 2, 3), (4, 5, 6), (7,)):
        world.append(*keys)
    return world


@pytest.fixture
def expiring(world: World) -> World:
    """Versions expire after a day, orphans after two, readers have an hour."""
    world.set(retention="1d", keep_versions=2, reader_grace="1h", orphan_age="2d")
    return world
