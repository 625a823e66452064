"""Decides whether a history was right, from the stored objects and the answers that the actors got.

``ledger`` reads each version as it lands; ``stored`` and ``content`` decode its objects independently of the code
under test. ``model`` and ``effects`` compute the expected rows, ``seen`` compares them with the rows of a reader,
``layout`` compares files with their partitions, ``promises`` checks each version against the one before, ``retention``
judges every deleted object, ``answers`` demands a reason for every error, ``recording`` and ``isolation`` check that
transactions read snapshots.
It imports dolmen, and nothing else of the simulator. Begin with ``dolmen_simulator.judge.never`` (what must never
happen), then ``dolmen_simulator.judge.ledger``.
"""
