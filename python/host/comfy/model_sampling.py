"""Noise levels and what a network's output means, by the formulas of the papers. Works on tensors, arrays and plain numbers."""

import math

from fresco_host import values
from fresco_host.callbacks import numbers
from fresco_host.placeholders import fallback


def _shaped(sigma, like):
    """One factor for each item of a batch."""
    if hasattr(sigma, "reshape") and getattr(sigma, "shape", ()) not in ((), None) and hasattr(like, "shape"):
        return sigma.reshape((sigma.shape[0],) + (1,) * (len(like.shape) - 1))
    return sigma


class EPS:
    fresco_prediction = "EPS"

    def calculate_input(self, sigma, noise):
        sigma = _shaped(sigma, noise)
        return noise / (sigma**2 + self.sigma_data**2) ** 0.5

    def calculate_denoised(self, sigma, model_output, model_input):
        return model_input - model_output * _shaped(sigma, model_output)

    def noise_scaling(self, sigma, noise, latent_image, max_denoise=False):
        sigma = _shaped(sigma, noise)
        scaled = noise * (1.0 + sigma**2.0) ** 0.5 if max_denoise else noise * sigma
        return scaled + latent_image

    def inverse_noise_scaling(self, sigma, latent):
        return latent


class V_PREDICTION(EPS):
    fresco_prediction = "V_PREDICTION"

    def calculate_denoised(self, sigma, model_output, model_input):
        sigma, data = _shaped(sigma, model_output), self.sigma_data
        total = sigma**2 + data**2
        return model_input * data**2 / total - model_output * sigma * data / total**0.5


class EDM(V_PREDICTION):
    fresco_prediction = "EDM"

    def calculate_denoised(self, sigma, model_output, model_input):
        sigma, data = _shaped(sigma, model_output), self.sigma_data
        total = sigma**2 + data**2
        return model_input * data**2 / total + model_output * sigma * data / total**0.5


class CONST:
    fresco_prediction = "CONST"

    def calculate_input(self, sigma, noise):
        return noise

    def calculate_denoised(self, sigma, model_output, model_input):
        return model_input - model_output * _shaped(sigma, model_output)

    def noise_scaling(self, sigma, noise, latent_image, max_denoise=False):
        sigma = _shaped(sigma, noise)
        return sigma * noise + (1.0 - sigma) * latent_image

    def inverse_noise_scaling(self, sigma, latent):
        return latent / (1.0 - _shaped(sigma, latent))


class X0(EPS):
    fresco_prediction = "X0"

    def calculate_denoised(self, sigma, model_output, model_input):
        return model_output


class IMG_TO_IMG(X0):
    fresco_prediction = "IMG_TO_IMG"

    def calculate_input(self, sigma, noise):
        return noise


class COSMOS_RFLOW:
    fresco_prediction = "COSMOS_RFLOW"

    def calculate_input(self, sigma, noise):
        sigma = _shaped(sigma, noise)
        return noise * (1.0 - sigma / (sigma + 1.0))

    def calculate_denoised(self, sigma, model_output, model_input):
        sigma = _shaped(sigma, model_output)
        sigma = sigma / (sigma + 1.0)
        return model_input * (1.0 - sigma) - model_output * sigma

    def noise_scaling(self, sigma, noise, latent_image, max_denoise=False):
        return noise * _shaped(sigma, noise) + latent_image

    def inverse_noise_scaling(self, sigma, latent):
        return latent


def _settings(config):
    return getattr(config, "sampling_settings", None) or {}


class _Levels:
    """What all ways to space noise levels have."""

    sigma_data = 1.0
    fresco_spacing = ""

    def __init__(self, model_config=None):
        self.fresco_parameters = {}

    @property
    def sigma_min(self):
        return self._list[0] if isinstance(self.sigmas, values.MissingTorch) else self.sigmas[0]

    @property
    def sigma_max(self):
        return self._list[-1] if isinstance(self.sigmas, values.MissingTorch) else self.sigmas[-1]

    def fresco_describe(self):
        """What Fresco needs to sample in this way."""
        if not hasattr(self, "fresco_prediction"):
            from fresco_host import Unsupported

            raise Unsupported(f"{type(self).__name__} has no prediction of comfy.model_sampling (EPS, V_PREDICTION, ...) among its bases")
        described = {"spacing": self.fresco_spacing, "prediction": self.fresco_prediction, "sigma_data": float(self.sigma_data)}
        described.update(self.fresco_parameters)
        if "unknown" in described:
            from fresco_host import Unsupported

            raise Unsupported(f"{type(self).__name__} has {described['unknown']}, with which Fresco does not sample")
        return described


