"""Checks that a store does what dolmen relies on: its own stores in the tests, yours by ``dolmen check-store``."""
