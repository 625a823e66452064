"""The commit protocol: changes as data, applied to whatever version is newest, made true by one compare-and-swap."""
