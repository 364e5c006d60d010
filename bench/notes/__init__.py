"""A-MEM put to the test: its peer in the quality harness, and its scaling claim."""
