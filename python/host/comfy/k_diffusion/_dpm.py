"""Samplers of the DPM-Solver family."""

import math

import torch

from ._common import Run, helpers, offset, renoise


class PIDStepSizeController:
    """Chooses the size of the next step by the errors of the last ones."""

    def __init__(self, h, pcoeff, icoeff, dcoeff, order=1, accept_safety=0.81, eps=1e-8):
        self.h = h
        self.b1 = (pcoeff + icoeff + dcoeff) / order
        self.b2 = -(pcoeff + 2 * dcoeff) / order
        self.b3 = dcoeff / order
        self.accept_safety = accept_safety
        self.eps = eps
        self.errs = []

    def limiter(self, x):
        return 1 + math.atan(x - 1)

    def propose_step(self, error):
        inverse = 1 / (float(error) + self.eps)
        if not self.errs:
            self.errs = [inverse, inverse, inverse]
        self.errs[0] = inverse
        factor = self.limiter(self.errs[0] ** self.b1 * self.errs[1] ** self.b2 * self.errs[2] ** self.b3)
        accept = factor >= self.accept_safety
        if accept:
            self.errs[2], self.errs[1] = self.errs[1], self.errs[0]
        self.h *= factor
        return accept


class DPMSolver(torch.nn.Module):
    """Steps of first to third order over t = -log(sigma)."""

    def __init__(self, model, extra_args=None, eps_callback=None, info_callback=None):
        super().__init__()
        self.model = model
        self.extra_args = {} if extra_args is None else extra_args
        self.eps_callback = eps_callback
        self.info_callback = info_callback

    def t(self, sigma):
        return -sigma.log()

    def sigma(self, t):
        return t.neg().exp()

    def eps(self, eps_cache, key, x, t, *args, **kwargs):
        if key in eps_cache:
            return eps_cache[key], eps_cache
        sigma = self.sigma(t) * x.new_ones([x.shape[0]])
        made = (x - self.model(x, sigma, *args, **self.extra_args, **kwargs)) / self.sigma(t)
        if self.eps_callback is not None:
            self.eps_callback()
        return made, {key: made, **eps_cache}

    def dpm_solver_1_step(self, x, t, t_next, eps_cache=None):
        h = t_next - t
        eps, cache = self.eps(eps_cache or {}, "eps", x, t)
        return x - self.sigma(t_next) * h.expm1() * eps, cache

    def dpm_solver_2_step(self, x, t, t_next, r1=1 / 2, eps_cache=None):
        h = t_next - t
        eps, cache = self.eps(eps_cache or {}, "eps", x, t)
        s1 = t + r1 * h
        u1 = x - self.sigma(s1) * (r1 * h).expm1() * eps
        eps_r1, cache = self.eps(cache, "eps_r1", u1, s1)
        whole = self.sigma(t_next) * h.expm1()
        return x - whole * eps - whole / (2 * r1) * (eps_r1 - eps), cache

    def dpm_solver_3_step(self, x, t, t_next, r1=1 / 3, r2=2 / 3, eps_cache=None):
        h = t_next - t
        eps, cache = self.eps(eps_cache or {}, "eps", x, t)
        s1, s2 = t + r1 * h, t + r2 * h
        u1 = x - self.sigma(s1) * (r1 * h).expm1() * eps
        eps_r1, cache = self.eps(cache, "eps_r1", u1, s1)
        part = (r2 * h).expm1()
        u2 = x - self.sigma(s2) * part * eps - self.sigma(s2) * (r2 / r1) * (part / (r2 * h) - 1) * (eps_r1 - eps)
        eps_r2, cache = self.eps(cache, "eps_r2", u2, s2)
        return x - self.sigma(t_next) * h.expm1() * eps - self.sigma(t_next) / r2 * (h.expm1() / h - 1) * (eps_r2 - eps), cache

    def _told(self, x, t, up, denoised, **more):
        if self.info_callback is not None:
            self.info_callback({"x": x, "t": t, "t_up": t, "denoised": denoised, **more})

    def dpm_solver_fast(self, x, t_start, t_end, nfe, eta=0.0, s_noise=1.0, noise_sampler=None):
        noise_sampler = helpers().default_noise_sampler(x) if noise_sampler is None else noise_sampler
        if not t_end > t_start and eta:
            raise ValueError("eta must be 0 for reverse sampling")
        count = nfe // 3 + 1
        times = torch.linspace(float(t_start), float(t_end), count + 1, device=x.device)
        orders = [3] * (count - 2) + [2, 1] if nfe % 3 == 0 else [3] * (count - 1) + [nfe % 3]
        for i, order in enumerate(orders):
            t, t_next = times[i], times[i + 1]
            target, up = t_next, 0.0
            if eta:
                down, up = helpers().get_ancestral_step(self.sigma(t), self.sigma(t_next), eta)
                target = torch.minimum(t_end, self.t(down))
                up = (self.sigma(t_next) ** 2 - self.sigma(target) ** 2) ** 0.5
            eps, cache = self.eps({}, "eps", x, t)
            self._told(x, t, t, x - self.sigma(t) * eps, i=i)
            step = (self.dpm_solver_1_step, self.dpm_solver_2_step, self.dpm_solver_3_step)[order - 1]
            x, cache = step(x, t, target, eps_cache=cache)
            x = x + up * s_noise * noise_sampler(self.sigma(t), self.sigma(t_next))
        return x

    def dpm_solver_adaptive(
        self, x, t_start, t_end, order=3, rtol=0.05, atol=0.0078, h_init=0.05, pcoeff=0.0, icoeff=1.0, dcoeff=0.0,
        accept_safety=0.81, eta=0.0, s_noise=1.0, noise_sampler=None,
    ):
        noise_sampler = helpers().default_noise_sampler(x) if noise_sampler is None else noise_sampler
        if order not in (2, 3):
            raise ValueError("order should be 2 or 3")
        forward = bool(t_end > t_start)
        if not forward and eta:
            raise ValueError("eta must be 0 for reverse sampling")
        h_init = abs(h_init) * (1 if forward else -1)
        controller = PIDStepSizeController(h_init, pcoeff, icoeff, dcoeff, 1.5 if eta else order, accept_safety)
        s, previous = t_start, x
        info = {"steps": 0, "nfe": 0, "n_accept": 0, "n_reject": 0}
        while (s < t_end - 1e-5) if forward else (s > t_end + 1e-5):
            t = torch.minimum(t_end, s + controller.h) if forward else torch.maximum(t_end, s + controller.h)
            target, up = t, 0.0
            if eta:
                down, up = helpers().get_ancestral_step(self.sigma(s), self.sigma(t), eta)
                target = torch.minimum(t_end, self.t(down))
                up = (self.sigma(t) ** 2 - self.sigma(target) ** 2) ** 0.5
            eps, cache = self.eps({}, "eps", x, s)
            denoised = x - self.sigma(s) * eps
            if order == 2:
                low, cache = self.dpm_solver_1_step(x, s, target, eps_cache=cache)
                high, cache = self.dpm_solver_2_step(x, s, target, eps_cache=cache)
            else:
                low, cache = self.dpm_solver_2_step(x, s, target, r1=1 / 3, eps_cache=cache)
                high, cache = self.dpm_solver_3_step(x, s, target, eps_cache=cache)
            allowed = torch.maximum(torch.full_like(low, atol), rtol * torch.maximum(low.abs(), previous.abs()))
            error = torch.linalg.norm((low - high) / allowed) / x.numel() ** 0.5
            accept = controller.propose_step(error)
            if accept:
                previous = low
                x = high + up * s_noise * noise_sampler(self.sigma(s), self.sigma(t)) if eta else high
                s = t
                info["n_accept"] += 1
            else:
                info["n_reject"] += 1
            info["nfe"] += order
            info["steps"] += 1
            self._told(x, s, s, denoised, i=info["steps"] - 1, error=error, h=controller.h, **info)
        return x, info


