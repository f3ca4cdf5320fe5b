"""Networks of the engine as packs see them: facts, formulas and names; the inside is not here."""

import enum

from fresco_host import UnsupportedAttribute
from fresco_host.placeholders import fallback


class ModelType(enum.Enum):
    EPS = 1
    V_PREDICTION = 2
    V_PREDICTION_EDM = 3
    STABLE_CASCADE = 4
    EDM = 5
    FLOW = 6
    V_PREDICTION_CONTINUOUS = 7
    FLUX = 8
    IMG_TO_IMG = 9
    FLOW_COSMOS = 10


class BaseModel:
    """What `model.model` is. Only the engine makes one."""

    def __init__(self, *args, **kwargs):
        from fresco_host import Unsupported

        raise Unsupported(f"comfy.model_base.{type(self).__name__} needs a torch model inside the worker (level L3b)")

    def process_latent_in(self, latent):
        return self.latent_format.process_in(latent)

    def process_latent_out(self, latent):
        return self.latent_format.process_out(latent)

    def memory_required(self, input_shape, cond_shapes={}):
        return 0

    def state_dict(self):
        return self.fresco_patcher.model_state_dict()

    def get_dtype(self):
        return self.fresco_patcher.model_dtype()

    @property
    def device(self):
        return self.fresco_patcher.load_device

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedAttribute(f"{type(self).__name__}.{name} needs a torch model inside the worker (level L3b)")


_NAMES = """SD21UNCLIP SDXLRefiner SVD_img2vid Stable_Zero123 SD_X4Upscaler StableCascade_C SD3 AuraFlow StableAudio1 HunyuanDiT PixArt
Flux GenmoMochi LTXV HunyuanVideo CosmosVideo CosmosPredict2 Lumina2 WAN21 Hunyuan3Dv2 HiDream Chroma ACEStep Omnigen2 QwenImage
Kandinsky5 IP2P Anima""".split()
for _name in _NAMES:
    globals()[_name] = type(_name, (BaseModel,), {"__module__": __name__})


class SDXL(BaseModel):
    pass


# Networks that are one of those with something more.
for _name, _parents in {
    "SV3D_u": (SVD_img2vid,), "SV3D_p": (SVD_img2vid,), "SD15_instructpix2pix": (IP2P, BaseModel), "SDXL_instructpix2pix": (IP2P, SDXL),  # noqa: F821
    "LotusD": (BaseModel,), "StableCascade_B": (BaseModel,), "Flux2": (Flux,), "LTXAV": (LTXV,), "HunyuanVideoI2V": (HunyuanVideo,),  # noqa: F821
    "HunyuanVideoSkyreelsI2V": (HunyuanVideo,), "HunyuanVideo15": (HunyuanVideo,), "HunyuanImage21": (HunyuanVideo,),  # noqa: F821
    "HunyuanImage21Refiner": (HunyuanVideo,), "WAN22": (WAN21,), "WAN21_Vace": (WAN21,), "WAN21_Camera": (WAN21,),  # noqa: F821
    "WAN21_HuMo": (WAN21,), "WAN22_S2V": (WAN21,), "WAN22_Animate": (WAN21,), "ChromaRadiance": (Chroma,),  # noqa: F821
    "Kandinsky5Image": (Kandinsky5,),  # noqa: F821
}.items():
    globals()[_name] = type(_name, tuple(dict.fromkeys(_parents)), {"__module__": __name__})


_TYPES = {
    "EPS": ModelType.EPS, "V_PREDICTION": ModelType.V_PREDICTION, "EDM": ModelType.EDM, "CONST": ModelType.FLOW,
    "IMG_TO_IMG": ModelType.IMG_TO_IMG, "COSMOS_RFLOW": ModelType.FLOW_COSMOS,
}


_SAMPLING = {
    ModelType.EPS: ("EPS", "ModelSamplingDiscrete"), ModelType.V_PREDICTION: ("V_PREDICTION", "ModelSamplingDiscrete"),
    ModelType.V_PREDICTION_EDM: ("V_PREDICTION", "ModelSamplingContinuousEDM"), ModelType.STABLE_CASCADE: ("EPS", "StableCascadeSampling"),
    ModelType.EDM: ("EDM", "ModelSamplingContinuousEDM"), ModelType.FLOW: ("CONST", "ModelSamplingDiscreteFlow"),
    ModelType.V_PREDICTION_CONTINUOUS: ("V_PREDICTION", "ModelSamplingContinuousV"), ModelType.FLUX: ("CONST", "ModelSamplingFlux"),
    ModelType.IMG_TO_IMG: ("IMG_TO_IMG", "ModelSamplingDiscrete"), ModelType.FLOW_COSMOS: ("COSMOS_RFLOW", "ModelSamplingCosmosRFlow"),
}


def model_sampling(model_config, model_type):
    """Noise levels and the meaning of outputs for a type of models, with a configuration's settings."""
    import comfy.model_sampling as levels

    if model_type not in _SAMPLING:
        raise ValueError(f"comfy.model_base.model_sampling takes a ModelType, not {model_type!r}")
    prediction, spacing = (getattr(levels, name) for name in _SAMPLING[model_type])

    class ModelSampling(spacing, prediction):
        pass

    return ModelSampling(model_config)


class _Shape:
    """A weight of the engine, as far as its shape goes."""

    def __init__(self, shape):
        self.shape = shape


def _config(patcher, facts, latent_format):
    """`model.model.model_config`: of the family that the weights show."""
    import comfy.model_detection
    import comfy.supported_models_base

    weights = {key: _Shape(shape) for key, shape in patcher._keys().items()}
    unet_config = comfy.model_detection.detect_unet_config(weights, "diffusion_model.")
    found = None
    if unet_config is not None:
        family = next((each for each in comfy.supported_models.models if each.matches(unet_config)), None)
        found = None if family is None else family(unet_config)
    if found is None:
        found = comfy.supported_models_base.BASE(unet_config or {})
    found.unet_config.setdefault("in_channels", facts["in_channels"])
    found.unet_config.setdefault("model_channels", facts["model_channels"])
    sampling = facts["sampling"]
    found.sampling_settings.update({key: sampling[key] for key in ("shift", "multiplier", "sigma_data") if sampling.get(key) is not None})
    found.latent_format = latent_format
    found.architecture = facts["architecture"]
    return found


def _of_engine(patcher):
    """The network behind a MODEL."""
    import comfy.latent_formats
    import comfy.model_sampling

    facts = patcher._fresco_info()
    latent_format = comfy.latent_formats._of_engine(patcher, facts["latent_format"]) if facts["latent_format"] else None
    config = _config(patcher, facts, latent_format)
    made = object.__new__(globals()[config.fresco_base])
    made.fresco_patcher = patcher
    made.latent_format = latent_format
    made.model_sampling = comfy.model_sampling._of_engine(facts["sampling"])
    made.model_sampling.fresco_patcher = patcher
    made.model_config = config
    made.model_type = _TYPES.get(facts["sampling"]["prediction"], ModelType.EPS)
    if facts["sampling"]["spacing"] == "ModelSamplingFlux":
        made.model_type = ModelType.FLUX
    made.adm_channels = config.unet_config.get("adm_in_channels") or 0
    return made


_others = fallback(__name__)


def __getattr__(name):
    if name in ("Timestep", "convert_tensor", "sdxl_pooled"):
        try:
            from comfy import _model_parts
        except ModuleNotFoundError:
            return _others(name)
        return getattr(_model_parts, name)
    return _others(name)
