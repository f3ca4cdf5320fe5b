"""Division by the root of the mean square."""

import torch

from fresco_host.placeholders import fallback

RMSNorm = torch.nn.RMSNorm


def rms_norm(x, weight=None, eps=1e-6):
    """Over the last dimensions, as many as the weight has."""
    if weight is None:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=eps)
    return torch.nn.functional.rms_norm(x, weight.shape, weight=weight.to(dtype=x.dtype, device=x.device), eps=eps)


__getattr__ = fallback(__name__)
