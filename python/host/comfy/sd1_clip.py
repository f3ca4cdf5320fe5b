"""Text encoders of SD1 and of all that are like it, and weights in prompts."""

from fresco_host import encoders
from fresco_host.encoders import (
    ClipTokenWeightEncoder,
    SD1ClipModel,
    SD1Tokenizer,
    SDClipModel,
    SDTokenizer,
    escape_important,
    gen_empty_tokens,
    parse_parentheses,
    token_weights,
    unescape_important,
)
from fresco_host.placeholders import fallback

globals().update(encoders.names_of(__name__))
__all__ = [
    "ClipTokenWeightEncoder", "SD1ClipModel", "SD1Tokenizer", "SDClipModel", "SDTokenizer", "escape_important", "gen_empty_tokens",
    "parse_parentheses", "token_weights", "unescape_important",
]
__getattr__ = fallback(__name__)
