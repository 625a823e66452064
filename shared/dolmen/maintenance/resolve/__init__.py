"""Resolution: turns tombstones into deletion vectors."""
