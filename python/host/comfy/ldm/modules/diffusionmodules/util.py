"""What networks with convolutions share."""

import math

import torch

from fresco_host.placeholders import fallback


def timestep_embedding(timesteps, dim, max_period=10000, repeat_only=False):
    """Cosines and then sines of each timestep, at speeds from 1 down to 1 / max_period."""
    if repeat_only:
        return timesteps[:, None].expand(-1, dim)
    half = dim // 2
    speed = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32, device=timesteps.device) / half)
    angle = timesteps[:, None].float() * speed[None]
    made = torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1)
    if dim % 2:
        made = torch.cat([made, torch.zeros_like(made[:, :1])], dim=-1)
    return made


def zero_module(module):
    """The module with all its values set to zero."""
    for parameter in module.parameters():
        parameter.detach().zero_()
    return module


def scale_module(module, scale):
    for parameter in module.parameters():
        parameter.detach().mul_(scale)
    return module


def mean_flat(tensor):
    return tensor.mean(dim=list(range(1, len(tensor.shape))))


def avg_pool_nd(dims, *args, **kwargs):
    kinds = {1: torch.nn.AvgPool1d, 2: torch.nn.AvgPool2d, 3: torch.nn.AvgPool3d}
    if dims not in kinds:
        raise ValueError(f"a pool has 1, 2 or 3 dimensions, not {dims}")
    return kinds[dims](*args, **kwargs)


def checkpoint(func, inputs, params, flag):
    """The function of the inputs; with the flag its inner values are computed again for gradients instead of kept."""
    if not flag:
        return func(*inputs)
    return torch.utils.checkpoint.checkpoint(func, *inputs, use_reentrant=False)


def noise_like(shape, device, repeat=False):
    if not repeat:
        return torch.randn(shape, device=device)
    return torch.randn((1, *shape[1:]), device=device).repeat(shape[0], *((1,) * (len(shape) - 1)))


def make_beta_schedule(schedule, n_timestep, linear_start=1e-4, linear_end=2e-2, cosine_s=8e-3):
    if schedule == "linear":
        return torch.linspace(linear_start**0.5, linear_end**0.5, n_timestep, dtype=torch.float64) ** 2
    if schedule == "cosine":
        steps = torch.arange(n_timestep + 1, dtype=torch.float64) / n_timestep + cosine_s
        alphas = torch.cos(steps / (1 + cosine_s) * math.pi / 2) ** 2
        alphas = alphas / alphas[0]
        return torch.clamp(1 - alphas[1:] / alphas[:-1], min=0, max=0.999)
    if schedule == "sqrt_linear":
        return torch.linspace(linear_start, linear_end, n_timestep, dtype=torch.float64)
    if schedule == "sqrt":
        return torch.linspace(linear_start, linear_end, n_timestep, dtype=torch.float64) ** 0.5
    raise ValueError(f"make_beta_schedule knows no schedule {schedule!r}; it has linear, cosine, sqrt_linear and sqrt")


def betas_for_alpha_bar(num_diffusion_timesteps, alpha_bar, max_beta=0.999):
    """Steps of noise so that `alpha_bar`, a function of a time from 0 to 1, is what remains of the picture."""
    import numpy

    count = num_diffusion_timesteps
    return numpy.array([min(1 - alpha_bar((i + 1) / count) / alpha_bar(i / count), max_beta) for i in range(count)])


def extract_into_tensor(a, t, x_shape):
    return a.gather(-1, t).reshape(t.shape[0], *((1,) * (len(x_shape) - 1)))


class AlphaBlender(torch.nn.Module):
    """A weighted mean of what is computed for pictures and over time."""

    strategies = ["learned", "fixed", "learned_with_images"]

    def __init__(self, alpha, merge_strategy="learned_with_images", rearrange_pattern="b t -> (b t) 1 1"):
        super().__init__()
        if merge_strategy not in self.strategies:
            raise ValueError(f"merge_strategy needs to be in {self.strategies}, not {merge_strategy!r}")
        self.merge_strategy = merge_strategy
        self.rearrange_pattern = rearrange_pattern
        if merge_strategy == "fixed":
            self.register_buffer("mix_factor", torch.Tensor([alpha]))
        else:
            self.register_parameter("mix_factor", torch.nn.Parameter(torch.Tensor([alpha])))

    def get_alpha(self, image_only_indicator, device):
        factor = self.mix_factor.to(device)
        if self.merge_strategy == "fixed":
            return factor
        if self.merge_strategy == "learned" or image_only_indicator is None:
            return torch.sigmoid(factor)
        from einops import rearrange

        alpha = torch.where(image_only_indicator.bool(), torch.ones(1, 1, device=device), torch.sigmoid(factor)[..., None])
        return rearrange(alpha, self.rearrange_pattern)

    def forward(self, x_spatial, x_temporal, image_only_indicator=None):
        alpha = self.get_alpha(image_only_indicator, x_spatial.device).to(x_spatial.dtype)
        return alpha * x_spatial + (1.0 - alpha) * x_temporal


__getattr__ = fallback(__name__)
