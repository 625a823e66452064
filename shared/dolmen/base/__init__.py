"""The lowest room: clock and randomness, retries, checks of arguments, units. It knows nothing about tables.

It imports only ``dolmen.errors``. Begin with ``dolmen.base.runtime``.
"""
