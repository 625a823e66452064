"""The store in a bucket of S3, or of a service with S3's protocol, and clients of other AWS services.

It is the only package that imports boto3, so others import it only for an AWS URL. Begin with
``dolmen.store.s3.bucket_store``; ``dolmen.store.s3.failures`` translates errors.
"""
