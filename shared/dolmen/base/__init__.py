"""The ground of all other parts: clock and randomness, checks of arguments, units. It knows nothing of tables.

It imports only ``dolmen.errors``. Begin with ``dolmen.base.runtime``.
"""
