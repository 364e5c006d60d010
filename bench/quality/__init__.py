"""How much of the truth each design keeps per token, on real data."""
