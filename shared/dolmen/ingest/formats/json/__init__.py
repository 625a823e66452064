"""JSON: objects on lines, in arrays or below a path."""
