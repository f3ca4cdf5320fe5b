"""Noise levels for a number of steps, by formulas over what a model samples with; `comfy.samplers` has these under its name."""

import math

from fresco_host.callbacks import floats, numbers


def _ends(model_sampling):
    return float(model_sampling.sigma_max), float(model_sampling.sigma_min)


def _table(model_sampling):
    return floats(model_sampling.sigmas)


def _time(model_sampling, sigma):
    return float(model_sampling.timestep(sigma))


def _line(start, end, count):
    return [start + (end - start) * i / (count - 1) if count > 1 else start for i in range(count)]


def simple_scheduler(model_sampling, steps):
    table = _table(model_sampling)
    part = len(table) / steps
    return numbers([*(table[-(1 + int(i * part))] for i in range(steps)), 0.0])


def ddim_scheduler(model_sampling, steps):
    table = _table(model_sampling)
    levels = [0.0]
    if abs(table[1]) < 1e-5:
        steps, levels = steps + 1, []
    each = max(len(table) // steps, 1)
    return numbers((levels + table[1::each])[::-1])


def normal_scheduler(model_sampling, steps, sgm=False, floor=False):
    most, least = _ends(model_sampling)
    start, end = _time(model_sampling, most), _time(model_sampling, least)
    ends_at_zero = True
    if sgm:
        times = _line(start, end, steps + 1)[:-1]
    elif abs(float(model_sampling.sigma(end))) < 1e-5:
        times, ends_at_zero = _line(start, end, steps + 1), False
    else:
        times = _line(start, end, steps)
    levels = [float(model_sampling.sigma(time)) for time in times]
    return numbers(levels + [0.0] if ends_at_zero else levels)


def beta_scheduler(model_sampling, steps, alpha=0.6, beta=0.6):
    table = _table(model_sampling)
    levels, before = [], None
    for i in range(steps):
        # Half to the even number, like numpy.
        place = round(_beta_quantile(1 - i / steps, alpha, beta) * (len(table) - 1))
        if place != before:
            levels.append(table[place])
        before = place
    return numbers(levels + [0.0])


def linear_quadratic_schedule(model_sampling, steps, threshold_noise=0.025, linear_steps=None):
    most = float(model_sampling.sigma_max)
    if steps == 1:
        return numbers([most, 0.0])
    first = steps // 2 if linear_steps is None else linear_steps
    rest = steps - first
    left = first - threshold_noise * steps
    square = left / (first * rest**2)
    line = threshold_noise / first - 2 * left / rest**2
    constant = square * first**2
    done = [i * threshold_noise / first for i in range(first)]
    done += [square * i**2 + line * i + constant for i in range(first, steps)]
    return numbers([(1.0 - part) * most for part in [*done, 1.0]])


def kl_optimal_scheduler(n, sigma_min, sigma_max):
    low, high = math.atan(sigma_min), math.atan(sigma_max)
    # One step has no other end.
    parts = [i / (n - 1) if n > 1 else math.nan for i in range(n)]
    return numbers([*(math.tan(part * low + (1 - part) * high) for part in parts), 0.0])


# The beta distribution


def _beta_quantile(wanted, a, b):
    """Where the share of a beta distribution lies below."""
    if wanted <= 0.0:
        return 0.0
    if wanted >= 1.0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if _beta_share(middle, a, b) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta_share(x, a, b):
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1 - x, b, a) / b


def _fraction(x, a, b):
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value
