"""The store in a bucket of S3, or of a service that speaks S3's protocol.

It maps S3's answers to the outcomes of ``dolmen.store.base`` and boto's errors to those of ``dolmen.errors``. It also
makes the clients of other AWS services, for queues and jobs (``dolmen.store.s3.clients``).
It is the only package that imports boto3, which is why others import it only when they are given an AWS URL.
Begin with ``dolmen.store.s3.bucket_store``; ``dolmen.store.s3.failures`` translates errors.
"""
