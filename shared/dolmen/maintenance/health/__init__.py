"""The health of a database: figures from its metadata, what needs attention, and a page that shows both.

It reads no data file and shows no value of a row. It imports ``dolmen.maintenance`` and what lies below.
Begin with ``dolmen.maintenance.health.look``; ``dolmen.maintenance.health.page`` draws its result.
"""
