"""Values in text: what CSV cells and JSON strings may say, and how values are written as text."""