def _betas(schedule, timesteps, first, last):
    """How much noise each timestep adds."""
    parts = [i / (timesteps - 1) for i in range(timesteps)]
    if schedule in ("linear", "sqrt_linear"):
        power = 2 if schedule == "linear" else 1
        start, end = first ** (1 / power), last ** (1 / power)
        return [(start + (end - start) * part) ** power for part in parts]
    if schedule == "sqrt":
        return [(first + (last - first) * part) ** 0.5 for part in parts]
    if schedule == "cosine":
        s = 8e-3
        kept = [math.cos((i / timesteps + s) / (1 + s) * math.pi / 2) ** 2 for i in range(timesteps + 1)]
        return [min(max(1 - after / before, 0.0), 0.999) for before, after in zip(kept, kept[1:])]
    raise ValueError(f"beta_schedule is linear, sqrt_linear, sqrt or cosine, not {schedule!r}")


def _sigmas_of(betas):
    product, levels = 1.0, []
    for beta in betas:
        product *= 1.0 - float(beta)
        levels.append(((1.0 - product) / product) ** 0.5)
    return levels


def rescale_zero_terminal_snr_sigmas(sigmas):
    if hasattr(sigmas, "tolist"):
        return numbers(rescale_zero_terminal_snr_sigmas(sigmas.tolist()))
    root = [(1.0 / (s * s + 1.0)) ** 0.5 for s in sigmas]
    first, last = root[0], root[-1]
    alphas = [((r - last) * first / (first - last)) ** 2 for r in root]
    alphas[-1] = 4.8973451890853435e-08
    return [((1.0 - a) / a) ** 0.5 for a in alphas]


class ModelSamplingDiscrete(_Levels):
    fresco_spacing = "ModelSamplingDiscrete"

    def __init__(self, model_config=None, zsnr=None):
        super().__init__(model_config)
        settings = _settings(model_config)
        zsnr = bool(settings.get("zsnr", False) if zsnr is None else zsnr)
        self._register_schedule(
            given_betas=None, beta_schedule=settings.get("beta_schedule", "linear"), timesteps=settings.get("timesteps", 1000),
            linear_start=settings.get("linear_start", 0.00085), linear_end=settings.get("linear_end", 0.012), zsnr=zsnr,
        )

    def _register_schedule(
        self, given_betas=None, beta_schedule="linear", timesteps=1000, linear_start=1e-4, linear_end=2e-2, cosine_s=8e-3, zsnr=False
    ):
        betas = _betas(beta_schedule, timesteps, linear_start, linear_end) if given_betas is None else given_betas
        levels = _sigmas_of(betas)
        self.linear_start, self.linear_end = linear_start, linear_end
        described = {"zsnr": zsnr}
        usual = beta_schedule == "linear" and (linear_start, linear_end) == (0.00085, 0.012)
        if given_betas is not None or timesteps != 1000 or beta_schedule not in ("linear", "sqrt_linear") or (zsnr and not usual):
            described["unknown"] = "betas of its own"
        elif not usual:
            described.update(betas=beta_schedule, first=float(linear_start), last=float(linear_end))
        self.set_sigmas(rescale_zero_terminal_snr_sigmas(levels) if zsnr else levels)
        self.fresco_parameters = described

    def set_sigmas(self, sigmas):
        self._list = sigmas.tolist() if hasattr(sigmas, "tolist") else list(sigmas)
        self.sigmas = numbers(self._list)
        self.num_timesteps = len(self._list)

    @property
    def log_sigmas(self):
        return numbers([math.log(s) for s in self._list])

    def timestep(self, sigma):
        levels = [math.log(s) for s in self._list]

        def nearest(one):
            wanted = math.log(float(one))
            return min(range(len(levels)), key=lambda i: abs(levels[i] - wanted))

        return _each(nearest, sigma)

    def sigma(self, timestep):
        def at(one):
            t = min(max(float(one), 0), len(self._list) - 1)
            low, high = math.floor(t), math.ceil(t)
            part = t - low
            return math.exp((1 - part) * math.log(self._list[low]) + part * math.log(self._list[high]))

        return _each(at, timestep)

    def percent_to_sigma(self, percent):
        if percent <= 0.0:
            return 999999999.9
        if percent >= 1.0:
            return 0.0
        return float(self.sigma((1.0 - percent) * 999.0))


def _each(function, value):
    """For a plain number or for every item of a tensor."""
    if isinstance(value, (int, float)) or getattr(value, "shape", None) == ():
        return function(value)
    made = numbers([function(one) for one in (value.tolist() if hasattr(value, "tolist") else value)])
    return made.to(value.device) if hasattr(value, "device") and hasattr(made, "to") else made


