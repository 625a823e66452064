"""Change data capture: files of inserts, updates and deletes."""
