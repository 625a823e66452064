"""The health of a database: figures from its metadata, what needs attention, and a page that shows both.

No data file is read, and no value of a row is in what it tells. It imports ``dolmen.maintenance`` and what lies below.
Begin with ``dolmen.health.look``, which makes a ``dolmen.health.health.Health``; ``dolmen.health.page`` draws it.
"""
