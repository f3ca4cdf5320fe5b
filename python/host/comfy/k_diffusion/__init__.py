"""Samplers of packs are added here; those of the host run in the engine."""
