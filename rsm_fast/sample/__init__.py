"""A sample conversation with questions, for the demo and the suite."""
