"""UniPC (arXiv 2302.04867): a step is predicted and then corrected by what the model says there."""

import torch

from fresco_host.placeholders import fallback


def _solve(h, steps, order, variant):
    """The matrix and right side of the weights, for steps relative to this one."""
    hh = -h
    phi_1 = torch.expm1(hh)
    scale = hh if variant == "bh1" else torch.expm1(hh)
    if variant not in ("bh1", "bh2"):
        raise ValueError(f"UniPC has the variants bh1 and bh2, not {variant!r}")
    rows, right = [], []
    phi, factorial = phi_1 / hh - 1, 1
    for power in range(1, order + 1):
        rows.append(steps ** (power - 1))
        right.append(phi * factorial / scale)
        factorial *= power + 1
        phi = phi / hh - 1 / factorial
    return torch.stack(rows), torch.stack(right), phi_1, scale


class _Space:
    """The process in which noise and picture keep a variance of one together."""

    def __init__(self, model, sigmas, extra_args):
        self.model, self.sigmas, self.extra_args = model, sigmas, extra_args

    def alpha(self, sigma):
        return 1 / torch.sqrt(sigma**2 + 1)

    def noise(self, sigma):
        return torch.sqrt(1 - self.alpha(sigma) ** 2)

    def log(self, sigma):
        return torch.log(self.alpha(sigma)) - torch.log(self.noise(sigma))

    def __call__(self, x, sigma):
        """The picture that the model sees."""
        plain = x * torch.sqrt(sigma**2 + 1)
        clean = self.model(plain, sigma * x.new_ones([x.shape[0]]), **self.extra_args)
        eps = (plain - clean) / sigma
        return (x - self.noise(sigma) * eps) / self.alpha(sigma)


def _update(space, x, seen, levels, sigma, order, variant, corrects):
    """One step to `sigma` from what was seen at the last levels."""
    last = levels[-1]
    here, there = space.log(last), space.log(sigma)
    h, value = there - here, seen[-1]
    steps, differences = [], []
    for back in range(1, order):
        step = (space.log(levels[-(back + 1)]) - here) / h
        steps.append(step)
        differences.append((seen[-(back + 1)] - value) / step)
    steps = torch.stack([*steps, torch.ones_like(h)])
    matrix, right, phi_1, scale = _solve(h, steps, order, variant)
    alpha = space.alpha(sigma)
    base = space.noise(sigma) / space.noise(last) * x - alpha * phi_1 * value
    if order == 1:
        predicted = base
    else:
        weights = torch.full((1,), 0.5) if order == 2 else torch.linalg.solve(matrix[:-1, :-1], right[:-1])
        predicted = base - alpha * scale * sum(weight * each for weight, each in zip(weights.to(x), differences))
    if not corrects:
        return predicted, None
    found = space(predicted, sigma)
    weights = (torch.full((1,), 0.5) if order == 1 else torch.linalg.solve(matrix, right)).to(x)
    total = weights[-1] * (found - value)
    for weight, each in zip(weights[:-1], differences):
        total = total + weight * each
    return base - alpha * scale * total, found


@torch.no_grad()
def sample_unipc(model, noise, sigmas, extra_args=None, callback=None, disable=False, variant="bh1"):
    """The latent at the last level. A last level of zero is taken as 0.001, in the caller's list too."""
    if sigmas[-1] == 0:
        sigmas[-1] = 0.001
    space = _Space(model, sigmas, {} if extra_args is None else extra_args)
    last = len(sigmas) - 1
    order = min(3, len(sigmas) - 2)
    if last < max(order, 1):
        raise ValueError(f"UniPC needs at least {order} steps, and has {last}")
    x = noise / torch.sqrt(1.0 + sigmas[0] ** 2.0)
    seen, levels = [space(x, sigmas[0])], [sigmas[0]]
    _tell(callback, 0, seen, x)
    for step in range(1, last + 1):
        now = step if step < order else min(order, last + 1 - step)
        corrects = step < last or step < order
        x, found = _update(space, x, seen, levels, sigmas[step], max(now, 1), variant, corrects)
        if found is not None:
            seen, levels = [*seen, found][-max(order, 1) :], [*levels, sigmas[step]][-max(order, 1) :]
            if step < last:
                _tell(callback, step, seen, x)
    return x / space.alpha(sigmas[-1])


def _tell(callback, i, seen, x):
    if callback is not None:
        callback({"x": x, "i": i, "denoised": seen[-1]})


def sample_unipc_bh2(model, noise, sigmas, extra_args=None, callback=None, disable=False):
    return sample_unipc(model, noise, sigmas, extra_args, callback, disable, variant="bh2")


__getattr__ = fallback(__name__)