def _solver(model, x, extra_args, callback):
    solver = DPMSolver(model, extra_args)
    if callback is not None:

        def told(info):
            sigma = solver.sigma(info["t"])
            callback({"sigma": sigma, "sigma_hat": sigma, **info})

        solver.info_callback = told
    return solver


def _bounds(sigmas):
    low = sigmas[-1] if sigmas[-1] != 0 else sigmas[-2]
    return low, sigmas[0]


@torch.no_grad()
def sample_dpm_fast(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=0.0, s_noise=1.0, noise_sampler=None
):
    if len(sigmas) <= 1:
        return x
    run = Run(model, x, sigmas, extra_args, None, noise_sampler)
    low, high = _bounds(sigmas)
    solver = _solver(model, x, run.extra_args, callback)
    return solver.dpm_solver_fast(x, solver.t(high), solver.t(low), len(sigmas) - 1, eta, s_noise, run.noise_sampler)


@torch.no_grad()
def sample_dpm_adaptive(
    model, x, sigmas, extra_args=None, callback=None, disable=None, order=3, rtol=0.05, atol=0.0078, h_init=0.05, pcoeff=0.0,
    icoeff=1.0, dcoeff=0.0, accept_safety=0.81, eta=0.0, s_noise=1.0, noise_sampler=None, return_info=False,
):
    if len(sigmas) <= 1:
        return x
    run = Run(model, x, sigmas, extra_args, None, noise_sampler)
    low, high = _bounds(sigmas)
    solver = _solver(model, x, run.extra_args, callback)
    made, info = solver.dpm_solver_adaptive(
        x, solver.t(high), solver.t(low), order, rtol, atol, h_init, pcoeff, icoeff, dcoeff, accept_safety, eta, s_noise,
        run.noise_sampler,
    )
    return (made, info) if return_info else made


