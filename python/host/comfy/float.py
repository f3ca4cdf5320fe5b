"""Numbers of eight bits, rounded so that the mean stays."""

import torch

from fresco_host.placeholders import fallback

# Bits of the exponent's offset and of the mantissa.
_KINDS = {torch.float8_e4m3fn: (7, 3), torch.float8_e5m2: (15, 2)}


def stochastic_rounding(value, dtype, seed=0):
    """`value` in another type; for types of eight bits up or down by chance, the likelier the nearer."""
    if dtype not in _KINDS:
        return value.to(dtype=dtype)
    generator = torch.Generator(device=value.device)
    generator.manual_seed(seed)
    made = torch.empty_like(value, dtype=dtype)
    # In parts: what a whole weight needs between would not fit beside a large model.
    parts = max(1, round(value.numel() / 4096**2))
    rows = max(1, -(-value.shape[0] // parts)) if value.ndim else 1
    if value.ndim == 0:
        made.copy_(_rounded(value.reshape(1), dtype, generator).reshape(()))
        return made
    for start in range(0, value.shape[0], rows):
        made[start : start + rows].copy_(_rounded(value[start : start + rows], dtype, generator))
    return made


def _rounded(value, dtype, generator):
    offset, mantissa = _KINDS[dtype]
    value = value.float()
    size = value.abs()
    exponent = torch.clamp(torch.frexp(size).exponent - 1 + offset, min=0)
    normal = exponent > 0
    # The distance between two neighbours of the type at this size.
    unit = torch.where(normal, torch.ldexp(torch.ones_like(size), exponent - offset - mantissa), 2.0 ** (1 - offset - mantissa))
    chance = torch.rand(value.shape, dtype=value.dtype, device=value.device, generator=generator)
    made = torch.floor(size / unit + chance) * unit
    most = torch.finfo(dtype).max
    return torch.clamp(made * torch.sign(value), -most, most).to(dtype)


__getattr__ = fallback(__name__)
