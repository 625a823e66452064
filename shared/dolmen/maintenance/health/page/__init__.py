"""Draws a health as one HTML page that needs nothing else: no script, no other file, no request.

It imports ``dolmen.maintenance.health.health`` and what lies below. Begin with
``dolmen.maintenance.health.page.page``.
"""
