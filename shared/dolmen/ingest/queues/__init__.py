"""Queues of messages: of SQS, or a directory on one machine."""
