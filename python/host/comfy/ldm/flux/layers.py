"""Layers of Flux that packs use by themselves."""

import math
from dataclasses import dataclass

import torch

import comfy.ldm.common_dit
import comfy.ops
from fresco_host.placeholders import fallback

from .math import rope


class EmbedND(torch.nn.Module):
    """Positions of several axes, each as rotations of its own share of the numbers."""

    def __init__(self, dim, theta, axes_dim):
        super().__init__()
        self.dim = dim
        self.theta = theta
        self.axes_dim = axes_dim

    def forward(self, ids):
        turned = [rope(ids[..., axis], size, self.theta) for axis, size in enumerate(self.axes_dim[: ids.shape[-1]])]
        return torch.cat(turned, dim=-3).unsqueeze(1)


def timestep_embedding(t, dim, max_period=10000, time_factor=1000.0):
    """Cosines and then sines of a time, at speeds from 1 down to 1 / max_period."""
    half = dim // 2
    speed = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
    angle = (time_factor * t)[:, None].float() * speed[None]
    made = torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1)
    if dim % 2:
        made = torch.cat([made, torch.zeros_like(made[:, :1])], dim=-1)
    return made.to(t) if torch.is_floating_point(t) else made


class MLPEmbedder(torch.nn.Module):
    def __init__(self, in_dim, hidden_dim, bias=True, dtype=None, device=None, operations=comfy.ops.disable_weight_init):
        super().__init__()
        self.in_layer = operations.Linear(in_dim, hidden_dim, bias=bias, dtype=dtype, device=device)
        self.silu = torch.nn.SiLU()
        self.out_layer = operations.Linear(hidden_dim, hidden_dim, bias=bias, dtype=dtype, device=device)

    def forward(self, x):
        return self.out_layer(self.silu(self.in_layer(x)))


class RMSNorm(torch.nn.Module):
    def __init__(self, dim, dtype=None, device=None, operations=None):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(dim, dtype=dtype, device=device))

    def forward(self, x):
        return comfy.ldm.common_dit.rms_norm(x, self.scale, 1e-6)


class QKNorm(torch.nn.Module):
    def __init__(self, dim, dtype=None, device=None, operations=None):
        super().__init__()
        self.query_norm = RMSNorm(dim, dtype=dtype, device=device, operations=operations)
        self.key_norm = RMSNorm(dim, dtype=dtype, device=device, operations=operations)

    def forward(self, q, k, v):
        return self.query_norm(q).to(v), self.key_norm(k).to(v)


class SelfAttention(torch.nn.Module):
    """The weights of an attention; the blocks do the computing."""

    def __init__(
        self, dim, num_heads=8, qkv_bias=False, proj_bias=True, dtype=None, device=None, operations=comfy.ops.disable_weight_init
    ):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = operations.Linear(dim, dim * 3, bias=qkv_bias, dtype=dtype, device=device)
        self.norm = QKNorm(dim // num_heads, dtype=dtype, device=device, operations=operations)
        self.proj = operations.Linear(dim, dim, bias=proj_bias, dtype=dtype, device=device)


@dataclass
class ModulationOut:
    shift: torch.Tensor
    scale: torch.Tensor
    gate: torch.Tensor


class Modulation(torch.nn.Module):
    def __init__(self, dim, double, bias=True, dtype=None, device=None, operations=comfy.ops.disable_weight_init):
        super().__init__()
        self.is_double = double
        self.multiplier = 6 if double else 3
        self.lin = operations.Linear(dim, self.multiplier * dim, bias=bias, dtype=dtype, device=device)

    def forward(self, vec):
        if vec.ndim == 2:
            vec = vec[:, None, :]
        parts = self.lin(torch.nn.functional.silu(vec)).chunk(self.multiplier, dim=-1)
        return ModulationOut(*parts[:3]), ModulationOut(*parts[3:]) if self.is_double else None


def apply_mod(tensor, m_mult, m_add=None, modulation_dims=None):
    """A factor and a summand for all tokens, or for ranges of them: (first, end, place of the values)."""
    if modulation_dims is None:
        return torch.addcmul(m_add, tensor, m_mult) if m_add is not None else tensor * m_mult
    for start, end, place in modulation_dims:
        tensor[:, start:end] *= m_mult[:, place : place + 1]
        if m_add is not None:
            tensor[:, start:end] += m_add[:, place : place + 1]
    return tensor


class LastLayer(torch.nn.Module):
    def __init__(
        self, hidden_size, patch_size, out_channels, bias=True, dtype=None, device=None, operations=comfy.ops.disable_weight_init
    ):
        super().__init__()
        given = {"dtype": dtype, "device": device}
        self.norm_final = operations.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6, **given)
        self.linear = operations.Linear(hidden_size, patch_size * patch_size * out_channels, bias=bias, **given)
        self.adaLN_modulation = torch.nn.Sequential(
            torch.nn.SiLU(), operations.Linear(hidden_size, 2 * hidden_size, bias=bias, **given)
        )

    def forward(self, x, vec, modulation_dims=None):
        if vec.ndim == 2:
            vec = vec[:, None, :]
        shift, scale = self.adaLN_modulation(vec).chunk(2, dim=-1)
        return self.linear(apply_mod(self.norm_final(x), 1 + scale, shift, modulation_dims))


__getattr__ = fallback(__name__)
