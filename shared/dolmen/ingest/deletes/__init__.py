"""Delete requests: messages become tombstones, and their outcomes can be asked for."""
