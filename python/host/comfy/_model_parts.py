"""Parts of `comfy.model_base` that are made of torch."""

import torch

from comfy.ldm.modules.diffusionmodules.util import timestep_embedding


class Timestep(torch.nn.Module):
    """The embedding of numbers, for instance of the size of a picture."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        return timestep_embedding(t, self.dim)


def convert_tensor(extra, dtype, device):
    """On another device, and numbers that are no integers in another type."""
    if not hasattr(extra, "dtype"):
        return extra
    if extra.dtype in (torch.int, torch.long):
        return extra.to(device)
    return extra.to(device=device, dtype=dtype)


def sdxl_pooled(args, noise_augmentor):
    """What a text encoder gave for the whole text."""
    if "unclip_conditioning" in args:
        from fresco_host import Unsupported

        raise Unsupported("comfy.model_base.sdxl_pooled of a picture (unCLIP) needs a torch model inside the worker (level L3b)")
    return args["pooled_output"]
