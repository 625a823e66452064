"""The programs that use the database in a history.

Users write, read, query, declare and rename tables (``writers``, ``readers``, ``asking``, ``declaring``, ``renaming``,
``juggling``, ``updating``, ``insisting``, ``hoarding``, ``dawdling``). Functions take changes, delete requests and
dropped files from queues that deliver at least once (``feeding``, ``erasing``, ``dropping``; ``batches`` checks the
outcome of each request). Background work maintains the database (``upkeep``, ``rounds``). ``aftermath`` ends a
history: verification must find nothing wrong, and collection must leave nothing over.
It imports ``dolmen_simulator.world``, ``dolmen_simulator.judge`` and dolmen. Begin with
``dolmen_simulator.actors.cast``, which lists all kinds of actors.
"""
