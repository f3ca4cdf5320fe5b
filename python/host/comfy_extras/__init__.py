"""The host's further nodes. Their classes run in the engine; a file here has what packs use beside the classes."""

from fresco_host.placeholders import fallback

__getattr__ = fallback(__name__)
