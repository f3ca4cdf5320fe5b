"""Attention in the ways that packs ask for by name. All of them compute the same; they differ in memory and speed.

Queries, keys and values are (batch, tokens, heads * size of a head), or (batch, heads, tokens, size) with `skip_reshape`; the
result is (batch, tokens, heads * size), or (batch, heads, tokens, size) with `skip_output_reshape`. A mask of booleans says
what is seen, another one is added to the logits.
"""

import functools
import importlib.util

import torch

import comfy.ops
from comfy.cli_args import args
from comfy.ldm.modules.sub_quadratic_attention import efficient_dot_product_attention
from comfy.ldm.util import default, exists  # noqa: F401
from fresco_host.placeholders import fallback

ops = comfy.ops.disable_weight_init
FORCE_UPCAST_ATTENTION_DTYPE = None
# More items than this in one call are too many for kernels of CUDA.
SDP_BATCH_LIMIT = 2**15

REGISTERED_ATTENTION_FUNCTIONS = {}


def register_attention_function(name, func):
    if name in REGISTERED_ATTENTION_FUNCTIONS:
        raise ValueError(f"an attention function named {name!r} is already registered")
    REGISTERED_ATTENTION_FUNCTIONS[name] = func


def get_attention_function(name, default=...):
    if name == "optimized":
        return optimized_attention
    if name in REGISTERED_ATTENTION_FUNCTIONS:
        return REGISTERED_ATTENTION_FUNCTIONS[name]
    if default is ...:
        raise KeyError(f"there is no attention function {name!r}; there are {', '.join(REGISTERED_ATTENTION_FUNCTIONS)}")
    return default


def wrap_attn(func):
    """Lets `transformer_options["optimized_attention_override"]` compute in the place of the function."""

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        inside = kwargs.pop("_inside_attn_wrapper", False)
        override = (kwargs.get("transformer_options") or {}).get("optimized_attention_override")
        if inside or override is None:
            return func(*args, **kwargs)
        # What the override calls of these is computed, not asked about again.
        kwargs["_inside_attn_wrapper"] = True
        return override(func, *args, **kwargs)

    return wrapped


def get_attn_precision(attn_precision, current_dtype):
    if args.dont_upcast_attention:
        return None
    if args.force_upcast_attention:
        return torch.float32
    return attn_precision


def _split(q, k, v, heads, skip_reshape):
    """All three as (batch, heads, tokens, size)."""
    if skip_reshape:
        return q, k, v
    batch, size = q.shape[0], q.shape[-1] // heads
    return tuple(part.reshape(batch, -1, heads, size).transpose(1, 2) for part in (q, k, v))


def _joined(out, skip_output_reshape):
    if skip_output_reshape:
        return out
    batch, heads, tokens, size = out.shape
    return out.transpose(1, 2).reshape(batch, tokens, heads * size)


def _four_dimensions(mask, batch, queries, keys):
    """A mask that fits (batch, heads, queries, keys)."""
    if mask is None or mask.ndim == 4:
        return mask
    if mask.ndim == 3:
        return mask.unsqueeze(1)
    if mask.dtype == torch.bool and tuple(mask.shape) == (batch, keys) and mask.shape[0] != queries:
        # Which keys each item of the batch has.
        return mask[:, None, None, :]
    return mask[None, None]


def _repeated(q, k, v):
    """Heads of keys and values that several heads of queries share."""
    if k.shape[1] == q.shape[1]:
        return k, v
    times = q.shape[1] // k.shape[1]
    return k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)


def _plain(q, k, v, mask, precision, scale):
    if precision == torch.float32:
        with torch.autocast(enabled=False, device_type=q.device.type):
            logits = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    else:
        logits = torch.matmul(q, k.transpose(-1, -2)) * scale
    if mask is not None:
        if mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask, -torch.finfo(logits.dtype).max)
        else:
            logits = logits + mask
    return torch.matmul(logits.softmax(dim=-1).to(v.dtype), v)


@wrap_attn
def attention_basic(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs):
    """All logits at once."""
    q, k, v = _split(q, k, v, heads, skip_reshape)
    k, v = _repeated(q, k, v)
    mask = _four_dimensions(mask, q.shape[0], q.shape[2], k.shape[2])
    scale = kwargs.get("scale") or q.shape[-1] ** -0.5
    out = _plain(q, k, v, mask, get_attn_precision(attn_precision, q.dtype), scale)
    return _joined(out, skip_output_reshape)


