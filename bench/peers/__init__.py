"""Other table formats, that deletes and scans on Spark are measured beside."""
