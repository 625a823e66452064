"""Simulates databases in a world of faults, decided by a seed and checked against plain Python rows.

Actors (``actors``) run production code in virtual time against one shared bucket (``world``). Their store is the
production S3Store over a simulated client. Each of its requests is a scheduling point, and may be lost, late, doubled
or refused, or its sender may crash. The judge (``judge``) reads each commit from the store as it lands, and compares
every version and every answer with a model that knows nothing of files or tombstones. One seed decides everything::

    python -m dolmen_simulator --seed 7 --steps 2000

It imports ``dolmen``, which does not import it. Begin with ``dolmen_simulator.simulation``, then
``dolmen_simulator.actors.cast``. ``dolmen_simulator.counting`` counts the requests of any store, also of benchmarks.
"""