@torch.no_grad()
def sample_dpmpp_2s_ancestral(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    if run.flow:
        return sample_dpmpp_2s_ancestral_RF(model, x, sigmas, extra_args, callback, disable, eta, s_noise, run.noise_sampler)
    return _two_steps(run, x, eta, s_noise, lambda denoised: 0.0)


@torch.no_grad()
def sample_dpmpp_2s_ancestral_cfg_pp(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler).watch_uncond()
    return _two_steps(run, x, eta, s_noise, lambda denoised: denoised - run.negative())


def _two_steps(run, x, eta, s_noise, away):
    sigmas = run.sigmas
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        down, up = helpers().get_ancestral_step(sigmas[i], sigmas[i + 1], eta=eta)
        beyond = away(denoised)
        if down == 0:
            x = denoised + (x - denoised + beyond) / sigmas[i] * down
        else:
            t, t_next = -sigmas[i].log(), -down.log()
            h = t_next - t
            s = t + h / 2
            half = (torch.exp(-s) / sigmas[i]) * (x + beyond) - (-h / 2).expm1() * denoised
            second = run(half, torch.exp(-s))
            x = (down / sigmas[i]) * (x + away_from(run, denoised, beyond)) - (-h).expm1() * second
        if sigmas[i + 1] > 0:
            x = x + run.noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * up
    return x


def away_from(run, denoised, beyond):
    """The way from the negative prediction of the last call."""
    return beyond if run.uncond is None else denoised - run.uncond


@torch.no_grad()
def sample_dpmpp_2s_ancestral_RF(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler)
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        down, factor, added = renoise(sigmas[i], sigmas[i + 1], eta)
        if sigmas[i + 1] == 0:
            x = x + helpers().to_d(x, sigmas[i], denoised) * (down - sigmas[i])
            continue
        if sigmas[i] == 1.0:
            middle = torch.full_like(sigmas[i], 0.9999)
        else:
            half = (((1 - sigmas[i]) / sigmas[i]).log() + ((1 - down) / down).log()) / 2
            middle = 1 / (half.exp() + 1)
        part = middle / sigmas[i]
        second = run(part * x + (1 - part) * denoised, middle)
        part = down / sigmas[i]
        x = part * x + (1 - part) * second
        if sigmas[i + 1] > 0 and eta > 0:
            x = factor * x + run.noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * added
    return x


@torch.no_grad()
def sample_dpmpp_sde(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None, r=1 / 2
):
    return _sde(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, r, "cpu")


@torch.no_grad()
def sample_dpmpp_sde_gpu(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None, r=1 / 2
):
    return _sde(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, r, "")


def _sde(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, r, where):
    if len(sigmas) <= 1:
        return x
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler, brownian=where)
    sigmas = run.sigmas = offset(model, sigmas)
    part = 1 / (2 * r)
    for i in range(len(sigmas) - 1):
        sigma, following = sigmas[i], sigmas[i + 1]
        denoised = run(x, sigma)
        run.tell(i, x, denoised)
        if following == 0:
            x = denoised
            continue
        begin, end = run.half_log_snr(sigma), run.half_log_snr(following)
        between = begin + r * (end - begin)
        middle = run.sigma_of(between)
        signals = [sigma * begin.exp(), middle * between.exp(), following * end.exp()]

        def step(to, signal, clean, noise_to):
            down, up = helpers().get_ancestral_step(begin.neg().exp(), to.neg().exp(), eta)
            h = -down.log() - begin
            made = (signal / signals[0]) * torch.exp(-h) * x - signal * (-h).expm1() * clean
            if eta > 0 and s_noise > 0:
                made = made + signal * run.noise_sampler(sigma, noise_to) * s_noise * up
            return made

        second = run(step(between, signals[1], denoised, middle), middle)
        x = step(end, signals[2], (1 - part) * denoised + part * second, following)
    return x


