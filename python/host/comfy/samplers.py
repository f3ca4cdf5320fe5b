"""Samplers, schedules and guiders. Sampling runs in the engine; what packs write of it in Python is called from there."""

import functools
import threading

import comfy.model_sampling
from comfy._cond_lists import (  # noqa: F401
    add_area_dims, apply_empty_x_to_equal_area, calculate_start_end_timesteps, can_concat_cond, cond_cat, cond_equal_size, cond_obj,
    create_cond_with_same_area_if_none, encode_model_conds, get_area_and_mult, get_mask_aabb, pre_run_control, process_conds,
    resolve_areas_and_cond_masks, resolve_areas_and_cond_masks_multidim,
)
from comfy import _schedules
from comfy._schedules import kl_optimal_scheduler
from comfy.k_diffusion import sampling as k_diffusion_sampling
from fresco_host import Unsupported, UnsupportedAttribute, callbacks, models, values
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


def _schedule(name, formula):
    """A schedule: of Fresco's models as Fresco computes it, else and with settings of its own by the formula."""

    @functools.wraps(formula)
    def schedule(model_sampling, steps, *args, **kwargs):
        owner = getattr(model_sampling, "fresco_patcher", None)
        if owner is None or args or kwargs:
            return formula(model_sampling, steps, *args, **kwargs)
        return models.method("model.sigmas", model=owner, scheduler=name, steps=steps)

    return schedule


simple_scheduler = _schedule("simple", _schedules.simple_scheduler)
ddim_scheduler = _schedule("ddim_uniform", _schedules.ddim_scheduler)
normal_scheduler = _schedule("normal", _schedules.normal_scheduler)
beta_scheduler = _schedule("beta", _schedules.beta_scheduler)
linear_quadratic_schedule = _schedule("linear_quadratic", _schedules.linear_quadratic_schedule)

SCHEDULER_HANDLERS = {
    "simple": SchedulerHandler(simple_scheduler), "sgm_uniform": SchedulerHandler(functools.partial(normal_scheduler, sgm=True)),
    "karras": SchedulerHandler(k_diffusion_sampling.get_sigmas_karras, use_ms=False),
    "exponential": SchedulerHandler(k_diffusion_sampling.get_sigmas_exponential, use_ms=False),
    "ddim_uniform": SchedulerHandler(ddim_scheduler), "beta": SchedulerHandler(beta_scheduler),
    "normal": SchedulerHandler(normal_scheduler), "linear_quadratic": SchedulerHandler(linear_quadratic_schedule),
    "kl_optimal": SchedulerHandler(kl_optimal_scheduler, use_ms=False),
}
_HANDLERS = dict(SCHEDULER_HANDLERS)
# What the engine has; all else in these lists is of packs.
_OURS = (frozenset(SAMPLER_NAMES), frozenset(SCHEDULER_NAMES))


def calculate_sigmas(model_sampling, scheduler_name, steps):
    handler = SCHEDULER_HANDLERS.get(scheduler_name)
    if handler is None:
        raise ValueError(f"unknown scheduler {scheduler_name!r}; there are {', '.join(SCHEDULER_HANDLERS)}")
    owner = getattr(model_sampling, "fresco_patcher", None)
    if owner is not None and handler is _HANDLERS.get(scheduler_name):
        return models.method("model.sigmas", model=owner, scheduler=scheduler_name, steps=steps)
    if handler.use_ms:
        return handler.handler(model_sampling, steps)
    return handler.handler(n=steps, sigma_min=float(model_sampling.sigma_min), sigma_max=float(model_sampling.sigma_max))


class _AddedSchedule:
    """A schedule that a pack added to the list, as the engine asks for it."""

    def __init__(self, name):
        self.name = name

    def fresco_sigmas(self, model, steps):
        # By its name in the module: packs put a function of their own in its place.
        import comfy.samplers as here

        return here.calculate_sigmas(model.get_model_object("model_sampling"), self.name, steps)


class _AddedSampler:
    """A sampler that a pack added to the list, as the engine runs it."""

    def __init__(self, name):
        self.name = name

    def fresco_sample(self, x, sigmas, about):
        import comfy.samplers as here

        sampler = here.sampler_object(self.name)
        if not hasattr(sampler, "fresco_sample"):
            raise Unsupported(f"the sampler {self.name} of a pack is no comfy.samplers.KSAMPLER")
        return sampler.fresco_sample(x, sigmas, about)


