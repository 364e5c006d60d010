"""rsm_fast."""