@torch.no_grad()
def sample_dpmpp_2m(model, x, sigmas, extra_args=None, callback=None, disable=None):
    run = Run(model, x, sigmas, extra_args, callback)
    before = None
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        t, t_next = -sigmas[i].log(), -sigmas[i + 1].log()
        h = t_next - t
        clean = denoised
        if before is not None and sigmas[i + 1] != 0:
            r = (t + sigmas[i - 1].log()) / h
            clean = (1 + 1 / (2 * r)) * denoised - (1 / (2 * r)) * before
        x = (sigmas[i + 1] / sigmas[i]) * x - (-h).expm1() * clean
        before = denoised
    return x


@torch.no_grad()
def sample_dpmpp_2m_cfg_pp(model, x, sigmas, extra_args=None, callback=None, disable=None):
    run = Run(model, x, sigmas, extra_args, callback).watch_uncond()
    before = None
    for i in range(len(sigmas) - 1):
        denoised = run(x, sigmas[i])
        run.tell(i, x, denoised)
        uncond = run.negative()
        t, t_next = -sigmas[i].log(), -sigmas[i + 1].log()
        h = t_next - t
        mixed = -torch.exp(-h) * uncond
        if before is not None and sigmas[i + 1] != 0:
            r = (t + sigmas[i - 1].log()) / h
            mixed = mixed - torch.expm1(-h) * (1 / (2 * r)) * (denoised - before)
        x = denoised + mixed + torch.exp(-h) * x
        before = uncond
    return x


def _multi(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, where, finish):
    """Steps of the SDE with what earlier steps saw; `finish` adds their part."""
    if len(sigmas) <= 1:
        return x
    run = Run(model, x, sigmas, extra_args, callback, noise_sampler, brownian=where)
    sigmas = run.sigmas = offset(model, sigmas)
    history = []
    for i in range(len(sigmas) - 1):
        sigma, following = sigmas[i], sigmas[i + 1]
        denoised = run(x, sigma)
        run.tell(i, x, denoised)
        if following == 0:
            x = denoised
            continue
        begin, end = run.half_log_snr(sigma), run.half_log_snr(following)
        h = end - begin
        whole, signal = h * (eta + 1), following * end.exp()
        x = following / sigma * (-h * eta).exp() * x + signal * (-whole).expm1().neg() * denoised
        x = finish(x, signal, whole, h, denoised, history)
        if eta > 0 and s_noise > 0:
            x = x + run.noise_sampler(sigma, following) * following * (-2 * h * eta).expm1().neg().sqrt() * s_noise
        history = [(denoised, h), *history][:2]
    return x


def _of_two(solver_type):
    if solver_type not in ("heun", "midpoint"):
        raise ValueError("solver_type must be 'heun' or 'midpoint'")

    def finish(x, signal, whole, h, denoised, history):
        if not history:
            return x
        before, h_last = history[0]
        r = h_last / h
        if solver_type == "heun":
            return x + signal * ((-whole).expm1().neg() / (-whole) + 1) * (1 / r) * (denoised - before)
        return x + 0.5 * signal * (-whole).expm1().neg() * (1 / r) * (denoised - before)

    return finish


def _of_three(x, signal, whole, h, denoised, history):
    if len(history) == 2:
        (first, h1), (second, h2) = history
        r0, r1 = h1 / h, h2 / h
        d0, d1 = (denoised - first) / r0, (first - second) / r1
        slope = d0 + (d0 - d1) * r0 / (r0 + r1)
        bend = (d0 - d1) / (r0 + r1)
        phi_2 = (-whole).expm1() / whole + 1
        return x + signal * phi_2 * slope - signal * (phi_2 / whole - 0.5) * bend
    if history:
        first, h1 = history[0]
        return x + signal * ((-whole).expm1() / whole + 1) * (denoised - first) / (h1 / h)
    return x


@torch.no_grad()
def sample_dpmpp_2m_sde(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None, solver_type="midpoint"
):
    return _multi(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, "cpu", _of_two(solver_type))


@torch.no_grad()
def sample_dpmpp_2m_sde_gpu(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None, solver_type="midpoint"
):
    return _multi(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, "", _of_two(solver_type))


@torch.no_grad()
def sample_dpmpp_2m_sde_heun(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None, solver_type="heun"
):
    return _multi(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, "cpu", _of_two(solver_type))


@torch.no_grad()
def sample_dpmpp_2m_sde_heun_gpu(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None, solver_type="heun"
):
    return _multi(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, "", _of_two(solver_type))


@torch.no_grad()
def sample_dpmpp_3m_sde(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    return _multi(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, "cpu", _of_three)


@torch.no_grad()
def sample_dpmpp_3m_sde_gpu(
    model, x, sigmas, extra_args=None, callback=None, disable=None, eta=1.0, s_noise=1.0, noise_sampler=None
):
    return _multi(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, "", _of_three)
