"""Samplers of packs are added here; those of the host run in the engine."""

from fresco_host.placeholders import fallback

__getattr__ = fallback(__name__)
