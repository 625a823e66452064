"""Files that know their columns' types: Parquet and Arrow."""
