"""Samplers that keep what earlier steps saw: LMS, iPNDM, DEIS, Res, gradient estimation."""

import torch

from ._common import Run, helpers


def linear_multistep_coeff(order, t, i, j):
    """The integral of a Lagrange polynomial over a step."""
    import numpy

    if order - 1 > i:
        raise ValueError(f"Order {order} too high for step {i}")
    polynomial = numpy.polynomial.Polynomial([1.0])
    for k in range(order):
        if k != j:
            polynomial *= numpy.polynomial.Polynomial([-t[i - k], 1.0]) / (t[i - j] - t[i - k])
    whole = polynomial.integ()
    return float(whole(t[i + 1]) - whole(t[i]))


@torch.no_grad()
def sample_lms(model, x, sigmas, extra_args=None, callback=None, disable=None, order=4):
    run = Run(model, x, sigmas, extra_args, callback)
    levels, seen = sigmas.detach().cpu().double().numpy(), []
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        seen = [helpers().to_d(x, sigmas[i], denoised), *seen][:order]
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            here = min(i + 1, order)
            x = x + sum(linear_multistep_coeff(here, levels, i, j) * d for j, d in enumerate(seen[:here]))
    return x


_ADAMS = ([1.0], [3 / 2, -1 / 2], [23 / 12, -16 / 12, 5 / 12], [55 / 24, -59 / 24, 37 / 24, -9 / 24])


@torch.no_grad()
def sample_ipndm(model, x, sigmas, extra_args=None, callback=None, disable=None, max_order=4):
    run = Run(model, x, sigmas, extra_args, callback)
    seen = []
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        seen = [(x - denoised) / sigmas[i], *seen][:max_order]
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            weights = _ADAMS[min(max_order, i + 1) - 1]
            x = x + (sigmas[i + 1] - sigmas[i]) * sum(weight * d for weight, d in zip(weights, seen))
    return x


@torch.no_grad()
def sample_ipndm_v(model, x, sigmas, extra_args=None, callback=None, disable=None, max_order=4):
    run = Run(model, x, sigmas, extra_args, callback)
    seen = []
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        seen = [(x - denoised) / sigmas[i], *seen][:max_order]
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            weights = _variable_weights([sigmas[k + 1] - sigmas[k] for k in range(i, max(i - max_order, -1), -1)])
            x = x + (sigmas[i + 1] - sigmas[i]) * sum(weight * d for weight, d in zip(weights, seen))
    return x


def _variable_weights(steps):
    """Weights of the last derivatives for steps of different sizes, the last step first."""
    if len(steps) == 1:
        return [1.0]
    h, h1 = steps[:2]
    second = h / h1
    if len(steps) == 2:
        return [(2 + second) / 2, -second / 2]
    h2 = steps[2]
    third = (1 - h / (3 * (h + h1)) * (h * (h + h1)) / (h1 * (h1 + h2))) / 2
    if len(steps) == 3:
        return [(2 + second) / 2 + third, -second / 2 - (1 + h1 / h2) * third, third * h1 / h2]
    h3 = steps[3]
    fourth = (1 - h / (3 * (h + h1))) / 2 + (1 - h / (2 * (h + h1))) * h / (6 * (h + h1 + h2))
    fourth = fourth * (h * (h + h1) * (h + h1 + h2)) / (h1 * (h1 + h2) * (h1 + h2 + h3))
    q = h1 * (h1 + h2) / (h2 * (h2 + h3))
    return [
        (2 + second) / 2 + third + fourth, -second / 2 - (1 + h1 / h2) * third - (1 + h1 / h2 + q) * fourth,
        third * h1 / h2 + (h1 / h2 + q * (1 + h2 / h3)) * fourth, -fourth * q * h1 / h2,
    ]


