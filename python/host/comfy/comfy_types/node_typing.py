"""Types that packs annotate with."""

import enum
from typing import Any, TypedDict


class StrEnum(str, enum.Enum):
    def __str__(self):
        return self.value


class IO(StrEnum):
    STRING = "STRING"
    IMAGE = "IMAGE"
    MASK = "MASK"
    LATENT = "LATENT"
    BOOLEAN = "BOOLEAN"
    INT = "INT"
    FLOAT = "FLOAT"
    COMBO = "COMBO"
    CONDITIONING = "CONDITIONING"
    SAMPLER = "SAMPLER"
    SIGMAS = "SIGMAS"
    GUIDER = "GUIDER"
    NOISE = "NOISE"
    CLIP = "CLIP"
    CONTROL_NET = "CONTROL_NET"
    VAE = "VAE"
    MODEL = "MODEL"
    LORA_MODEL = "LORA_MODEL"
    LOSS_MAP = "LOSS_MAP"
    CLIP_VISION = "CLIP_VISION"
    CLIP_VISION_OUTPUT = "CLIP_VISION_OUTPUT"
    STYLE_MODEL = "STYLE_MODEL"
    GLIGEN = "GLIGEN"
    UPSCALE_MODEL = "UPSCALE_MODEL"
    AUDIO = "AUDIO"
    WEBCAM = "WEBCAM"
    POINT = "POINT"
    FACE_ANALYSIS = "FACE_ANALYSIS"
    BBOX = "BBOX"
    SEGS = "SEGS"
    VIDEO = "VIDEO"
    ANY = "*"
    NUMBER = "FLOAT,INT"
    PRIMITIVE = "STRING,FLOAT,INT,BOOLEAN"

    def __ne__(self, other):
        if self.value == "*" or other == "*":
            return False
        if not isinstance(other, str):
            return True
        own, theirs = set(self.value.split(",")), set(str(other).split(","))
        return not (own <= theirs or theirs <= own)

    __hash__ = str.__hash__


class RemoteInputOptions(TypedDict, total=False):
    route: str


class MultiSelectOptions(TypedDict, total=False):
    placeholder: str


class InputTypeOptions(TypedDict, total=False):
    default: Any


class HiddenInputTypeDict(TypedDict, total=False):
    node_id: Any


class InputTypeDict(TypedDict, total=False):
    required: dict
    optional: dict
    hidden: dict


class ComfyNodeABC:
    DESCRIPTION: str
    CATEGORY: str
    EXPERIMENTAL: bool
    DEPRECATED: bool
    OUTPUT_NODE: bool
    INPUT_IS_LIST: bool
    OUTPUT_IS_LIST: tuple
    RETURN_TYPES: tuple
    RETURN_NAMES: tuple
    OUTPUT_TOOLTIPS: tuple
    FUNCTION: str

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}


class CheckLazyMixin:
    def check_lazy_status(self, **kwargs):
        needed = [name for name, value in kwargs.items() if value is None]
        return needed


class FileLocator(TypedDict, total=False):
    filename: str
    subfolder: str
    type: str
