"""Decides whether a history was right, from what the store holds and what the actors were told.

``ledger`` reads each version as it lands; ``stored`` and ``content`` decode its objects apart from the code under
test. ``model`` and ``effects`` say which rows there must be, ``seen`` compares them with what a reader saw,
``promises`` holds each version to the one before, ``retention`` judges every deleted object, ``answers`` demands a
reason for every error, ``recording`` and ``isolation`` check that transactions saw snapshots.
It imports dolmen, and nothing else of the simulator. Begin with ``dolmen_simulator.judge.never`` (what must never
happen), then ``dolmen_simulator.judge.ledger``.
"""
