"""What all samplers of the host share."""

import torch

import comfy.model_sampling


def sampling_of(model):
    """What a network's output means; None for a function that says nothing about it."""
    inner = getattr(model, "inner_model", None)
    patcher = getattr(inner, "model_patcher", None)
    if patcher is not None:
        return patcher.get_model_object("model_sampling")
    for place in (getattr(inner, "inner_model", None), inner, model):
        found = getattr(place, "model_sampling", None)
        if found is not None:
            return found
    return None


def is_flow(model):
    return isinstance(sampling_of(model), comfy.model_sampling.CONST)


def helpers():
    """The module of the helpers as it is now: packs put functions of their own into it."""
    from . import sampling

    return sampling


class Run:
    """One run of a sampler: calls the model, tells the callback, and makes noise."""

    def __init__(self, model, x, sigmas, extra_args, callback, noise_sampler=None, brownian=None):
        self.model, self.sigmas, self.callback = model, sigmas, callback
        self.extra_args = {} if extra_args is None else extra_args
        self.one = x.new_ones([x.shape[0]])
        self.seed = self.extra_args.get("seed", None)
        if noise_sampler is None and brownian is not None:
            positive = sigmas[sigmas > 0]
            if len(positive):
                here = helpers()
                noise_sampler = here.BrownianTreeNoiseSampler(
                    x, positive.min(), sigmas.max(), seed=self.seed, cpu=brownian == "cpu"
                )
        self.noise_sampler = helpers().default_noise_sampler(x, seed=self.seed) if noise_sampler is None else noise_sampler
        self.flow = is_flow(model)
        self.uncond = None

    def __call__(self, x, sigma, **more):
        return self.model(x, sigma * self.one, **self.extra_args, **more)

    def tell(self, i, x, denoised, sigma_hat=None):
        if self.callback is not None:
            sigma = self.sigmas[i]
            self.callback({"x": x, "i": i, "sigma": sigma, "sigma_hat": sigma if sigma_hat is None else sigma_hat, "denoised": denoised})

    def watch_uncond(self):
        """Keeps the negative prediction of each call: samplers named cfg_pp step along it."""

        def keep(args):
            self.uncond = args["uncond_denoised"]
            return args["denoised"]

        options = dict(self.extra_args.get("model_options") or {})
        options["sampler_post_cfg_function"] = [*options.get("sampler_post_cfg_function", []), keep]
        options["disable_cfg1_optimization"] = True
        self.extra_args = {**self.extra_args, "model_options": options}
        return self

    def negative(self):
        if self.uncond is None:
            from fresco_host import Unsupported

            raise Unsupported(
                "a sampler named cfg_pp needs the negative prediction, which this model does not tell; take the sampler by its name "
                "(comfy.samplers.sampler_object), then it runs in Fresco"
            )
        return self.uncond

    def half_log_snr(self, sigma):
        return helpers().sigma_to_half_log_snr(sigma, sampling_of(self.model))

    def sigma_of(self, half_log_snr):
        return helpers().half_log_snr_to_sigma(half_log_snr, sampling_of(self.model))


def offset(model, sigmas):
    return helpers().offset_first_sigma_for_snr(sigmas, sampling_of(model))


def renoise(sigma, sigma_next, eta):
    """For flows: the level that a step goes down to, the factor of the latent and the noise after it."""
    down = sigma_next * (1 + (sigma_next / sigma - 1) * eta)
    factor = (1 - sigma_next) / (1 - down)
    added = torch.clamp(sigma_next**2 - down**2 * factor**2, min=0) ** 0.5
    return down, factor, added
