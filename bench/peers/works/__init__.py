"""The works that are measured: a function for each work, which asks a peer and holds its answers to an oracle."""
