"""The health of a database: figures from its metadata, what needs attention, and a page that shows both.

It reads no data file and shows no value of a row. It imports ``dolmen.maintenance`` and what lies below.
Begin with ``dolmen.maintenance.health.look``, which makes a ``dolmen.maintenance.health.health.Health``;
``dolmen.maintenance.health.page`` draws it.
"""