def _added():
    """Names that packs added to the lists, with what runs them."""

    def more(lists, ours):
        names = dict.fromkeys(str(name) for names in lists for name in names if isinstance(name, str))
        return [name for name in names if name not in ours]

    samplers = more((KSAMPLER_NAMES, SAMPLER_NAMES, KSampler.SAMPLERS), _OURS[0])
    schedulers = more((SCHEDULER_NAMES, KSampler.SCHEDULERS, SCHEDULER_HANDLERS), _OURS[1])
    return {
        "samplers": [(name, _AddedSampler(name)) for name in samplers],
        "schedulers": [(name, _AddedSchedule(name)) for name in schedulers],
    }


# Samplers


class Sampler:
    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False):
        raise NotImplementedError

    def max_denoise(self, model_wrap, sigmas):
        most = float(model_wrap.inner_model.model_sampling.sigma_max)
        return float(sigmas[0]) >= most or abs(float(sigmas[0]) - most) < 1e-5 * most


class _Network:
    """The engine's network as samplers look at it: they ask for its kind and for marks that packs leave in it, of which it has none."""

    def _get_name(self):
        return "Network"

    def __getattr__(self, name):
        raise UnsupportedAttribute(f"diffusion_model.{name} is inside of a network, which Python does not reach (level L3b)")


class _Denoiser:
    """The engine's model as a Python sampler calls it: a latent and a noise level in, a clean latent out."""

    def __init__(self, about):
        self.about = about
        self.inner_model = self
        self.sigmas = None
        # What the network's output means: samplers step otherwise for flows.
        self.model_sampling = comfy.model_sampling._of_engine(about["sampling"])
        # One object in the place of several: the guider, the model that it has, and what holds that.
        self.model_patcher = self.model = self
        self.model_options = {}
        self.diffusion_model = _Network()

    @property
    def device(self):
        """Latents come here as tensors of main memory."""
        torch = values._torch()
        return "cpu" if torch is None else torch.device("cpu")

    def get_model_object(self, name):
        return getattr(self, name)

    def __call__(self, x, sigma, **kwargs):
        return callbacks.back("denoise", x, callbacks.number_of(sigma))


class KSamplerX0Inpaint:
    """A model that predicts where a mask is, and leaves the rest of a latent as it was."""

    def __init__(self, model, sigmas):
        self.inner_model = model
        self.sigmas = sigmas
        self.noise = self.latent_image = None

    def __call__(self, x, sigma, denoise_mask, model_options={}, seed=None):
        if denoise_mask is None:
            return self.inner_model(x, sigma, model_options=model_options, seed=seed)
        changed = model_options.get("denoise_mask_function")
        if changed is not None:
            denoise_mask = changed(sigma, denoise_mask, extra_options={"model": self.inner_model, "sigmas": self.sigmas})
        rest, network = 1.0 - denoise_mask, self.inner_model.inner_model
        if hasattr(network, "scale_latent_inpaint"):
            kept = network.scale_latent_inpaint(x=x, sigma=sigma, noise=self.noise, latent_image=self.latent_image)
        else:
            kept = network.model_sampling.noise_scaling(sigma, self.noise, self.latent_image)
        made = self.inner_model(x * denoise_mask + kept * rest, sigma, model_options=model_options, seed=seed)
        return made * denoise_mask + self.latent_image * rest


class KSAMPLER(Sampler):
    """A sampler whose loop is Python's."""

    def __init__(self, sampler_function, extra_options={}, inpaint_options={}):
        self.sampler_function = sampler_function
        self.extra_options = extra_options
        self.inpaint_options = inpaint_options

    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False):
        return run_sampler(self, model_wrap, sigmas, extra_args, callback, noise, latent_image, denoise_mask, disable_pbar)

    def fresco_handle(self):
        """Fresco's own sampler, where the loop is the host's and nothing is set about it."""
        name = getattr(self.sampler_function, "fresco_sampler", None)
        if name is None or type(self) is not KSAMPLER or self.extra_options or self.inpaint_options or name not in _OURS[0]:
            return None
        return models.run_node("KSamplerSelect", {"sampler_name": name})[0]

    def fresco_sample(self, x, sigmas, about):
        def told(step):
            callbacks.back("step", step["i"], callbacks.number_of(step["sigma"]), step["x"], step["denoised"])

        extra = {"model_options": callbacks.run_options({}, sigmas), "seed": about["seed"], "denoise_mask": None}
        return self.sampler_function(
            _Denoiser(about), x, sigmas, extra_args=extra, callback=told, disable=True, **{**self.extra_options, **about["options"]}
        )


