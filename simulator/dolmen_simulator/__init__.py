"""A seeded simulation of databases in a world of faults, checked against plain Python rows.

Actors (``actors``) run production code in virtual time against one shared bucket (``world``). Their store is S3Store
as it is, over a client each of whose requests is a scheduling point and may be lost, late, doubled or refused, or its
sender may die. The judge (``judge``) reads what was committed from the store as it lands, and compares every version
and every answer with a model that knows nothing of files or tombstones. One seed decides everything::

    python -m dolmen_simulator --seed 7 --steps 2000

It imports ``dolmen``, which does not import it. Begin with ``dolmen_simulator.simulation``, then
``dolmen_simulator.actors.cast``.
"""
