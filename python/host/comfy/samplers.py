"""Samplers, schedules and guiders. Sampling runs in the engine; what packs write of it in Python is called from there."""

from fresco_host import Unsupported, callbacks, models, values
from fresco_host.placeholders import fallback

KSAMPLER_NAMES = """euler euler_cfg_pp euler_ancestral euler_ancestral_cfg_pp heun heunpp2 exp_heun_2_x0
exp_heun_2_x0_sde dpm_2 dpm_2_ancestral lms dpm_fast dpm_adaptive dpmpp_2s_ancestral dpmpp_2s_ancestral_cfg_pp dpmpp_sde
dpmpp_sde_gpu dpmpp_2m dpmpp_2m_cfg_pp dpmpp_2m_sde dpmpp_2m_sde_gpu dpmpp_2m_sde_heun dpmpp_2m_sde_heun_gpu dpmpp_3m_sde
dpmpp_3m_sde_gpu ddpm lcm ipndm ipndm_v deis res_multistep res_multistep_cfg_pp res_multistep_ancestral
res_multistep_ancestral_cfg_pp gradient_estimation gradient_estimation_cfg_pp er_sde seeds_2 seeds_3 sa_solver
sa_solver_pece""".split()
SAMPLER_NAMES = KSAMPLER_NAMES + ["ddim", "uni_pc", "uni_pc_bh2"]
SCHEDULER_NAMES = """simple sgm_uniform karras exponential ddim_uniform beta normal linear_quadratic kl_optimal""".split()


class SchedulerHandler:
    def __init__(self, handler, use_ms=True):
        self.handler = handler
        self.use_ms = use_ms


SCHEDULER_HANDLERS = {name: SchedulerHandler(None) for name in SCHEDULER_NAMES}


def _model_of(model_sampling):
    """The model whose noise levels these are."""
    owner = getattr(model_sampling, "fresco_patcher", None)
    if owner is None:
        raise Unsupported("comfy.samplers.calculate_sigmas: these noise levels belong to no model of Fresco")
    return owner


def calculate_sigmas(model_sampling, scheduler_name, steps):
    handler = SCHEDULER_HANDLERS.get(scheduler_name)
    if handler is not None and handler.handler is not None:
        return handler.handler(model_sampling, steps) if handler.use_ms else handler.handler(
            n=steps, sigma_min=float(model_sampling.sigma_min), sigma_max=float(model_sampling.sigma_max)
        )
    return models.method("model.sigmas", model=_model_of(model_sampling), scheduler=scheduler_name, steps=steps)


def _schedule(name):
    def schedule(model_sampling, steps, *args, **kwargs):
        return calculate_sigmas(model_sampling, name, steps)

    return schedule


simple_scheduler = _schedule("simple")
ddim_scheduler = _schedule("ddim_uniform")
normal_scheduler = _schedule("normal")
beta_scheduler = _schedule("beta")
linear_quadratic_schedule = _schedule("linear_quadratic")
kl_optimal_scheduler = _schedule("kl_optimal")


# Samplers


class Sampler:
    def sample(self, *args, **kwargs):
        raise NotImplementedError

    def max_denoise(self, model_wrap, sigmas):
        most = float(model_wrap.inner_model.model_sampling.sigma_max)
        return float(sigmas[0]) >= most or abs(float(sigmas[0]) - most) < 1e-5 * most


class _Denoiser:
    """The engine's model as a Python sampler calls it: a latent and a noise level in, a clean latent out."""

    def __init__(self, about):
        self.about = about
        self.inner_model = self
        self.sigmas = None
        self.model_sampling = _Bounds(about)
        self.model_patcher = self
        self.model_options = {}

    def get_model_object(self, name):
        return getattr(self, name)

    def __call__(self, x, sigma, **kwargs):
        return callbacks.back("denoise", x, callbacks.number_of(sigma))


class _Bounds:
    def __init__(self, about):
        self.sigma_min, self.sigma_max = about["sigma_min"], about["sigma_max"]


class KSAMPLER(Sampler):
    """A sampler whose loop is Python's."""

    def __init__(self, sampler_function, extra_options={}, inpaint_options={}):
        self.sampler_function = sampler_function
        self.extra_options = extra_options
        self.inpaint_options = inpaint_options

    def fresco_sample(self, x, sigmas, about):
        def told(step):
            callbacks.back("step", step["i"], callbacks.number_of(step["sigma"]), step["x"], step["denoised"])

        extra = {"model_options": {}, "seed": about["seed"], "denoise_mask": None}
        return self.sampler_function(
            _Denoiser(about), x, sigmas, extra_args=extra, callback=told, disable=True, **{**self.extra_options, **about["options"]}
        )


def ksampler(sampler_name, extra_options={}, inpaint_options={}):
    """A sampler by name: one that packs added to comfy.k_diffusion.sampling, or the engine's."""
    import comfy.k_diffusion.sampling as added

    own = vars(added).get(f"sample_{sampler_name}")
    if callable(own):
        return KSAMPLER(own, extra_options, inpaint_options)
    if extra_options:
        raise Unsupported(f"comfy.samplers.ksampler: options of the sampler {sampler_name} cannot be set from Python; use its node")
    return models.run_node("KSamplerSelect", {"sampler_name": sampler_name})[0]


