"""Verification: checks a database from the pointer to the last byte of its data, and changes nothing.

It imports what ``dolmen.maintenance`` may import.
Begin with ``dolmen.maintenance.verify.verification``; ``dolmen.maintenance.verify.findings`` lists all findings.
"""
