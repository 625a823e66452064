"""A seeded simulation of a database in a bad world, checked against plain Python rows.

Actors (listed in ``cast``) run production code in virtual time (``scheduler``) against one shared bucket (``server``).
They are users (``actors``, ``juggling``: tables, transactions, read-modify-write; ``declaring``: tables that are
founded, declared, dropped, and come back in another shape; ``readers``, ``asking``), functions whose queues deliver at
least once (``feeding``: changes; ``erasing``: delete requests; ``dropping``: files, in a ``landing`` place on the same
wire; ``batches`` judges what is said of each request), and those who look after the database (``upkeep``, ``rounds``).

Their store is S3Store as it is, over a client of which every request is a scheduling point (``wire``) and has a fate
(``fates``; those of a history are dealt by ``network``): it is lost, late, doubled or refused, or its sender dies.

What was really committed is read from the store as it lands (``ledger``; ``stored`` and ``content`` decode manifests,
files, vectors and tombstones apart from the code under test). The rows of every version come from a model that knows
nothing of files or tombstones (``model``, ``effects``); what a version holds, and every answer, is held against them
(``seen``), and what it promises to later commits against the version before it (``promises``). What kept versions need
must be there, and whatever is deleted is judged as it goes (``retention``). Errors need reasons (``answers``). At the
end what transactions saw of each other (``recording``) must be snapshots (``isolation``), verification finds nothing
wrong, and collection leaves nothing over (``aftermath``). Whatever is found has a name (``never``). One seed decides
all::

    python -m dolmen_simulator --seed 7 --steps 2000
"""
