"""The host's main package, as far as packs need it."""

from fresco_host.placeholders import fallback

__getattr__ = fallback(__name__)
