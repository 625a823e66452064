"""The health of a database: figures from its metadata, what needs attention, and a page that shows both.

No data file is read, and no value of a row is in what it tells. It imports ``dolmen.maintenance`` and what lies below.
Begin with ``dolmen.maintenance.health.look``, which makes a ``dolmen.maintenance.health.health.Health``;
``dolmen.maintenance.health.page`` draws it.
"""
