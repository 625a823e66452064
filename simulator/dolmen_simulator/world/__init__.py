"""The world of a history: virtual time, processes, a network that loses and delays, and the S3 server."""
