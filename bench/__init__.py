"""Data sets, peers, quality and speed runs, reports. Never installed."""
