"""Attention in chunks of queries and keys, after "Self-attention Does Not Need O(n2) Memory" (arXiv 2112.05682)."""

import math

import torch

from fresco_host.placeholders import fallback


def efficient_dot_product_attention(
    query, key_t, value, query_chunk_size=1024, kv_chunk_size=None, kv_chunk_size_min=None, use_checkpoint=True,
    upcast_attention=False, mask=None,
):
    """(items, queries, size), (items, size, keys) and (items, keys, channels) give (items, queries, channels).

    A chunk of queries goes over the keys chunk by chunk and keeps the greatest logit, the sum and the weighted values so far.
    """
    items, queries, size = query.shape
    keys = key_t.shape[-1]
    if mask is not None and mask.ndim == 2:
        mask = mask.unsqueeze(0)
    if kv_chunk_size is None:
        kv_chunk_size = int(math.sqrt(keys))
    kv_chunk_size = max(1, min(keys, max(kv_chunk_size, kv_chunk_size_min or 1)))
    query_chunk_size = max(1, min(query_chunk_size, queries))
    scale = size**-0.5
    out = torch.empty(items, queries, value.shape[-1], dtype=value.dtype, device=query.device)
    for start in range(0, queries, query_chunk_size):
        rows = slice(start, start + query_chunk_size)
        asked = query[:, rows]
        greatest = total = weighted = None
        for first in range(0, keys, kv_chunk_size):
            columns = slice(first, first + kv_chunk_size)
            logits = _logits(asked, key_t[:, :, columns], scale, upcast_attention)
            if mask is not None:
                seen = mask[:, :, columns] if mask.shape[1] == 1 else mask[:, rows, columns]
                logits = logits.masked_fill(~seen, -torch.finfo(logits.dtype).max) if seen.dtype == torch.bool else logits + seen
            most = logits.amax(dim=-1, keepdim=True)
            if greatest is not None:
                most = torch.maximum(most, greatest)
            # Rows that a mask of minus infinity leaves empty so far.
            most = torch.where(torch.isinf(most), torch.zeros_like(most), most)
            parts = torch.exp(logits - most)
            here = torch.bmm(parts.to(value.dtype), value[:, columns])
            if greatest is None:
                total, weighted = parts.sum(dim=-1, keepdim=True), here
            else:
                shrunk = torch.exp(greatest - most)
                total = total * shrunk + parts.sum(dim=-1, keepdim=True)
                weighted = weighted * shrunk.to(value.dtype) + here
            greatest = most
        out[:, rows] = (weighted / total).to(value.dtype)
    return out


def _logits(query, key_t, scale, upcast):
    if not upcast:
        return torch.bmm(query, key_t) * scale
    with torch.autocast(enabled=False, device_type=query.device.type):
        return torch.bmm(query.float(), key_t.float()) * scale


__getattr__ = fallback(__name__)
