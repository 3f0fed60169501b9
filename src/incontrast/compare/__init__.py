"""Strategies side by side on one set of data, within a time."""
