"""The durable truth: one SQLite file."""
