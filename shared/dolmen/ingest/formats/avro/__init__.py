"""Avro object container files."""
