"""Weights of the DEIS sampler (arXiv 2204.13902), by tables over the time of a variance preserving process."""

import math

import torch

from fresco_host.placeholders import fallback


def edm2t(edm_steps, epsilon_s=1e-3, sigma_min=0.002, sigma_max=80):
    """Times of noise levels, and the speeds of noise at both ends."""
    speed = 2 * (math.log(sigma_min**2 + 1) / epsilon_s - math.log(sigma_max**2 + 1)) / (epsilon_s - 1)
    least = math.log(sigma_max**2 + 1) - 0.5 * speed
    times = (torch.sqrt(least**2 + 2 * speed * torch.log(edm_steps**2 + 1)) - least) / speed
    return times, least, speed + least


def cal_poly(prev_t, j, taus):
    """The Lagrange polynomial that is one at a time and zero at the others."""
    made = 1
    for k in range(prev_t.shape[0]):
        if k != j:
            made = made * (taus - prev_t[k]) / (prev_t[j] - prev_t[k])
    return made


def get_deis_coeff_list(t_steps, max_order, N=10000, deis_mode="tab"):
    """For each step the weights of its own and the earlier derivatives."""
    if deis_mode != "tab":
        from fresco_host import Unsupported

        raise Unsupported(f"get_deis_coeff_list has the mode 'tab', not {deis_mode!r}")
    times, first, last = edm2t(t_steps)
    made = []
    for i in range(len(times) - 1):
        order = min(i + 1, max_order)
        if order == 1:
            made.append([])
            continue
        taus = torch.linspace(float(times[i]), float(times[i + 1]), N, device=times.device)
        known = times[[i - k for k in range(order)]]
        slope = -taus * (last - first) - first
        kept = torch.exp(-0.5 * taus**2 * (last - first) - taus * first)
        integrand = -0.5 * slope / torch.sqrt(kept * (1 - kept))
        weights = [torch.mean(integrand * cal_poly(known, j, taus)) * (times[i + 1] - times[i]) for j in range(order)]
        made.append(weights)
    return made


__getattr__ = fallback(__name__)
