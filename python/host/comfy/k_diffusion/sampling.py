"""What samplers written in Python are made of. Functions named `sample_X` that packs put here become samplers named X.

The samplers of the host are here as functions too, for packs that call them around a function of their own. By name they run in
Fresco (`comfy.samplers.sampler_object`).
"""

import math

from fresco_host import Unsupported
from fresco_host.callbacks import number_of, numbers
from fresco_host.placeholders import fallback

from .utils import append_dims

try:
    import torch
except ModuleNotFoundError:
    # Packs without torch choose samplers by name only.
    torch = None


def append_zero(x):
    return torch.cat([x, x.new_zeros([1])])


def to_d(x, sigma, denoised):
    """The derivative of the way from the noise to the picture."""
    return (x - denoised) / append_dims(sigma, x.ndim)


def get_ancestral_step(sigma_from, sigma_to, eta=1.0):
    """Where a step goes down to, and how much noise is added after it."""
    if not eta:
        return sigma_to, 0.0
    up = min(sigma_to, eta * (sigma_to**2 * (sigma_from**2 - sigma_to**2) / sigma_from**2) ** 0.5)
    return (sigma_to**2 - up**2) ** 0.5, up


def default_noise_sampler(x, seed=None):
    if seed is None:
        return lambda sigma, sigma_next: torch.randn_like(x)
    generator = torch.Generator(device=x.device)
    # On the processor the seed itself gave the noise at the start.
    generator.manual_seed(seed + 1 if x.device.type == "cpu" else seed)
    return lambda sigma, sigma_next: torch.randn(x.size(), dtype=x.dtype, layout=x.layout, device=x.device, generator=generator)


# Noise levels


def _ramp(n):
    return [i / (n - 1) if n > 1 else 0.0 for i in range(n)]


def _levels(levels, device):
    made = numbers([*levels, 0.0])
    return made.to(device) if torch is not None else made


def get_sigmas_karras(n, sigma_min, sigma_max, rho=7.0, device="cpu"):
    low, high = float(sigma_min) ** (1 / rho), float(sigma_max) ** (1 / rho)
    return _levels([(high + place * (low - high)) ** rho for place in _ramp(n)], device)


def get_sigmas_exponential(n, sigma_min, sigma_max, device="cpu"):
    low, high = math.log(sigma_min), math.log(sigma_max)
    return _levels([math.exp(high + place * (low - high)) for place in _ramp(n)], device)


def get_sigmas_polyexponential(n, sigma_min, sigma_max, rho=1.0, device="cpu"):
    low, high = math.log(sigma_min), math.log(sigma_max)
    return _levels([math.exp((1 - place) ** rho * (high - low) + low) for place in _ramp(n)], device)


def get_sigmas_vp(n, beta_d=19.9, beta_min=0.1, eps_s=1e-3, device="cpu"):
    times = [1 + place * (eps_s - 1) for place in _ramp(n)]
    return _levels([math.sqrt(math.expm1(beta_d * t**2 / 2 + beta_min * t)) for t in times], device)


def get_sigmas_laplace(n, sigma_min, sigma_max, mu=0.0, beta=0.5, device="cpu"):
    def level(place):
        side = 0.5 - place
        sign = (side > 0) - (side < 0)
        return math.exp(mu - beta * sign * math.log(1 - 2 * abs(side) + 1e-5))

    made = numbers([min(max(level(place), float(sigma_min)), float(sigma_max)) for place in _ramp(n)])
    return made.to(device) if torch is not None else made


def sigma_to_half_log_snr(sigma, model_sampling):
    """Half the logarithm of the signal over the noise."""
    from comfy.model_sampling import CONST

    if isinstance(model_sampling, CONST):
        return -sigma.logit()
    return -sigma.log()


def half_log_snr_to_sigma(half_log_snr, model_sampling):
    from comfy.model_sampling import CONST

    if isinstance(model_sampling, CONST):
        return half_log_snr.neg().sigmoid()
    return half_log_snr.neg().exp()


def offset_first_sigma_for_snr(sigmas, model_sampling, percent_offset=1e-4):
    """Noise levels of a flow whose first has a logarithm."""
    from comfy.model_sampling import CONST

    if len(sigmas) > 1 and isinstance(model_sampling, CONST) and sigmas[0] >= 1:
        sigmas = sigmas.clone()
        sigmas[0] = model_sampling.percent_to_sigma(percent_offset)
    return sigmas


def ei_h_phi_1(h):
    return torch.expm1(h)


def ei_h_phi_2(h):
    return (torch.expm1(h) - h) / h


def _engine_sampler(name):
    """A sampler of the engine under the name of the host's function: it is chosen by name, not called."""

    def sampler(*args, **kwargs):
        raise Unsupported(f"comfy.k_diffusion.sampling.sample_{name} runs in Fresco; take comfy.samplers.sampler_object({name!r})")

    sampler.__name__ = f"sample_{name}"
    sampler.fresco_sampler = name
    return sampler


if torch is not None:
    from ._brownian import BatchedBrownianTree, BrownianTreeNoiseSampler  # noqa: F401
    from . import _ancestral, _dpm, _exponential, _multistep

    from ._dpm import DPMSolver, PIDStepSizeController  # noqa: F401
    from ._multistep import linear_multistep_coeff  # noqa: F401

    for _part in (_ancestral, _dpm, _exponential, _multistep):
        for _name, _function in vars(_part).items():
            if _name.startswith("sample_"):
                # Fresco has it under this name, and so it was not added by a pack.
                _function.fresco_sampler = _name[len("sample_") :]
                globals().setdefault(_name, _function)

_others = fallback(__name__)


def __getattr__(name):
    if name.startswith("sample_") and torch is None:
        from comfy.samplers import _OURS

        if name[len("sample_") :] in _OURS[0]:
            return _engine_sampler(name[len("sample_") :])
    return _others(name)


__all__ = ["number_of"]