class ModelSamplingDiscreteDistilled(ModelSamplingDiscrete):
    """Some of the timesteps of a model, as one that was distilled to few steps knows them."""

    fresco_spacing = "ModelSamplingDiscreteDistilled"
    original_timesteps = 50

    def __init__(self, model_config=None, zsnr=None):
        super().__init__(model_config, zsnr)
        described = self.fresco_parameters
        self.skip_steps = self.num_timesteps // self.original_timesteps
        levels = self._list
        self.set_sigmas([levels[-1 - i * self.skip_steps] for i in range(self.original_timesteps)][::-1])
        if self.original_timesteps != 50 or "betas" in described:
            described["unknown"] = f"{self.original_timesteps} timesteps"
        self.fresco_parameters = described

    def timestep(self, sigma):
        place = super().timestep(sigma)
        return place * self.skip_steps + (self.skip_steps - 1)

    def sigma(self, timestep):
        least = self.skip_steps - 1
        return _each(lambda t: float(ModelSamplingDiscrete.sigma(self, (float(t) - least) / self.skip_steps)), timestep)


class LCM(EPS):
    """What a model of consistency gives: a mixture of the latent and of the picture in it."""

    fresco_prediction = "LCM"

    def calculate_denoised(self, sigma, model_output, model_input):
        timestep = _shaped(self.timestep(sigma), model_output)
        sigma = _shaped(sigma, model_output)
        clean = model_input - model_output * sigma
        scaled, data = timestep * 10.0, 0.5
        c_skip = data**2 / (scaled**2 + data**2)
        c_out = scaled / (scaled**2 + data**2) ** 0.5
        return c_out * clean + c_skip * model_input


class ModelSamplingDiscreteEDM(ModelSamplingDiscrete):
    def timestep(self, sigma):
        return _each(lambda s: 0.25 * math.log(float(s)), sigma)

    def sigma(self, timestep):
        return _each(lambda t: math.exp(float(t) / 0.25), timestep)


class ModelSamplingContinuousEDM(_Levels):
    fresco_spacing = "ModelSamplingContinuousEDM"

    def __init__(self, model_config=None):
        super().__init__(model_config)
        settings = _settings(model_config)
        self.set_parameters(settings.get("sigma_min", 0.002), settings.get("sigma_max", 120.0), settings.get("sigma_data", 1.0))

    def set_parameters(self, sigma_min, sigma_max, sigma_data):
        self.sigma_data = sigma_data
        low, high = math.log(sigma_min), math.log(sigma_max)
        self._list = [math.exp(low + (high - low) * i / 999) for i in range(1000)]
        self.sigmas = numbers(self._list)
        self.fresco_parameters = {"sigma_min": float(sigma_min), "sigma_max": float(sigma_max)}

    def timestep(self, sigma):
        return _each(lambda s: 0.25 * math.log(float(s)), sigma)

    def sigma(self, timestep):
        return _each(lambda t: math.exp(float(t) / 0.25), timestep)

    def percent_to_sigma(self, percent):
        if percent <= 0.0:
            return 999999999.9
        if percent >= 1.0:
            return 0.0
        low, high = math.log(self._list[0]), math.log(self._list[-1])
        return math.exp((high - low) * (1.0 - percent) + low)


class ModelSamplingContinuousV(ModelSamplingContinuousEDM):
    fresco_spacing = "ModelSamplingContinuousV"

    def timestep(self, sigma):
        return _each(lambda s: math.atan(float(s)) / math.pi * 2, sigma)

    def sigma(self, timestep):
        return _each(lambda t: math.tan(float(t) * math.pi / 2), timestep)


def time_snr_shift(alpha, t):
    return t if alpha == 1.0 else alpha * t / (1 + (alpha - 1) * t)


class ModelSamplingDiscreteFlow(_Levels):
    fresco_spacing = "ModelSamplingDiscreteFlow"

    def __init__(self, model_config=None):
        super().__init__(model_config)
        settings = _settings(model_config)
        self.set_parameters(shift=settings.get("shift", 1.0), multiplier=settings.get("multiplier", 1000))

    def set_parameters(self, shift=1.0, timesteps=1000, multiplier=1000):
        self.shift, self.multiplier = shift, multiplier
        self._list = [time_snr_shift(shift, i / timesteps) for i in range(1, timesteps + 1)]
        self.sigmas = numbers(self._list)
        self.fresco_parameters = {"shift": float(shift), "multiplier": float(multiplier)}

    def timestep(self, sigma):
        return sigma * self.multiplier

    def sigma(self, timestep):
        return time_snr_shift(self.shift, timestep / self.multiplier)

    def percent_to_sigma(self, percent):
        if percent <= 0.0:
            return 1.0
        return 0.0 if percent >= 1.0 else time_snr_shift(self.shift, 1.0 - percent)