@torch.no_grad()
def sample_deis(model, x, sigmas, extra_args=None, callback=None, disable=None, max_order=3, deis_mode="tab"):
    from .deis import get_deis_coeff_list

    run = Run(model, x, sigmas, extra_args, callback)
    coefficients, seen = get_deis_coeff_list(sigmas, max_order, deis_mode=deis_mode), []
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        seen = [(x - denoised) / sigmas[i], *seen][:max_order]
        order = 1 if sigmas[i + 1] <= 0 else min(max_order, i + 1)
        if order == 1:
            x = x + (sigmas[i + 1] - sigmas[i]) * seen[0]
        else:
            x = x + sum(weight * d for weight, d in zip(coefficients[i], seen))
    return x


@torch.no_grad()
def res_multistep(
    model, x, sigmas, extra_args=None, callback=None, disable=None, s_noise=1.0, noise_sampler=None, eta=1.0, cfg_pp=False
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    if cfg_pp:
        run.watch_uncond()
    before = down_before = None
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        down, up = helpers().get_ancestral_step(sigmas[i], sigmas[i + 1], eta=eta)
        seen = run.negative() if cfg_pp else denoised
        if down == 0 or before is None:
            if cfg_pp:
                x = denoised + helpers().to_d(x, sigmas[i], seen) * down
            else:
                x = x + helpers().to_d(x, sigmas[i], denoised) * (down - sigmas[i])
        else:
            t, t_old, t_next, t_last = -sigmas[i].log(), -down_before.log(), -down.log(), -sigmas[i - 1].log()
            h = t_next - t
            c2 = (t_last - t_old) / h
            phi_1 = torch.expm1(-h) / (-h)
            phi_2 = (phi_1 - 1.0) / (-h)
            b1 = torch.nan_to_num(phi_1 - phi_2 / c2, nan=0.0)
            b2 = torch.nan_to_num(phi_2 / c2, nan=0.0)
            if cfg_pp:
                x = x + (denoised - seen)
            x = torch.exp(-h) * x + h * (b1 * seen + b2 * before)
        if sigmas[i + 1] > 0:
            x = x + run.noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * up
        before, down_before = seen, down
    return x


@torch.no_grad()
def sample_res_multistep(
    model, x, sigmas, extra_args=None, callback=None, disable=None, s_noise=1.0, noise_sampler=None
):
    return res_multistep(model, x, sigmas, extra_args, callback, disable, s_noise, noise_sampler, eta=0.0)


@torch.no_grad()
def sample_res_multistep_cfg_pp(
    model, x, sigmas, extra_args=None, callback=None, disable=None, s_noise=1.0, noise_sampler=None
):
    return res_multistep(model, x, sigmas, extra_args, callback, disable, s_noise, noise_sampler, eta=0.0, cfg_pp=True)


@torch.no_grad()
def sample_res_multistep_ancestral(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    return res_multistep(model, x, sigmas, extra_args, callback, disable, s_noise, noise_sampler, eta=eta)


@torch.no_grad()
def sample_res_multistep_ancestral_cfg_pp(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    return res_multistep(model, x, sigmas, extra_args, callback, disable, s_noise, noise_sampler, eta=eta, cfg_pp=True)


@torch.no_grad()
def sample_gradient_estimation(
    model, x, sigmas, extra_args=None, callback=None, disable=None, ge_gamma=2.0, cfg_pp=False
):
    run = Run(model, x, sigmas, extra_args, callback)
    if cfg_pp:
        run.watch_uncond()
    before = None
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        direction = helpers().to_d(x, sigmas[i], run.negative() if cfg_pp else denoised)
        step = sigmas[i + 1] - sigmas[i]
        x = denoised + direction * sigmas[i + 1] if cfg_pp else x + direction * step
        if before is not None:
            x = x + (ge_gamma - 1) * (direction - before) * step
        before = direction
    return x


@torch.no_grad()
def sample_gradient_estimation_cfg_pp(model, x, sigmas, extra_args=None, callback=None, disable=None, ge_gamma=2.0):
    return sample_gradient_estimation(model, x, sigmas, extra_args, callback, disable, ge_gamma, cfg_pp=True)
