"""What samplers written in Python are made of. Functions named `sample_X` that packs put here become samplers named X."""

import math

from fresco_host import Unsupported
from fresco_host.callbacks import number_of, numbers
from fresco_host.placeholders import fallback


def append_zero(x):
    import torch

    return torch.cat([x, x.new_zeros([1])])


def append_dims(x, target_dims):
    return x[(...,) + (None,) * (target_dims - x.ndim)]


def to_d(x, sigma, denoised):
    return (x - denoised) / append_dims(sigma, x.ndim)


def get_ancestral_step(sigma_from, sigma_to, eta=1.0):
    if not eta:
        return sigma_to, 0.0
    up = min(sigma_to, eta * (sigma_to**2 * (sigma_from**2 - sigma_to**2) / sigma_from**2) ** 0.5)
    return (sigma_to**2 - up**2) ** 0.5, up


def default_noise_sampler(x, seed=None):
    import torch

    generator = None
    if seed is not None:
        generator = torch.Generator(device=x.device if x.device.type == "cpu" else "cpu")
        generator.manual_seed(seed + 1 if x.device.type == "cpu" else seed)
    return lambda sigma, sigma_next: torch.randn(x.size(), dtype=x.dtype, layout=x.layout, device=x.device, generator=generator)


def get_sigmas_karras(n, sigma_min, sigma_max, rho=7.0, device="cpu"):
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    return numbers([(high + i / (n - 1) * (low - high)) ** rho for i in range(n)] + [0.0])


def get_sigmas_exponential(n, sigma_min, sigma_max, device="cpu"):
    low, high = math.log(sigma_min), math.log(sigma_max)
    return numbers([math.exp(high + i / (n - 1) * (low - high)) for i in range(n)] + [0.0])


def _engine_sampler(name):
    """A sampler of the engine under the name of the host's function: it is chosen by name, not called."""

    def sampler(*args, **kwargs):
        raise Unsupported(f"comfy.k_diffusion.sampling.sample_{name} runs in Fresco; take comfy.samplers.sampler_object({name!r})")

    sampler.__name__ = f"sample_{name}"
    sampler.fresco_sampler = name
    return sampler


_other = fallback(__name__)


def __getattr__(name):
    if name.startswith("sample_"):
        from comfy.samplers import _OURS

        if name[len("sample_") :] in _OURS[0]:
            return _engine_sampler(name[len("sample_") :])
    return _other(name)


__all__ = ["number_of"]
