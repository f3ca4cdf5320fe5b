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


_NAMES = """SD21UNCLIP SDXLRefiner SDXL SVD_img2vid SV3D_u SV3D_p Stable_Zero123 SD_X4Upscaler IP2P SDXL_instructpix2pix
LotusD StableCascade_C StableCascade_B SD3 AuraFlow StableAudio1 HunyuanDiT PixArt Flux Flux2 GenmoMochi LTXV LTXAV HunyuanVideo
HunyuanVideoI2V HunyuanVideo15 CosmosVideo CosmosPredict2 Lumina2 WAN21 WAN22 WAN21_Vace Hunyuan3Dv2 HiDream Chroma ACEStep
Omnigen2 QwenImage HunyuanImage21 Kandinsky5""".split()
for _name in _NAMES:
    globals()[_name] = type(_name, (BaseModel,), {"__module__": __name__})

# Words of the engine's names, the most particular first.
_WORDS = (
    ("refiner", "SDXLRefiner"), ("sdxl", "SDXL"), ("sd3", "SD3"), ("flux.2", "Flux2"), ("flux2", "Flux2"), ("flux", "Flux"),
    ("chroma", "Chroma"), ("lumina", "Lumina2"), ("qwen", "QwenImage"), ("wan 2.2", "WAN22"), ("wan", "WAN21"), ("ltx", "LTXV"),
    ("hidream", "HiDream"), ("hunyuanvideo", "HunyuanVideo"), ("hunyuan video", "HunyuanVideo"), ("hunyuan image", "HunyuanImage21"),
    ("omnigen", "Omnigen2"), ("cosmos", "CosmosPredict2"), ("kandinsky", "Kandinsky5"),
)
_TYPES = {
    "EPS": ModelType.EPS, "V_PREDICTION": ModelType.V_PREDICTION, "EDM": ModelType.EDM, "CONST": ModelType.FLOW,
    "IMG_TO_IMG": ModelType.IMG_TO_IMG, "COSMOS_RFLOW": ModelType.FLOW_COSMOS,
}


class _Config:
    """`model.model.model_config`."""

    def __init__(self, facts, latent_format):
        self.unet_config = {"in_channels": facts["in_channels"], "model_channels": facts["model_channels"]}
        sampling = facts["sampling"]
        self.sampling_settings = {key: sampling[key] for key in ("shift", "multiplier", "sigma_data") if sampling.get(key) is not None}
        self.latent_format = latent_format
        self.architecture = facts["architecture"]


def _of_engine(patcher):
    """The network behind a MODEL."""
    import comfy.latent_formats
    import comfy.model_sampling

    facts = patcher._fresco_info()
    text = facts["name"].lower()
    name = next((name for word, name in _WORDS if word in text), "BaseModel")
    made = object.__new__(globals()[name])
    made.fresco_patcher = patcher
    made.latent_format = comfy.latent_formats._of_engine(patcher, facts["latent_format"]) if facts["latent_format"] else None
    made.model_sampling = comfy.model_sampling._of_engine(facts["sampling"])
    made.model_sampling.fresco_patcher = patcher
    made.model_config = _Config(facts, made.latent_format)
    made.model_type = _TYPES.get(facts["sampling"]["prediction"], ModelType.EPS)
    made.adm_channels = 0
    return made


__getattr__ = fallback(__name__)
