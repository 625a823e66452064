"""The work of the four Lambda functions: settings from the environment, an event from its messages to its metrics.

The handlers in ``functions/``, at the top of the repository, only wire this to Lambda; the package does not import
them. It imports ``dolmen.service.handover``, ``dolmen.ingest`` and what lies below those, but nothing of Lambda.
Begin with ``dolmen.service.functions.ingest_function``; ``dolmen.service.functions.function_settings`` reads the
variables, and ``dolmen.service.functions.deliveries`` sends messages again.
"""
