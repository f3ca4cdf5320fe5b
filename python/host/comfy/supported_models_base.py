"""What a family of models is, as data: how its files are recognised and what is sampled with."""

import comfy.latent_formats
import comfy.model_base
import comfy.utils
from fresco_host import Unsupported
from fresco_host.placeholders import fallback


def _types(names):
    """Types of torch by their names; none where there is no torch."""
    try:
        import torch
    except ModuleNotFoundError:
        return []
    return [getattr(torch, name) for name in names.split()]


class ClipTarget:
    """Which classes read and encode a family's texts."""

    def __init__(self, tokenizer, clip):
        self.clip = clip
        self.tokenizer = tokenizer
        self.params = {}


class BASE:
    unet_config = {}
    unet_extra_config = {"num_heads": -1, "num_head_channels": 64}
    required_keys = {}
    clip_prefix = []
    clip_vision_prefix = None
    noise_aug_config = None
    sampling_settings = {}
    latent_format = comfy.latent_formats.LatentFormat
    vae_key_prefix = ["first_stage_model."]
    text_encoder_key_prefix = ["cond_stage_model."]
    supported_inference_dtypes = _types("float16 bfloat16 float32")
    memory_usage_factor = 2.0
    manual_cast_dtype = None
    custom_operations = None
    quant_config = None
    scaled_fp8 = None
    optimizations = {"fp8": False}
    # The class of comfy.model_base, and the type that its files have.
    fresco_base = "BaseModel"
    fresco_type = "EPS"

    @classmethod
    def matches(cls, unet_config, state_dict=None):
        for key, value in cls.unet_config.items():
            if key not in unet_config or value != unet_config[key]:
                return False
        return state_dict is None or all(key in state_dict for key in cls.required_keys)

    def __init__(self, unet_config):
        self.unet_config = dict(unet_config)
        self.sampling_settings = dict(self.sampling_settings)
        self.latent_format = self.latent_format()
        self.optimizations = dict(self.optimizations)
        self.unet_config.update(self.unet_extra_config)

    def model_type(self, state_dict, prefix=""):
        return comfy.model_base.ModelType[self.fresco_type]

    def inpaint_model(self):
        return self.unet_config["in_channels"] > 4

    def get_model(self, state_dict, prefix="", device=None):
        raise Unsupported(
            f"comfy.supported_models.{type(self).__name__}.get_model needs a torch model inside the worker (level L3b); load the file "
            "with comfy.sd.load_checkpoint_guess_config or load_diffusion_model, then Fresco samples with it"
        )

    def clip_target(self, state_dict={}):
        return None

    def process_clip_state_dict(self, state_dict):
        prefixes = {prefix: "" for prefix in self.text_encoder_key_prefix}
        return comfy.utils.state_dict_prefix_replace(state_dict, prefixes, filter_keys=True)

    def process_unet_state_dict(self, state_dict):
        return state_dict

    def process_vae_state_dict(self, state_dict):
        return state_dict

    def _with_prefix(self, state_dict, prefix):
        return comfy.utils.state_dict_prefix_replace(state_dict, {"": prefix})

    def process_clip_state_dict_for_saving(self, state_dict):
        return self._with_prefix(state_dict, self.text_encoder_key_prefix[0])

    def process_clip_vision_state_dict_for_saving(self, state_dict):
        return state_dict if self.clip_vision_prefix is None else self._with_prefix(state_dict, self.clip_vision_prefix)

    def process_unet_state_dict_for_saving(self, state_dict):
        return self._with_prefix(state_dict, "model.diffusion_model.")

    def process_vae_state_dict_for_saving(self, state_dict):
        return self._with_prefix(state_dict, self.vae_key_prefix[0])

    def set_inference_dtype(self, dtype, manual_cast_dtype):
        self.unet_config["dtype"] = dtype
        self.manual_cast_dtype = manual_cast_dtype


__getattr__ = fallback(__name__)
