"""Chosen chunks to prompt text."""
