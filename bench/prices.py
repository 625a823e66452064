"""AWS's prices in US dollars, in us-east-1. Recorded in November 2026 from memory, and not
compared with AWS's pages, whose URLs are given here: check them before you rely on the prices."""

from __future__ import annotations

S3_SOURCE = "https://aws.amazon.com/s3/pricing/"
S3_PUT = 0.005 / 1_000
"""PUT, COPY, POST and LIST; each part of a multipart upload is one, its beginning and its end are too."""
S3_GET = 0.0004 / 1_000
"""GET, HEAD and all others. DELETE is free."""
S3_STORAGE_TIERS = ((50_000, 0.023), (450_000, 0.022), (float("inf"), 0.021))
"""S3 Standard: pairs of GB and dollars per GB and month."""

LAMBDA_SOURCE = "https://aws.amazon.com/lambda/pricing/"
LAMBDA_REQUEST = 0.20 / 1_000_000
LAMBDA_GB_SECOND = 0.0000133334
"""arm64, as in the template; x86_64 costs 0.0000166667."""

SQS_SOURCE = "https://aws.amazon.com/sqs/pricing/"
SQS_REQUEST = 0.40 / 1_000_000
"""Standard queues."""


CLOUDWATCH_SOURCE = "https://aws.amazon.com/cloudwatch/pricing/"
CLOUDWATCH_METRIC = 0.30
"""A custom metric, a month; the first 10,000."""
CLOUDWATCH_ALARM = 0.10
"""On one metric of standard resolution, a month."""
CLOUDWATCH_DASHBOARD = 3.00
"""A month; the first three of an account are free."""
CLOUDWATCH_LOGS_GB = 0.50
"""Taken in, once."""


def storage(gigabytes: float) -> float:
    """Dollars a month."""
    dollars = 0.0
    for size, price in S3_STORAGE_TIERS:
        taken = min(gigabytes, size)
        dollars += taken * price
        gigabytes -= taken
    return dollars
