"""Loading models, which the engine does."""

import enum
import os

import folder_paths
from fresco_host import Unsupported
from fresco_host.models import Clip as CLIP
from fresco_host.models import Vae as _Vae
from fresco_host.models import run_node
from fresco_host.placeholders import fallback


class _VaeType(type):
    def __instancecheck__(cls, value):
        return isinstance(value, _Vae)


class VAE(metaclass=_VaeType):
    """A VAE from a state dictionary that came from a file: the engine loads that file."""

    def __new__(cls, sd=None, device=None, config=None, dtype=None, metadata=None):
        name = getattr(sd, "fresco_vae", None) or ("pixel_space" if sd is not None and "pixel_space_vae" in sd else None)
        if name is not None:
            return run_node("VAELoader", {"vae_name": name})[0]
        path = getattr(sd, "fresco_path", None)
        if path is None:
            raise Unsupported("comfy.sd.VAE: only the content of a file (comfy.utils.load_torch_file) can be loaded")
        return load_vae(path)


class CLIPType(enum.Enum):
    STABLE_DIFFUSION = 1
    STABLE_CASCADE = 2
    SD3 = 3
    STABLE_AUDIO = 4
    HUNYUAN_DIT = 5
    FLUX = 6
    MOCHI = 7
    LTXV = 8
    HUNYUAN_VIDEO = 9
    PIXART = 10
    COSMOS = 11
    LUMINA2 = 12
    WAN = 13
    HIDREAM = 14
    CHROMA = 15
    ACE = 16
    OMNIGEN2 = 17
    QWEN_IMAGE = 18
    HUNYUAN_IMAGE = 19
    HUNYUAN_VIDEO_15 = 20
    OVIS = 21
    KANDINSKY5 = 22
    KANDINSKY5_IMAGE = 23
    NEWBIE = 24


def _name(path, folders):
    """The name under which the engine knows a file."""
    path = os.path.abspath(path)
    for folder in folders:
        for root in folder_paths.get_folder_paths(folder):
            root = os.path.abspath(root)
            if path.startswith(root + os.sep):
                return os.path.relpath(path, root)
    raise Unsupported(f"{path} is not in a folder of {', '.join(folders)}; Fresco loads models from those only")


def load_checkpoint_guess_config(
    ckpt_path, output_vae=True, output_clip=True, output_clipvision=False, embedding_directory=None, output_model=True,
    model_options={}, te_model_options={},
):
    model, clip, vae = run_node("CheckpointLoaderSimple", {"ckpt_name": _name(ckpt_path, ["checkpoints"])})[:3]
    return model, clip if output_clip else None, vae if output_vae else None, None


def load_checkpoint(config_path=None, ckpt_path=None, output_vae=True, output_clip=True, embedding_directory=None, **_):
    return load_checkpoint_guess_config(ckpt_path, output_vae, output_clip)[:3]


def load_diffusion_model(unet_path, model_options={}):
    name = _name(unet_path, ["diffusion_models"])
    return run_node("UNETLoader", {"unet_name": name, "weight_dtype": "default"})[0]


load_unet = load_diffusion_model

# Formats of weights that the engine's loader offers.
_WEIGHTS = ("fp8_e4m3fn", "fp8_e5m2")


def load_diffusion_model_state_dict(sd, model_options={}, metadata=None, disable_dynamic=False):
    """A model from the content of a file, which the engine loads itself."""
    path = getattr(sd, "fresco_path", None)
    if path is None or len(sd) != sd.fresco_size:
        raise Unsupported(
            "comfy.sd.load_diffusion_model_state_dict: only the unchanged content of a file (comfy.utils.load_torch_file) can be loaded"
        )
    if model_options.get("custom_operations") is not None:
        raise Unsupported("comfy.sd.load_diffusion_model_state_dict: layers of a pack's own (custom_operations) do not run in Fresco")
    dtype = str(model_options.get("dtype")).rpartition(".")[2].replace("float8", "fp8")
    try:
        name = _name(path, ["diffusion_models"])
    except Unsupported:
        # The model of a whole checkpoint.
        return run_node("CheckpointLoaderSimple", {"ckpt_name": _name(path, ["checkpoints"])})[0]
    return run_node("UNETLoader", {"unet_name": name, "weight_dtype": dtype if dtype in _WEIGHTS else "default"})[0]


def load_clip(ckpt_paths, embedding_directory=None, clip_type=CLIPType.STABLE_DIFFUSION, model_options={}):
    names = [_name(path, ["text_encoders"]) for path in ckpt_paths]
    kind = clip_type.name.lower()
    if len(names) == 1:
        return run_node("CLIPLoader", {"clip_name": names[0], "type": kind})[0]
    several = {2: "DualCLIPLoader", 3: "TripleCLIPLoader", 4: "QuadrupleCLIPLoader"}.get(len(names))
    if several is None:
        raise Unsupported(f"comfy.sd.load_clip: {len(names)} files are none, one to four were expected")
    arguments = {f"clip_name{number + 1}": name for number, name in enumerate(names)}
    if len(names) == 2:
        arguments["type"] = kind
    return run_node(several, arguments)[0]


def load_lora_for_models(model, clip, lora, strength_model, strength_clip):
    """Both with a LoRA: from its file where it is known, from its tensors otherwise."""
    import comfy.lora
    from fresco_host.models import method

    path = getattr(lora, "fresco_path", None)
    if path is not None and len(lora) == lora.fresco_size:
        given = {"path": path, "strength_model": float(strength_model), "strength_clip": float(strength_clip)}
        if model is not None:
            given["model"] = model
        if clip is not None:
            given["clip"] = clip
        changed = method("lora.file", **given)
        return changed[0], changed[1]
    names = {}
    if model is not None:
        names = comfy.lora.model_lora_keys_unet(model, names)
    if clip is not None:
        names = comfy.lora.model_lora_keys_clip(clip, names)
    loaded = comfy.lora.load_lora(lora, names)
    new_model = new_clip = None
    if model is not None:
        new_model = model.clone()
        new_model.add_patches(loaded, strength_model)
    if clip is not None:
        new_clip = clip.clone()
        new_clip.add_patches(loaded, strength_clip)
    return new_model, new_clip


def load_controlnet(ckpt_path, model=None):
    import comfy.controlnet

    return comfy.controlnet.load_controlnet(ckpt_path, model)


def load_style_model(ckpt_path):
    return run_node("StyleModelLoader", {"style_model_name": _name(ckpt_path, ["style_models"])})[0]


def load_gligen(ckpt_path):
    return run_node("GLIGENLoader", {"gligen_name": _name(ckpt_path, ["gligen"])})[0]


def load_vae(ckpt_path):
    return run_node("VAELoader", {"vae_name": _name(ckpt_path, ["vae"])})[0]


__all__ = ["CLIP", "VAE", "CLIPType"]
__getattr__ = fallback(__name__)
