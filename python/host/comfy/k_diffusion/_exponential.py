"""Samplers with exponential integrators and noise: ER-SDE, SEEDS, exponential Heun, SA-Solver."""

import torch

from ._common import Run, helpers, offset, sampling_of


def _levels(run):
    """Noise levels divided by the signal."""
    logs = [run.half_log_snr(sigma) for sigma in run.sigmas[:-1]] + [run.half_log_snr(run.sigmas[-1])]
    return torch.stack(logs)


def default_er_sde_noise_scaler(x):
    return x * ((x**0.3).exp() + 10.0)


@torch.no_grad()
def sample_er_sde(
    model, x, sigmas, extra_args=None, callback=None, disable=None, s_noise=1.0, noise_sampler=None, noise_scaler=None, max_stage=3
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    sigmas = run.sigmas = offset(model, sigmas)
    scale = noise_scaler or default_er_sde_noise_scaler
    logs = _levels(run)
    ratios = logs.neg().exp()
    before = slope_before = None
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            here, there = ratios[i], ratios[i + 1]
            signal, signal_next = sigmas[i] / here, sigmas[i + 1] / there
            kept = scale(there) / scale(here)
            x = signal_next / signal * kept * x + signal_next * (1 - kept) * denoised
            stage = min(max_stage, i + 1)
            if stage >= 2:
                way = there - here
                step = -way / 200
                places = there + torch.arange(0, 200, dtype=torch.float32, device=x.device) * step
                scaled = scale(places)
                total = torch.sum(1 / scaled) * step
                slope = (denoised - before) / (here - ratios[i - 1])
                x = x + signal_next * (way + total * scale(there)) * slope
                if stage >= 3:
                    second = torch.sum((places - here) / scaled) * step
                    bend = (slope - slope_before) / ((here - ratios[i - 2]) / 2)
                    x = x + signal_next * (way**2 / 2 + second * scale(there)) * bend
                slope_before = slope
            if s_noise > 0:
                added = torch.nan_to_num((there**2 - here**2 * kept**2).sqrt(), nan=0.0)
                x = x + signal_next * run.noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * added
        before = denoised
    return x


@torch.no_grad()
def sample_seeds_2(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None, r=0.5,
    solver_type="phi_1",
):
    if solver_type not in ("phi_1", "phi_2"):
        raise ValueError("solver_type must be 'phi_1' or 'phi_2'")
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    sigmas = run.sigmas = offset(model, sigmas)
    noisy = eta > 0 and s_noise > 0
    logs, part = _levels(run), 1 / (2 * r)
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        begin, end = logs[i], logs[i + 1]
        h = end - begin
        whole = h * (eta + 1)
        between = torch.lerp(begin, end, r)
        middle = run.sigma_of(between)
        signal_middle, signal_next = middle * between.exp(), sigmas[i + 1] * end.exp()
        half = middle / sigmas[i] * (-r * h * eta).exp() * x - signal_middle * (-r * whole).expm1() * denoised
        if noisy:
            first = (-2 * r * h * eta).expm1().neg().sqrt() * run.noise_sampler(sigmas[i], middle)
            half = half + first * middle * s_noise
        second = run(half, middle)
        kept = sigmas[i + 1] / sigmas[i] * (-h * eta).exp() * x
        if solver_type == "phi_1":
            x = kept - signal_next * (-whole).expm1() * torch.lerp(denoised, second, part)
        else:
            b2 = helpers().ei_h_phi_2(-whole) / r
            b1 = (-whole).expm1() - b2
            x = kept - signal_next * (b1 * denoised + b2 * second)
        if noisy:
            rest = (r - 1) * h * eta
            first = first * rest.exp() + (2 * rest).expm1().neg().sqrt() * run.noise_sampler(middle, sigmas[i + 1])
            x = x + first * sigmas[i + 1] * s_noise
    return x


@torch.no_grad()
def sample_exp_heun_2_x0(model, x, sigmas, extra_args=None, callback=None, disable=None, solver_type="phi_2"):
    return sample_seeds_2(
        model, x, sigmas, extra_args, callback, disable, eta=0.0, s_noise=0.0, noise_sampler=None, r=1.0, solver_type=solver_type
    )


@torch.no_grad()
def sample_exp_heun_2_x0_sde(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None, solver_type="phi_2"
):
    return sample_seeds_2(
        model, x, sigmas, extra_args, callback, disable, eta=eta, s_noise=s_noise, noise_sampler=noise_sampler, r=1.0,
        solver_type=solver_type,
    )


@torch.no_grad()
def sample_seeds_3(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None, r_1=1 / 3, r_2=2 / 3
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    sigmas = run.sigmas = offset(model, sigmas)
    noisy = eta > 0 and s_noise > 0
    logs, phi_2 = _levels(run), helpers().ei_h_phi_2
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        begin, end = logs[i], logs[i + 1]
        h = end - begin
        whole = h * (eta + 1)
        first_log, second_log = torch.lerp(begin, end, r_1), torch.lerp(begin, end, r_2)
        first, second = run.sigma_of(first_log), run.sigma_of(second_log)
        signals = [first * first_log.exp(), second * second_log.exp(), sigmas[i + 1] * end.exp()]
        x2 = first / sigmas[i] * (-r_1 * h * eta).exp() * x - signals[0] * (-r_1 * whole).expm1() * denoised
        if noisy:
            noise = (-2 * r_1 * h * eta).expm1().neg().sqrt() * run.noise_sampler(sigmas[i], first)
            x2 = x2 + noise * first * s_noise
        denoised_2 = run(x2, first)
        a32 = r_2 / r_1 * phi_2(-r_2 * whole)
        a31 = (-r_2 * whole).expm1() - a32
        x3 = second / sigmas[i] * (-r_2 * h * eta).exp() * x - signals[1] * (a31 * denoised + a32 * denoised_2)
        if noisy:
            rest = (r_1 - r_2) * h * eta
            noise = noise * rest.exp() + (2 * rest).expm1().neg().sqrt() * run.noise_sampler(first, second)
            x3 = x3 + noise * second * s_noise
        denoised_3 = run(x3, second)
        b3 = phi_2(-whole) / r_2
        b1 = (-whole).expm1() - b3
        x = sigmas[i + 1] / sigmas[i] * (-h * eta).exp() * x - signals[2] * (b1 * denoised + b3 * denoised_3)
        if noisy:
            rest = (r_2 - 1) * h * eta
            noise = noise * rest.exp() + (2 * rest).expm1().neg().sqrt() * run.noise_sampler(second, sigmas[i + 1])
            x = x + noise * sigmas[i + 1] * s_noise
    return x


@torch.no_grad()
def sample_sa_solver(
    model, x, sigmas, extra_args=None, callback=None, disable=False, tau_func=None, s_noise=1.0, noise_sampler=None,
    predictor_order=3, corrector_order=4, use_pece=False, simple_order_2=False,
):
    from . import sa_solver

    if len(sigmas) <= 1:
        return x
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    sampling = sampling_of(model)
    sigmas = run.sigmas = offset(model, sigmas)
    logs = _levels(run)
    if tau_func is None:
        start, end = (sampling.percent_to_sigma(part) for part in (0.2, 0.8))
        tau_func = sa_solver.get_tau_interval_func(start, end, eta=1.0)
    keep, seen, places = max(predictor_order, corrector_order), [], []
    ends_clean, last = bool(sigmas[-1] == 0), len(sigmas) - 2
    predicted, h, tau, noise = x, 0.0, 0.0, 0.0
    for i in range(len(sigmas) - 1):
        denoised = run(predicted, sigmas[i])
        run.tell(i, predicted, denoised)
        seen, places = [*seen, denoised][-keep:], [*places, logs[i]][-keep:]
        used = min(predictor_order, len(seen))
        corrected = 0 if i == 0 or (sigmas[i + 1] == 0 and not use_pece) else min(corrector_order, len(seen))
        if ends_clean:
            used, corrected = min(used, last - i), min(corrected, last - i + 1)
        if corrected == 0:
            x = predicted
        else:
            weights = sa_solver.compute_stochastic_adams_b_coeffs(
                sigmas[i], torch.stack(places[-corrected:]), logs[i - 1], logs[i], tau, simple_order_2, is_corrector_step=True
            )
            x = sigmas[i] / sigmas[i - 1] * (-(tau**2) * h).exp() * x
            x = x + sum(weight * each for weight, each in zip(weights, seen[-corrected:]))
            if tau > 0 and s_noise > 0:
                # What the predictor added.
                x = x + noise
            if use_pece:
                seen[-1] = denoised = run(x, sigmas[i])
        if sigmas[i + 1] == 0:
            predicted = denoised
            continue
        tau = tau_func(sigmas[i + 1])
        weights = sa_solver.compute_stochastic_adams_b_coeffs(
            sigmas[i + 1], torch.stack(places[-used:]), logs[i], logs[i + 1], tau, simple_order_2, is_corrector_step=False
        )
        h = logs[i + 1] - logs[i]
        predicted = sigmas[i + 1] / sigmas[i] * (-(tau**2) * h).exp() * x
        predicted = predicted + sum(weight * each for weight, each in zip(weights, seen[-used:]))
        if tau > 0 and s_noise > 0:
            noise = run.noise_sampler(sigmas[i], sigmas[i + 1]) * sigmas[i + 1]
            noise = noise * (-2 * tau**2 * h).expm1().neg().sqrt() * s_noise
            predicted = predicted + noise
    return predicted


@torch.no_grad()
def sample_sa_solver_pece(
    model, x, sigmas, extra_args=None, callback=None, disable=False, tau_func=None, s_noise=1.0, noise_sampler=None,
    predictor_order=3, corrector_order=4, simple_order_2=False,
):
    return sample_sa_solver(
        model, x, sigmas, extra_args, callback, disable, tau_func, s_noise, noise_sampler, predictor_order, corrector_order,
        use_pece=True, simple_order_2=simple_order_2,
    )
