"""What is measured: a function for each work, which asks a peer and holds its answers to an oracle."""
