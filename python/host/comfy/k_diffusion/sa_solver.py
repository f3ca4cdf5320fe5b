"""Weights of SA-Solver (arXiv 2309.05019)."""

import math

import torch

from fresco_host.placeholders import fallback


def get_tau_interval_func(start_sigma, end_sigma, eta=1.0):
    """How much noise is added: `eta` between two noise levels, none outside."""

    def tau(sigma):
        if eta <= 0:
            return 0.0
        sigma = float(sigma)
        return eta if float(start_sigma) >= sigma >= float(end_sigma) else 0.0

    return tau


def compute_exponential_coeffs(s, t, solver_order, tau_t):
    """Integrals of the powers below the order, weighted exponentially."""
    rate = 1 + tau_t**2
    decay = torch.exp(-rate * (t - s))
    ends = [t**power - s**power * decay for power in range(solver_order)]
    made = []
    for power in range(solver_order):
        total = 0.0
        for lower in range(power + 1):
            factor = (-1) ** (power - lower) * math.factorial(power) / math.factorial(lower) * rate ** (lower - power)
            total = total + factor * ends[lower]
        made.append(total)
    return torch.stack(made)


def compute_simple_stochastic_adams_b_coeffs(sigma_next, curr_lambdas, lambda_s, lambda_t, tau_t, is_corrector_step=False):
    """Weights of two values, without solving equations."""
    rate, h = 1 + tau_t**2, lambda_t - lambda_s
    signal = sigma_next * lambda_t.exp()
    whole = signal * (-h * rate).expm1().neg()
    if is_corrector_step:
        first = signal * 0.5 * rate * h
        second = whole - first
        return [second, first]
    second = signal * 0.5 * rate * h**2 / (curr_lambdas[-2] - lambda_s)
    return [second, whole - second]


def compute_stochastic_adams_b_coeffs(
    sigma_next, curr_lambdas, lambda_s, lambda_t, tau_t, simple_order_2=False, is_corrector_step=False
):
    """What each of the last values adds to a step."""
    count = curr_lambdas.shape[0]
    if simple_order_2 and count == 2:
        return compute_simple_stochastic_adams_b_coeffs(sigma_next, curr_lambdas, lambda_s, lambda_t, tau_t, is_corrector_step)
    integrals = compute_exponential_coeffs(lambda_s, lambda_t, count, tau_t)
    powers = torch.vander(curr_lambdas, count, increasing=True).T
    return sigma_next * lambda_t.exp() * torch.linalg.solve(powers, integrals)


__getattr__ = fallback(__name__)
