"""Lists the actors of histories and the settings of their databases. Register a new kind of actor here."""

from __future__ import annotations

import random
from typing import Any

from dolmen_simulator.actors import upkeep
from dolmen_simulator.actors import writers as actors
from dolmen_simulator.actors.altering import Alterer, Checker
from dolmen_simulator.actors.asking import Asker
from dolmen_simulator.actors.copying import Copyist
from dolmen_simulator.actors.dawdling import Dawdler
from dolmen_simulator.actors.declaring import Declarer, Founder
from dolmen_simulator.actors.dropping import Ingester
from dolmen_simulator.actors.erasing import DeleteRequester
from dolmen_simulator.actors.feeding import Feeder
from dolmen_simulator.actors.forgetting import Eraser
from dolmen_simulator.actors.hoarding import Hoarder
from dolmen_simulator.actors.inserting import Indexer, KeyInserter
from dolmen_simulator.actors.insisting import Insister
from dolmen_simulator.actors.juggling import Juggler, TableRewriter
from dolmen_simulator.actors.publishing import Publisher
from dolmen_simulator.actors.readers import Dater, Reader
from dolmen_simulator.actors.renaming import Renamer
from dolmen_simulator.actors.rounds import Inspector, Maintainer
from dolmen_simulator.actors.teaming import Team
from dolmen_simulator.actors.travelling import Traveller
from dolmen_simulator.actors.updating import Updater
from dolmen_simulator.actors.writers import Actor

ACTORS: tuple[tuple[type[Actor], int], ...] = (
    (Founder, 2),
    (Declarer, 1),
    (Renamer, 2),
    (Traveller, 2),
    (Alterer, 2),
    (Checker, 2),
    (Eraser, 2),
    (Juggler, 1),
    (TableRewriter, 1),
    (actors.Appender, 2),
    (actors.Upserter, 1),
    (actors.Deleter, 1),
    (actors.PositionDeleter, 2),
    (actors.Blind, 1),
    (actors.Counter, 2),
    (actors.Transferrer, 1),
    (actors.Inserter, 2),
    (KeyInserter, 1),
    (Team, 2),
    (Updater, 2),
    (actors.Worker, 2),
    (Insister, 1),
    (Feeder, 1),
    (DeleteRequester, 2),
    (Ingester, 2),
    (upkeep.Settler, 1),
    (upkeep.Partitioner, 1),
    (upkeep.Overwriter, 1),
    (upkeep.Loader, 2),
    (Hoarder, 4),
    (upkeep.Resolver, 2),
    (upkeep.Compactor, 2),
    (upkeep.Merger, 1),
    (Indexer, 1),
    (upkeep.Expirer, 1),
    (upkeep.Collector, 2),
    (Publisher, 2),
    (Maintainer, 1),
    (Inspector, 1),
    (Reader, 2),
    (Dater, 1),
    (Copyist, 4),
    (Dawdler, 1),
    (Asker, 1),
)
"""Every kind of actor, with the number that take part."""

HOARDERS: frozenset[type[Actor]] = frozenset(
    {Hoarder, Renamer, upkeep.Merger, upkeep.Collector, upkeep.Settler, Reader, Copyist}
)
"""The actors of the few histories about one table with many entries in segments. Others have all other kinds."""

_HOARDING = 0.12


def choose_kinds(rng: random.Random) -> frozenset[type[Actor]]:
    """Draws the kinds of actors of a history."""
    return HOARDERS if rng.random() < _HOARDING else frozenset(kind for kind, _ in ACTORS) - {Hoarder}


SETTINGS: dict[str, tuple[Any, ...]] = {
    "root_bytes": (6_000, 14_000, 16_000, 20_000, 40_000),
    "retention": ("1m", "5m", "20m", "1h"),
    "keep_versions": (1, 2, 6, 12),
    "reader_grace": ("1m", "5m", "20m"),
    "orphan_age": ("20m", "30m", "1h", "2h"),
    "intent_timeout": ("15m", "30m", "1h"),
}
"""The settings of a history's database, of which its seed chooses. The orphan age is never below the validity of an S3
signature, as the protocol requires."""
