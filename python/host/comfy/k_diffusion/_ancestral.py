"""Samplers of first and second order: Euler, Heun, DPM2, DDPM, LCM."""

import torch

from ._common import Run, helpers, renoise, sampling_of


def _churned(run, x, i, s_churn, s_tmin, s_tmax, s_noise, always_draws=False):
    """The latent with a little more noise, and its level."""
    sigma = run.sigmas[i]
    gamma = min(s_churn / (len(run.sigmas) - 1), 2**0.5 - 1) if s_churn > 0 and s_tmin <= sigma <= s_tmax else 0.0
    sigma_hat = sigma * (gamma + 1)
    if gamma > 0 or always_draws:
        noise = torch.randn_like(x) * s_noise
        if gamma > 0:
            x = x + noise * (sigma_hat**2 - sigma**2) ** 0.5
    return x, sigma_hat


@torch.no_grad()
def sample_euler(
    model, x, sigmas, extra_args=None, callback=None, disable=None, s_churn=0.0, s_tmin=0.0, s_tmax=float("inf"), s_noise=1.0
):
    run = Run(model, x, sigmas, extra_args, callback)
    for i in range(len(sigmas) - 1):
        x, sigma_hat = _churned(run, x, i, s_churn, s_tmin, s_tmax, s_noise)
        denoised = run(x, sigma_hat)
        run.tell(i, x, denoised, sigma_hat)
        x = x + helpers().to_d(x, sigma_hat, denoised) * (sigmas[i + 1] - sigma_hat)
    return x


