"""The data source ``format("dolmen")`` for batch reads and writes."""