def ksampler(sampler_name, extra_options={}, inpaint_options={}):
    """A sampler by name: one that packs added to comfy.k_diffusion.sampling, or the engine's."""
    own = vars(k_diffusion_sampling).get(f"sample_{sampler_name}")
    # What is Fresco's runs there; with options it runs here, by the same formulas.
    if callable(own) and (extra_options or not hasattr(own, "fresco_sampler")):
        return KSAMPLER(own, extra_options, inpaint_options)
    if extra_options:
        raise Unsupported(f"comfy.samplers.ksampler: options of the sampler {sampler_name} cannot be set from Python; use its node")
    return models.run_node("KSamplerSelect", {"sampler_name": sampler_name})[0]


def sampler_object(name):
    return ksampler(name)


# Guiders


class _Conds(callbacks.StepCond):
    """A conditioning of a guider while it predicts: the engine has it, by its place."""


def _place(conds):
    if conds is None:
        return -1
    if not isinstance(conds, callbacks.StepCond):
        raise Unsupported("predictions are made of the conditionings that the guider was given (self.conds) and of no others")
    return conds.place


def calc_cond_batch(model, conds, x_in, timestep, model_options):
    """A prediction for each of these, made by the engine."""
    return callbacks.back("predict", x_in, callbacks.number_of(timestep), [_place(each) for each in conds])


def sampling_function(model, x, timestep, uncond, cond, cond_scale, model_options={}, seed=None):
    """Both predictions and guidance with all that was set on the model, made by the engine."""
    return callbacks.back("guide", x, callbacks.number_of(timestep), float(cond_scale), _place(cond), _place(uncond))


def cfg_function(model, cond_pred, uncond_pred, cond_scale, x, timestep, model_options={}, cond=None, uncond=None):
    base = {"sigma": timestep, "timestep": timestep, "model": model, "model_options": model_options, "input": x, "cond_scale": cond_scale}
    own = model_options.get("sampler_cfg_function")
    if own is not None:
        given = {
            **base, "cond": x - cond_pred, "uncond": x - uncond_pred, "cond_denoised": cond_pred, "uncond_denoised": uncond_pred,
            "input_cond": cond, "input_uncond": uncond,
        }
        result = x - own(given)
    else:
        result = uncond_pred + (cond_pred - uncond_pred) * cond_scale
    for function in model_options.get("sampler_post_cfg_function") or ():
        given = {**base, "denoised": result, "cond": cond, "uncond": uncond, "cond_denoised": cond_pred, "uncond_denoised": uncond_pred}
        result = function(given)
    return result


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
        """The same as a guider of the engine, or what the engine must know of one that predicts or samples by itself."""
        conds = self.original_conds
        loops = self._replaces("sample", "outer_sample", "inner_sample")
        if loops or self._replaces("predict_noise", "outer_predict_noise", "__call__"):
            return callbacks.Parts(model=self.model_patcher, lists=list(conds.values()), loops=loops)
        if set(conds) == {"positive"}:
            return models.run_node("BasicGuider", {"model": self.model_patcher, "conditioning": conds["positive"]})[0]
        arguments = {"model": self.model_patcher, "positive": conds["positive"], "negative": conds["negative"], "cfg": self.cfg}
        return models.run_node("CFGGuider", arguments)[0]

    def _replaces(self, *names):
        return any(getattr(type(self), name) is not getattr(CFGGuider, name) for name in names)

    def _begin(self):
        self.conds = {name: _Conds(place) for place, name in enumerate(self.original_conds)}
        self.inner_model = self.model_patcher.model

    def fresco_loop(self, noise, latent_image, sampler, sigmas, denoise_mask, seed):
        """All steps, as a node of the engine asks for them; the engine makes them when `inner_sample` is reached."""
        self._begin()
        _looping.guider = self
        try:
            return self.sample(noise, latent_image, sampler, sigmas, denoise_mask, None, True, seed)
        finally:
            _looping.guider = None

    def fresco_predict(self, x, sigma, seed, levels):
        """One prediction, as the engine asks for it while it samples."""
        self._begin()
        timestep = callbacks.numbers([sigma] * x.shape[0])
        options = callbacks.options_of_run(self, levels, timestep)
        return self(x, timestep, model_options=options, seed=seed)

    def predict_noise(self, x, timestep, model_options={}, seed=None):
        conds = self.conds
        return sampling_function(
            getattr(self, "inner_model", None), x, timestep, conds.get("negative"), conds.get("positive"), self.cfg, model_options, seed=seed
        )

    def outer_predict_noise(self, x, timestep, model_options={}, seed=None):
        return self.predict_noise(x, timestep, model_options, seed)

    def inner_sample(
        self, noise, latent_image, device, sampler, sigmas, denoise_mask=None, callback=None, disable_pbar=False, seed=None, **more
    ):
        return _run(self, noise, latent_image, sampler, sigmas, denoise_mask, callback, seed)

    def outer_sample(
        self, noise, latent_image, sampler, sigmas, denoise_mask=None, callback=None, disable_pbar=False, seed=None, **more
    ):
        self._begin()
        device = self.model_patcher.load_device if values._torch() is not None else None
        return self.inner_sample(noise, latent_image, device, sampler, sigmas, denoise_mask, callback, disable_pbar, seed)

    def __call__(self, *args, **kwargs):
        return self.outer_predict_noise(*args, **kwargs)

    def sample(self, noise, latent_image, sampler, sigmas, denoise_mask=None, callback=None, disable_pbar=False, seed=None):
        native = self.fresco_native()
        if isinstance(native, callbacks.Parts):
            around = self.model_patcher.get_all_wrappers(callbacks.AROUND)
            if not around:
                return self.outer_sample(noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed)
            import comfy.patcher_extension

            executor = comfy.patcher_extension.WrapperExecutor.new_class_executor(self.outer_sample, self, around)
            shapes = [tuple(latent_image.shape)]
            return executor.execute(
                noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed, latent_shapes=shapes
            )
        return native.sample(noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed)