def flux_time_shift(mu, sigma, t):
    return math.exp(mu) / (math.exp(mu) + (1 / t - 1) ** sigma)


class ModelSamplingFlux(_Levels):
    fresco_spacing = "ModelSamplingFlux"

    def __init__(self, model_config=None):
        super().__init__(model_config)
        self.set_parameters(shift=_settings(model_config).get("shift", 1.15))

    def set_parameters(self, shift=1.15, timesteps=10000):
        self.shift = shift
        self._list = [flux_time_shift(shift, 1.0, i / timesteps) for i in range(1, timesteps + 1)]
        self.sigmas = numbers(self._list)
        self.fresco_parameters = {"shift": float(shift)}

    def timestep(self, sigma):
        return sigma

    def sigma(self, timestep):
        return flux_time_shift(self.shift, 1.0, timestep)

    def percent_to_sigma(self, percent):
        if percent <= 0.0:
            return 1.0
        return 0.0 if percent >= 1.0 else flux_time_shift(self.shift, 1.0, 1.0 - percent)


class ModelSamplingCosmosRFlow(ModelSamplingContinuousEDM):
    fresco_spacing = "ModelSamplingCosmosRFlow"

    def timestep(self, sigma):
        return sigma / (sigma + 1)

    def sigma(self, timestep):
        return timestep / (1 - timestep)


class StableCascadeSampling(ModelSamplingDiscrete):
    fresco_spacing = "StableCascadeSampling"

    def __init__(self, model_config=None):
        _Levels.__init__(self, model_config)
        self.set_parameters(_settings(model_config).get("shift", 1.0))

    def set_parameters(self, shift=1.0, cosine_s=8e-3):
        self.shift, self.cosine_s = shift, cosine_s
        self.set_sigmas([self.sigma((i + 1) / 10000) for i in range(10000)])
        self.fresco_parameters = {"shift": float(shift)}

    def sigma(self, timestep):
        s = self.cosine_s

        def at(t):
            first = math.cos(s / (1 + s) * math.pi * 0.5) ** 2
            alpha = math.cos((float(t) + s) / (1 + s) * math.pi * 0.5) ** 2 / first
            if self.shift != 1.0:
                ratio = math.log(alpha / (1 - alpha)) + 2 * math.log(1.0 / self.shift)
                alpha = 1 / (1 + math.exp(-ratio))
            alpha = min(max(alpha, 0.0001), 0.9999)
            return ((1 - alpha) / alpha) ** 0.5

        return _each(at, timestep)


_KINDS = {cls.fresco_prediction: cls for cls in (EPS, V_PREDICTION, EDM, CONST, X0, IMG_TO_IMG, COSMOS_RFLOW, LCM)}
_SPACINGS = {
    cls.fresco_spacing: cls
    for cls in (
        ModelSamplingDiscrete, ModelSamplingDiscreteDistilled, ModelSamplingContinuousEDM, ModelSamplingContinuousV, ModelSamplingDiscreteFlow, ModelSamplingFlux,
        ModelSamplingCosmosRFlow, StableCascadeSampling,
    )
}


def _of_engine(facts):
    """The way in which the engine samples a model, as an object of these classes."""
    spacing = _SPACINGS.get(facts["spacing"], ModelSamplingDiscrete)
    made = type(spacing.__name__, (spacing, _KINDS.get(facts["prediction"], EPS)), {"__module__": __name__})()
    made.sigma_data = facts["sigma_data"]
    made.noise_scale = facts.get("noise_scale", 1.0)
    if facts.get("shift") is not None:
        given = {"shift": facts["shift"]}
        if facts.get("multiplier") is not None:
            given["multiplier"] = facts["multiplier"]
        made.set_parameters(**given)
    elif isinstance(made, ModelSamplingContinuousEDM):
        made.set_parameters(facts["sigma_min"], facts["sigma_max"], facts["sigma_data"])
    # The engine's numbers are the ones that are sampled with.
    made.sigmas = facts["sigmas"]
    if hasattr(made, "_list"):
        import struct

        table = facts["sigmas"]
        if isinstance(table, values.MissingTorch):
            made._list = list(struct.unpack(f"<{table.shape[0]}f", bytes(table._buffer)))
        else:
            made._list = table.tolist()
    return made


__getattr__ = fallback(__name__)
