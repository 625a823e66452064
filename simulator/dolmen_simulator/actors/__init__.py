"""The programs that use the database in a history.

Users write, read, ask, declare and rename tables (``writers``, ``readers``, ``asking``, ``declaring``, ``renaming``,
``juggling``, ``insisting``, ``hoarding``, ``dawdling``). Functions take changes, delete requests and dropped files
from queues that deliver at least once (``feeding``, ``erasing``, ``dropping``; ``batches`` records what is said of
each request). Others look after the database (``upkeep``, ``rounds``). ``aftermath`` ends a history: verification must
find nothing wrong, and collection must leave nothing over.
It imports ``dolmen_simulator.world``, ``dolmen_simulator.judge`` and dolmen. Begin with
``dolmen_simulator.actors.cast``, which lists all kinds of actors.
"""
