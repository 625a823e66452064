"""Shared by the four Lambda handlers: settings from the environment, and redelivery of messages that are not done.

The handlers themselves are in ``functions/`` at the top of the repository; the package does not import them.
It imports ``dolmen.service.handover``, ``dolmen.ingest`` and what lies below those, but nothing of Lambda.
Begin with ``dolmen.service.functions.deliveries``; ``dolmen.service.functions.function_settings`` reads the variables.
"""
