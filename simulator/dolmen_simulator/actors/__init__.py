"""Programs that use the database in a history: writers, readers, functions, upkeep."""
