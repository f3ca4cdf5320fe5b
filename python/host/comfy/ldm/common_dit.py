"""What transformers for pictures share."""

import torch

import comfy.rmsnorm
from fresco_host.placeholders import fallback

rms_norm = comfy.rmsnorm.rms_norm


def pad_to_patch_size(img, patch_size=(2, 2), padding_mode="circular"):
    """The picture with its last dimensions grown at their ends to multiples of the patch."""
    if padding_mode == "circular" and (torch.jit.is_tracing() or torch.jit.is_scripting()):
        padding_mode = "reflect"
    pad = ()
    for i, size in enumerate(patch_size):
        pad = (0, -img.shape[i + 2] % size) + pad
    return torch.nn.functional.pad(img, pad, mode=padding_mode)


__getattr__ = fallback(__name__)