def sampler_object(name):
    return ksampler(name)


# Guiders


class CFGGuider:
    def __init__(self, model_patcher):
        self.model_patcher = model_patcher
        self.model_options = model_patcher.model_options
        self.original_conds = {}
        self.conds = {}
        self.cfg = 1.0

    def set_conds(self, positive, negative):
        self.inner_set_conds({"positive": positive, "negative": negative})

    def inner_set_conds(self, conds):
        self.original_conds = dict(conds)

    def set_cfg(self, cfg):
        self.cfg = cfg

    def fresco_native(self):
        """The same as a guider of the engine."""
        for name in ("predict_noise", "outer_predict_noise", "inner_sample", "outer_sample"):
            if getattr(type(self), name) is not getattr(CFGGuider, name):
                raise Unsupported(
                    f"{type(self).__name__}.{name}: guiders with a prediction of their own do not run in Fresco yet; a cfg function does "
                    "(model.set_model_sampler_cfg_function)"
                )
        conds = self.original_conds
        if set(conds) == {"positive"}:
            return models.run_node("BasicGuider", {"model": self.model_patcher, "conditioning": conds["positive"]})[0]
        arguments = {"model": self.model_patcher, "positive": conds["positive"], "negative": conds["negative"], "cfg": self.cfg}
        return models.run_node("CFGGuider", arguments)[0]

    def predict_noise(self, x, timestep, model_options={}, seed=None):
        raise Unsupported("CFGGuider.predict_noise: predictions are made by Fresco while it samples; use CFGGuider.sample")

    outer_predict_noise = predict_noise

    def inner_sample(self, *args, **kwargs):
        raise Unsupported("CFGGuider.inner_sample: use CFGGuider.sample")

    outer_sample = inner_sample

    def __call__(self, *args, **kwargs):
        return self.predict_noise(*args, **kwargs)

    def sample(self, noise, latent_image, sampler, sigmas, denoise_mask=None, callback=None, disable_pbar=False, seed=None):
        return self.fresco_native().sample(noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed)


def sample(
    model, noise, positive, negative, cfg, device, sampler, sigmas, model_options={}, latent_image=None, denoise_mask=None,
    callback=None, disable_pbar=False, seed=None,
):
    guider = CFGGuider(model)
    guider.set_conds(positive, negative)
    guider.set_cfg(cfg)
    return guider.sample(noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed)


class KSampler:
    SCHEDULERS = SCHEDULER_NAMES
    SAMPLERS = SAMPLER_NAMES
    DISCARD_PENULTIMATE_SIGMA_SAMPLERS = {"dpm_2", "dpm_2_ancestral", "uni_pc", "uni_pc_bh2"}

    def __init__(self, model, steps, device, sampler=None, scheduler=None, denoise=None, model_options={}):
        self.model, self.device, self.model_options = model, device, model_options
        self.sampler = sampler if sampler in self.SAMPLERS else self.SAMPLERS[0]
        self.scheduler = scheduler if scheduler in self.SCHEDULERS else self.SCHEDULERS[0]
        self.set_steps(steps, denoise)

    def calculate_sigmas(self, steps):
        return models.method("model.sigmas", model=self.model, scheduler=self.scheduler, sampler=self.sampler, steps=steps)

    def set_steps(self, steps, denoise=None):
        self.steps, self.denoise = steps, 1.0 if denoise is None else denoise

    @property
    def sigmas(self):
        return self._sigmas(None, None, False)

    def _sigmas(self, start, last, finish):
        return models.method(
            "model.sigmas", model=self.model, scheduler=self.scheduler, sampler=self.sampler, steps=self.steps, denoise=self.denoise,
            start=start, last=last, finish=finish,
        )

    def sample(
        self, noise, positive, negative, cfg, latent_image=None, start_step=None, last_step=None, force_full_denoise=False,
        denoise_mask=None, sigmas=None, callback=None, disable_pbar=False, seed=None,
    ):
        if sigmas is None:
            sigmas = self._sigmas(start_step, last_step, force_full_denoise)
        latent = {"samples": latent_image}
        if denoise_mask is not None:
            latent["noise_mask"] = denoise_mask
        own = self.sampler if not callable(getattr(self.sampler, "fresco_sample", None)) else self.sampler
        if isinstance(own, str):
            import comfy.k_diffusion.sampling as added

            if f"sample_{own}" in vars(added):
                own = ksampler(own)
        return models.sample(
            model=self.model, noise=noise, cfg=cfg, positive=positive, negative=negative, sampler=own, sigmas=sigmas, latent=latent,
            callback=callback, seed=seed,
        )


def _is_own(value):
    return isinstance(value, CFGGuider)


__all__ = ["KSampler", "values"]
__getattr__ = fallback(__name__)
