"""Dropped files become rows, each exactly once."""