@wrap_attn
def attention_split(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs):
    """The logits of some queries at a time, as many as memory has room for."""
    q, k, v = _split(q, k, v, heads, skip_reshape)
    k, v = _repeated(q, k, v)
    mask = _four_dimensions(mask, q.shape[0], q.shape[2], k.shape[2])
    precision = get_attn_precision(attn_precision, q.dtype)
    scale = kwargs.get("scale") or q.shape[-1] ** -0.5
    tokens = q.shape[2]
    row = q.shape[0] * q.shape[1] * k.shape[2] * (4 if precision == torch.float32 else q.element_size()) * 3
    rows = max(1, min(tokens, _room(q.device) // max(row, 1)))
    out = torch.empty(*q.shape[:-1], v.shape[-1], device=q.device, dtype=v.dtype)
    for start in range(0, tokens, rows):
        some = slice(start, start + rows)
        seen = mask if mask is None or mask.shape[2] == 1 else mask[:, :, some]
        out[:, :, some] = _plain(q[:, :, some], k, v, seen, precision, scale)
    return _joined(out, skip_output_reshape)


def _room(device):
    """Bytes that the logits may take."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * 0.5)
    return 512 * 1024 * 1024


@wrap_attn
def attention_sub_quad(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs):
    """Queries and keys in chunks, so that no row of logits is ever whole."""
    q, k, v = _split(q, k, v, heads, skip_reshape)
    k, v = _repeated(q, k, v)
    mask = _four_dimensions(mask, q.shape[0], q.shape[2], k.shape[2])
    batch, count, tokens, size = q.shape
    if mask is not None:
        mask = mask.expand(batch, count, mask.shape[2], mask.shape[3]).reshape(batch * count, mask.shape[2], mask.shape[3])
    keys = k.shape[2]
    row = batch * count * keys * 4 * 2
    # Within the room: all keys at once; beyond it both are cut.
    whole = row * min(tokens, 1024) <= _room(q.device)
    out = efficient_dot_product_attention(
        q.reshape(-1, tokens, size), k.reshape(-1, keys, size).transpose(1, 2), v.reshape(-1, keys, v.shape[-1]),
        query_chunk_size=512 if not whole else min(1024, tokens), kv_chunk_size=keys if whole else None, use_checkpoint=False,
        upcast_attention=get_attn_precision(attn_precision, q.dtype) == torch.float32, mask=mask,
    )
    return _joined(out.reshape(batch, count, tokens, -1).to(v.dtype), skip_output_reshape)


@wrap_attn
def attention_pytorch(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs):
    """The function of torch."""
    q, k, v = _split(q, k, v, heads, skip_reshape)
    mask = _four_dimensions(mask, q.shape[0], q.shape[2], k.shape[2])
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    k, v = _repeated(q, k, v)
    batch = q.shape[0]
    scale = kwargs.get("scale")

    def some(part):
        seen = mask if mask is None or mask.shape[0] == 1 else mask[part]
        return torch.nn.functional.scaled_dot_product_attention(
            q[part], k[part], v[part], attn_mask=seen, dropout_p=0.0, is_causal=False, scale=scale
        )

    if batch <= SDP_BATCH_LIMIT:
        out = some(slice(None))
    else:
        out = torch.cat([some(slice(start, start + SDP_BATCH_LIMIT)) for start in range(0, batch, SDP_BATCH_LIMIT)])
    return _joined(out, skip_output_reshape)


def _library(name):
    return importlib.util.find_spec(name) is not None


@wrap_attn
def attention_xformers(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs):
    """By xformers where that is installed and the tensors are on a GPU, else by torch."""
    if q.device.type != "cuda" or mask is not None or not _library("xformers"):
        return attention_pytorch(
            q, k, v, heads, mask, attn_precision, skip_reshape, skip_output_reshape, _inside_attn_wrapper=True, **_rest(kwargs)
        )
    import xformers.ops

    q, k, v = _split(q, k, v, heads, skip_reshape)
    k, v = _repeated(q, k, v)
    out = xformers.ops.memory_efficient_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)
    return _joined(out, skip_output_reshape)


@wrap_attn
def attention_sage(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs):
    """By sageattention where that is installed and the tensors are on a GPU, else by torch."""
    low = kwargs.get("low_precision_attention", True)
    if q.device.type != "cuda" or low is False or not _library("sageattention"):
        return attention_pytorch(
            q, k, v, heads, mask, attn_precision, skip_reshape, skip_output_reshape, _inside_attn_wrapper=True, **_rest(kwargs)
        )
    from sageattention import sageattn

    q, k, v = _split(q, k, v, heads, skip_reshape)
    k, v = _repeated(q, k, v)
    mask = _four_dimensions(mask, q.shape[0], q.shape[2], k.shape[2])
    out = sageattn(q, k, v, attn_mask=mask, is_causal=False, tensor_layout="HND")
    return _joined(out, skip_output_reshape)


@wrap_attn
def attention_flash(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs):
    """By flash_attn where that is installed, the tensors are half numbers on a GPU and nothing is masked, else by torch."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    if q.device.type != "cuda" or mask is not None or not half or not _library("flash_attn"):
        return attention_pytorch(
            q, k, v, heads, mask, attn_precision, skip_reshape, skip_output_reshape, _inside_attn_wrapper=True, **_rest(kwargs)
        )
    from flash_attn import flash_attn_func

    q, k, v = _split(q, k, v, heads, skip_reshape)
    k, v = _repeated(q, k, v)
    out = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout_p=0.0, causal=False).transpose(1, 2)
    return _joined(out, skip_output_reshape)


attention3_sage = attention_sage


def _rest(kwargs):
    return {name: value for name, value in kwargs.items() if name != "_inside_attn_wrapper"}


def _choose():
    import comfy.model_management as management

    if management.sage_attention_enabled() and _library("sageattention"):
        return attention_sage
    if management.xformers_enabled() and _library("xformers"):
        return attention_xformers
    if management.flash_attention_enabled() and _library("flash_attn"):
        return attention_flash
    if args.use_split_cross_attention:
        return attention_split
    if args.use_quad_cross_attention:
        return attention_sub_quad
    return attention_pytorch


optimized_attention = _choose()
optimized_attention_masked = optimized_attention
for _name, _function, _library_name in (
    ("basic", attention_basic, None), ("split", attention_split, None), ("sub_quad", attention_sub_quad, None),
    ("pytorch", attention_pytorch, None), ("xformers", attention_xformers, "xformers"), ("sage", attention_sage, "sageattention"),
    ("flash", attention_flash, "flash_attn"),
):
    # What needs a library is offered where the library is.
    if _library_name is None or _library(_library_name):
        register_attention_function(_name, _function)


def optimized_attention_for_device(device, mask=False, small_input=False):
    """The function for tensors on a device, for masks, and for inputs of few tokens."""
    if small_input:
        return attention_pytorch
    if torch.device(device).type == "cpu" and optimized_attention is not attention_pytorch:
        return attention_sub_quad
    return optimized_attention_masked if mask else optimized_attention


# Layers


class GEGLU(torch.nn.Module):
    def __init__(self, dim_in, dim_out, dtype=None, device=None, operations=ops):
        super().__init__()
        self.proj = operations.Linear(dim_in, dim_out * 2, dtype=dtype, device=device)

    def forward(self, x):
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * torch.nn.functional.gelu(gate)


class FeedForward(torch.nn.Module):
    def __init__(self, dim, dim_out=None, mult=4, glu=False, dropout=0.0, dtype=None, device=None, operations=ops):
        super().__init__()
        inner = int(dim * mult)
        dim_out = default(dim_out, dim)
        if glu:
            first = GEGLU(dim, inner, dtype=dtype, device=device, operations=operations)
        else:
            first = torch.nn.Sequential(operations.Linear(dim, inner, dtype=dtype, device=device), torch.nn.GELU())
        last = operations.Linear(inner, dim_out, dtype=dtype, device=device)
        self.net = torch.nn.Sequential(first, torch.nn.Dropout(dropout), last)

    def forward(self, x):
        return self.net(x)


class CrossAttention(torch.nn.Module):
    def __init__(
        self, query_dim, context_dim=None, heads=8, dim_head=64, dropout=0.0, attn_precision=None, dtype=None, device=None,
        operations=ops,
    ):
        super().__init__()
        inner = dim_head * heads
        context_dim = default(context_dim, query_dim)
        self.attn_precision = attn_precision
        self.heads = heads
        self.dim_head = dim_head
        self.to_q = operations.Linear(query_dim, inner, bias=False, dtype=dtype, device=device)
        self.to_k = operations.Linear(context_dim, inner, bias=False, dtype=dtype, device=device)
        self.to_v = operations.Linear(context_dim, inner, bias=False, dtype=dtype, device=device)
        self.to_out = torch.nn.Sequential(
            operations.Linear(inner, query_dim, dtype=dtype, device=device), torch.nn.Dropout(dropout)
        )

    def forward(self, x, context=None, value=None, mask=None, transformer_options={}):
        q = self.to_q(x)
        context = default(context, x)
        k = self.to_k(context)
        v = self.to_v(context if value is None else value)
        given = {"attn_precision": self.attn_precision, "transformer_options": transformer_options}
        if mask is None:
            out = optimized_attention(q, k, v, self.heads, **given)
        else:
            out = optimized_attention_masked(q, k, v, self.heads, mask, **given)
        return self.to_out(out)


def Normalize(in_channels, dtype=None, device=None):
    return torch.nn.GroupNorm(num_groups=32, num_channels=in_channels, eps=1e-6, affine=True, dtype=dtype, device=device)


__getattr__ = fallback(__name__)
