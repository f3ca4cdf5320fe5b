"""Positions as rotations of pairs of numbers, and attention with them."""

import torch

import comfy.ldm.modules.attention
from fresco_host.placeholders import fallback


def attention(q, k, v, pe, mask=None, transformer_options={}):
    """Of tensors (batch, heads, tokens, size), as (batch, tokens, heads * size)."""
    if pe is not None:
        q, k = apply_rope(q, k, pe)
    return comfy.ldm.modules.attention.optimized_attention(
        q, k, v, q.shape[1], skip_reshape=True, mask=mask, transformer_options=transformer_options
    )


def rope(pos, dim, theta):
    """A rotation of two by two for each position and each pair of numbers: (..., positions, dim / 2, 2, 2)."""
    if dim % 2 != 0:
        raise ValueError(f"comfy.ldm.flux.math.rope: pairs of numbers turn, so the size must be even, not {dim}")
    device = torch.device("cpu") if pos.device.type == "mps" else pos.device
    speed = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    angle = pos.to(device=device, dtype=torch.float32).double().unsqueeze(-1) * speed
    turned = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=-1)
    return turned.reshape(*turned.shape[:-1], 2, 2).to(dtype=torch.float32, device=pos.device)


def apply_rope1(x, freqs_cis):
    pairs = x.to(dtype=freqs_cis.dtype).reshape(*x.shape[:-1], -1, 1, 2)
    turned = freqs_cis[..., 0] * pairs[..., 0] + freqs_cis[..., 1] * pairs[..., 1]
    return turned.reshape(*x.shape).type_as(x)


def apply_rope(xq, xk, freqs_cis):
    return apply_rope1(xq, freqs_cis), apply_rope1(xk, freqs_cis)


__getattr__ = fallback(__name__)
