"""The store in a directory."""