_looping = threading.local()


def _run(guider, noise, latent_image, sampler, sigmas, denoise_mask, callback, seed):
    """All steps, made by the engine, which asks the guider for its predictions."""
    if getattr(_looping, "guider", None) is guider:
        kept = None if callback is None else models._Keep(callback)
        return callbacks.back("run", noise, latent_image, sampler, sigmas, denoise_mask, seed, kept)
    latent = {"samples": latent_image}
    if denoise_mask is not None:
        latent["noise_mask"] = denoise_mask
    return models.sample(guider=guider, noise=noise, sampler=sampler, sigmas=sigmas, latent=latent, callback=callback, seed=seed)


def run_sampler(sampler, guider, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False):
    """`sampler.sample` as an `inner_sample` of a pack calls it: with latents as the network sees them, which the engine does not
    take."""
    if not isinstance(guider, CFGGuider):
        raise Unsupported("a sampler's `sample` is called with a guider of comfy.samplers")
    inner = guider.model_patcher.model
    if latent_image is None:
        given = noise * 0
    else:
        numbers = latent_image.numpy() if isinstance(latent_image, values.MissingTorch) else latent_image
        given = inner.process_latent_out(latent_image) if numbers.any() else latent_image
    made = _run(guider, noise, given, sampler, sigmas, denoise_mask, callback, (extra_args or {}).get("seed"))
    return inner.process_latent_in(made)


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
        if self.scheduler not in _OURS[1]:
            return self._own_sigmas(steps)
        return models.method("model.sigmas", model=self.model, scheduler=self.scheduler, sampler=self.sampler, steps=steps)

    def _own_sigmas(self, steps):
        """Of a schedule that a pack added."""
        skips = self.sampler in self.DISCARD_PENULTIMATE_SIGMA_SAMPLERS
        levels = _AddedSchedule(self.scheduler).fresco_sigmas(self.model, steps + skips)
        levels = callbacks.floats(levels)
        if skips:
            del levels[-2]
        return callbacks.numbers(levels)

    def set_steps(self, steps, denoise=None):
        self.steps, self.denoise = steps, 1.0 if denoise is None else denoise

    @property
    def sigmas(self):
        return self._sigmas(None, None, False)

    def _sigmas(self, start, last, finish):
        if self.scheduler not in _OURS[1]:
            if self.denoise <= 0.0:
                return callbacks.numbers([])
            steps = self.steps if self.denoise > 0.9999 else int(self.steps / self.denoise)
            levels = callbacks.floats(self._own_sigmas(steps))[-(self.steps + 1) :]
            if last is not None and last < len(levels) - 1:
                levels = levels[: last + 1]
                if finish:
                    levels[-1] = 0.0
            return callbacks.numbers(levels[start or 0 :])
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
            added = vars(k_diffusion_sampling).get(f"sample_{own}")
            if added is not None and not hasattr(added, "fresco_sampler"):
                own = ksampler(own)
        return models.sample(
            model=self.model, noise=noise, cfg=cfg, positive=positive, negative=negative, sampler=own, sigmas=sigmas, latent=latent,
            callback=callback, seed=seed,
        )


def _is_own(value):
    return isinstance(value, CFGGuider)


__all__ = ["KSampler", "values"]
__getattr__ = fallback(__name__)
