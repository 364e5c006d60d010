"""The command line ``rsm-fast``."""
