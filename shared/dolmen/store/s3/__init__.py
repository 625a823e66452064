"""The store in a bucket of S3, or of a service that speaks S3's protocol.

It maps S3's answers to the outcomes of ``dolmen.store.base`` and boto's errors to those of ``dolmen.errors``.
It imports boto3, which is why ``dolmen.store.url`` imports this package only for an ``s3://`` URL.
Begin with ``dolmen.store.s3.store``; ``dolmen.store.s3.errors`` translates errors.
"""
