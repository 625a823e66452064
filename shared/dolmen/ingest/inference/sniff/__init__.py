"""Sniffers: the container, encoding, and layout of delimited text, JSON or a sheet, by the first bytes of a file."""