@torch.no_grad()
def sample_euler_ancestral(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    if run.flow:
        return sample_euler_ancestral_RF(model, x, sigmas, extra_args, callback, disable, eta, s_noise, run.noise_sampler)
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        down, up = helpers().get_ancestral_step(sigmas[i], sigmas[i + 1], eta=eta)
        if down == 0:
            x = denoised
        else:
            x = x + helpers().to_d(x, sigmas[i], denoised) * (down - sigmas[i])
            x = x + run.noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * up
    return x


@torch.no_grad()
def sample_euler_ancestral_RF(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        down, factor, added = renoise(sigmas[i], sigmas[i + 1], eta)
        part = down / sigmas[i]
        x = part * x + (1 - part) * denoised
        if eta > 0:
            x = factor * x + run.noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * added
    return x


@torch.no_grad()
def sample_euler_ancestral_cfg_pp(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler).watch_uncond()
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        signal = sigmas[i] * run.half_log_snr(sigmas[i]).exp()
        signal_next = sigmas[i + 1] * run.half_log_snr(sigmas[i + 1]).exp()
        direction = helpers().to_d(x, sigmas[i], signal * run.negative())
        down, up = helpers().get_ancestral_step(sigmas[i] / signal, sigmas[i + 1] / signal_next, eta=eta)
        x = signal_next * denoised + signal_next * down * direction
        if eta > 0 and s_noise > 0:
            x = x + signal_next * run.noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * up
    return x


@torch.no_grad()
def sample_euler_cfg_pp(model, x, sigmas, extra_args=None, callback=None, disable=None):
    return sample_euler_ancestral_cfg_pp(model, x, sigmas, extra_args, callback, disable, eta=0.0, s_noise=0.0)


@torch.no_grad()
def sample_heun(
    model, x, sigmas, extra_args=None, callback=None, disable=None, s_churn=0.0, s_tmin=0.0, s_tmax=float("inf"), s_noise=1.0
):
    run = Run(model, x, sigmas, extra_args, callback)
    to_d = helpers().to_d
    for i in range(len(sigmas) - 1):
        x, sigma_hat = _churned(run, x, i, s_churn, s_tmin, s_tmax, s_noise)
        denoised = run(x, sigma_hat)
        run.tell(i, x, denoised, sigma_hat)
        direction, step = to_d(x, sigma_hat, denoised), sigmas[i + 1] - sigma_hat
        if sigmas[i + 1] == 0:
            x = x + direction * step
        else:
            there = x + direction * step
            second = to_d(there, sigmas[i + 1], run(there, sigmas[i + 1]))
            x = x + (direction + second) / 2 * step
    return x


@torch.no_grad()
def sample_heunpp2(
    model, x, sigmas, extra_args=None, callback=None, disable=None, s_churn=0.0, s_tmin=0.0, s_tmax=float("inf"), s_noise=1.0
):
    run = Run(model, x, sigmas, extra_args, callback)
    to_d, last = helpers().to_d, sigmas[-1]
    for i in range(len(sigmas) - 1):
        x, sigma_hat = _churned(run, x, i, s_churn, s_tmin, s_tmax, s_noise, always_draws=True)
        denoised = run(x, sigma_hat)
        run.tell(i, x, denoised, sigma_hat)
        direction, step = to_d(x, sigma_hat, denoised), sigmas[i + 1] - sigma_hat
        if sigmas[i + 1] == last:
            x = x + direction * step
            continue
        there = x + direction * step
        second = to_d(there, sigmas[i + 1], run(there, sigmas[i + 1]))
        if sigmas[i + 2] == last:
            w2 = sigmas[i + 1] / (2 * sigmas[0])
            x = x + (direction * (1 - w2) + second * w2) * step
        else:
            further = there + second * (sigmas[i + 2] - sigmas[i + 1])
            third = to_d(further, sigmas[i + 2], run(further, sigmas[i + 2]))
            whole = 3 * sigmas[0]
            w2, w3 = sigmas[i + 1] / whole, sigmas[i + 2] / whole
            x = x + (direction * (1 - w2 - w3) + second * w2 + third * w3) * step
    return x


@torch.no_grad()
def sample_dpm_2(
    model, x, sigmas, extra_args=None, callback=None, disable=None, s_churn=0.0, s_tmin=0.0, s_tmax=float("inf"), s_noise=1.0
):
    run = Run(model, x, sigmas, extra_args, callback)
    to_d = helpers().to_d
    for i in range(len(sigmas) - 1):
        x, sigma_hat = _churned(run, x, i, s_churn, s_tmin, s_tmax, s_noise)
        denoised = run(x, sigma_hat)
        run.tell(i, x, denoised, sigma_hat)
        direction = to_d(x, sigma_hat, denoised)
        if sigmas[i + 1] == 0:
            x = x + direction * (sigmas[i + 1] - sigma_hat)
        else:
            middle = sigma_hat.log().lerp(sigmas[i + 1].log(), 0.5).exp()
            half = x + direction * (middle - sigma_hat)
            x = x + to_d(half, middle, run(half, middle)) * (sigmas[i + 1] - sigma_hat)
    return x


@torch.no_grad()
def sample_dpm_2_ancestral(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    to_d = helpers().to_d
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        if run.flow:
            down, factor, up = renoise(sigmas[i], sigmas[i + 1], eta)
        else:
            (down, up), factor = helpers().get_ancestral_step(sigmas[i], sigmas[i + 1], eta=eta), None
        direction = to_d(x, sigmas[i], denoised)
        if down == 0:
            x = x + direction * (down - sigmas[i])
            continue
        middle = sigmas[i].log().lerp(down.log(), 0.5).exp()
        half = x + direction * (middle - sigmas[i])
        x = x + to_d(half, middle, run(half, middle)) * (down - sigmas[i])
        if factor is not None:
            x = factor * x
        x = x + run.noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * up
    return x


sample_dpm_2_ancestral_RF = sample_dpm_2_ancestral


@torch.no_grad()
def sample_ddpm(model, x, sigmas, extra_args=None, callback=None, disable=None, noise_sampler=None):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    for i in range(len(sigmas) - 1):
        sigma, following = sigmas[i], sigmas[i + 1]
        denoised = run(x, sigma)
        run.tell(i, x, denoised)
        scaled, noise = x / torch.sqrt(1.0 + sigma**2.0), (x - denoised) / sigma
        kept, kept_next = 1 / (sigma**2 + 1), 1 / (following**2 + 1)
        step = kept / kept_next
        x = (1.0 / step).sqrt() * (scaled - (1 - step) * noise / (1 - kept).sqrt())
        if following > 0:
            x = x + ((1 - step) * (1.0 - kept_next) / (1.0 - kept)).sqrt() * run.noise_sampler(sigma, following)
        if following != 0:
            x = x * torch.sqrt(1.0 + following**2.0)
    return x


@torch.no_grad()
def sample_lcm(model, x, sigmas, extra_args=None, callback=None, disable=None, noise_sampler=None):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    sampling = sampling_of(model)
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        x = denoised
        if sigmas[i + 1] > 0:
            noise = run.noise_sampler(sigmas[i], sigmas[i + 1])
            scales = hasattr(sampling, "noise_scaling")
            x = sampling.noise_scaling(sigmas[i + 1], noise, x) if scales else x + noise * sigmas[i + 1]
    return x
