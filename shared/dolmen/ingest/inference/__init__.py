"""Inference: finds the dialect and the columns of a file without a description. It only proposes; the strict
readers of ``dolmen.ingest.formats`` read by what it found."""
