"""Text encoders of HiDream."""

from fresco_host import encoders
from fresco_host.placeholders import fallback

globals().update(encoders.names_of(__name__))
__getattr__ = fallback(__name__)
