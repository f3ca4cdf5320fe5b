"""Attributes and further methods that the host's built-in classes have besides the method that runs them."""

from . import Unsupported, guides


class _Choices:
    """A list on the class and on its objects: the choices of an input."""

    def __init__(self, node, names):
        self.node, self.names = node, names
        self.known = None

    def __get__(self, instance, cls):
        # One list for all, as a class attribute is.
        if self.known is None:
            from . import builtin

            entries, _ = builtin.declared(self.node)
            name = next((name for name in self.names if name in entries), None)
            if name is None:
                raise AttributeError(f"{self.node} has no input {' or '.join(self.names)}")
            self.known = list(builtin.choices(entries[name]) or ())
        return self.known


class _Later:
    """A value that is made when somebody looks."""

    def __init__(self, make):
        self.make = make

    def __get__(self, instance, cls):
        return self.make(cls)


def _inner(place):
    """A function of the host that works on what is inside a network, or that nothing outside of it needs."""

    def function(*args, **kwargs):
        raise Unsupported(f"{place} cannot be called from Python in Fresco; run the node instead")

    function.__name__ = place.rpartition(".")[2]
    return staticmethod(function)


def _through_execute(cls, *args, **kwargs):
    return cls.execute(*args, **kwargs).result


# Small autoencoders


def _vae_list(*_):
    from . import builtin

    return list(builtin.choices(builtin.declared("VAELoader", fresh=True)[0]["vae_name"]))


_TAESD = {"taesd": (0.18215, 0.0), "taesdxl": (0.13025, 0.0), "taesd3": (1.5305, 0.0609), "taef1": (0.3611, 0.1159)}


def _load_taesd(name):
    """Both halves of a small autoencoder in one dictionary; the engine knows it by its name."""
    import comfy.utils
    import folder_paths
    import torch

    files, content = folder_paths.get_filename_list("vae_approx"), comfy.utils.FileContent()
    for half in ("encoder", "decoder"):
        file = next((file for file in files if file.startswith(f"{name}_{half}.")), None)
        if file is None:
            raise FileNotFoundError(f"{name} needs the file {name}_{half}.safetensors or .pth in models/vae_approx")
        loaded = comfy.utils.load_torch_file(folder_paths.get_full_path_or_raise("vae_approx", file))
        content.update({f"taesd_{half}.{key}": value for key, value in loaded.items()})
    scale, shift = _TAESD.get(name, (1.0, 0.0))
    content.update(vae_scale=torch.tensor(scale), vae_shift=torch.tensor(shift))
    content.fresco_vae = name
    return content


# Pictures over each other


def _blend_g(x):
    import torch

    return torch.where(x <= 0.25, ((16 * x - 12) * x + 4) * x, torch.sqrt(x))


def _blend(a, b, mode):
    import torch

    if mode == "normal":
        return b
    if mode == "multiply":
        return a * b
    if mode == "screen":
        return 1 - (1 - a) * (1 - b)
    if mode == "overlay":
        return torch.where(a <= 0.5, 2 * a * b, 1 - 2 * (1 - a) * (1 - b))
    if mode == "soft_light":
        return torch.where(b <= 0.5, a - (1 - 2 * b) * a * (1 - a), a + (2 * b - 1) * (_blend_g(a) - a))
    if mode == "difference":
        return a - b
    raise ValueError(f"Unsupported blend mode: {mode}")


def _latent_blend(self, img1, img2, mode):
    if mode != "normal":
        raise ValueError(f"Unsupported blend mode: {mode}")
    return img2


# Batches of latents


def _get_batch(latents, list_ind, offset):
    """Samples, mask and numbers of one latent of a list."""
    import torch

    latent = latents[list_ind]
    samples, shape = latent["samples"], latent["samples"].shape
    mask = latent.get("noise_mask")
    mask = torch.ones((shape[0], 1, shape[2] * 8, shape[3] * 8), device="cpu") if mask is None else mask
    if mask.shape[-1] != shape[-1] * 8 or mask.shape[-2] != shape[-2] * 8:
        mask = mask.reshape((-1, 1, mask.shape[-2], mask.shape[-1]))
        mask = torch.nn.functional.interpolate(mask, size=(shape[-2] * 8, shape[-1] * 8), mode="bilinear")
    if mask.shape[0] < samples.shape[0]:
        mask = mask.repeat((shape[0] - 1) // mask.shape[0] + 1, 1, 1, 1)[: shape[0]]
    numbers = latent.get("batch_index") or [number + offset for number in range(shape[0])]
    return samples, mask, numbers


def _get_slices(indexable, num, batch_size):
    slices = [indexable[place * batch_size : (place + 1) * batch_size] for place in range(num)]
    rest = indexable[num * batch_size :] if num * batch_size < len(indexable) else None
    return slices, rest


def _slice_batch(batch, num, batch_size):
    return list(zip(*(_get_slices(part, num, batch_size) for part in batch)))


def _cat_batch(batch1, batch2):
    import torch

    if batch1[0] is None:
        return batch2
    return [torch.cat((a, b)) if torch.is_tensor(a) else a + b for a, b in zip(batch1, batch2)]


_SYSTEM_PROMPT = {
    "superior": "You are an assistant designed to generate superior images with the superior degree of image-text alignment "
    "based on textual prompts or user prompts.",
    "alignment": "You are an assistant designed to generate high-quality images with the highest degree of image-text alignment "
    "based on textual prompts.",
}


def _patchifier(cls):
    from comfy.ldm.lightricks.symmetric_patchifier import SymmetricPatchifier

    return SymmetricPatchifier(1)


# By the name of the Python class.
_PARTS = {
    "VAELoader": {
        "video_taes": ["taehv", "lighttaew2_2", "lighttaew2_1", "lighttaehy1_5"], "image_taes": list(_TAESD),
        "vae_list": staticmethod(_vae_list), "load_taesd": staticmethod(_load_taesd),
    },
    "LatentBlend": {"blend_mode": _latent_blend},
    "AlignYourStepsScheduler": {"get_sigmas": classmethod(_through_execute)},
    "Canny": {"detect_edge": classmethod(_through_execute)},
    "SaveAnimatedWEBP": {"COMPRESS_METHODS": {"default": 4, "fastest": 0, "slowest": 6}},
    "Blend": {"blend_mode": staticmethod(_blend), "g": staticmethod(_blend_g)},
    "Quantize": {"bayer": _inner("Quantize.bayer")},
    "DifferentialDiffusion": {"forward": _inner("DifferentialDiffusion.forward")},
    "LTXVAddGuide": {"NUM_PREFIX_FRAMES": 2, "PATCHIFIER": _Later(_patchifier), **guides.METHODS},
    "CLIPTextEncodeLumina2": {
        "SYSTEM_PROMPT": _SYSTEM_PROMPT,
        "SYSTEM_PROMPT_TIP": "Lumina2 knows two system prompts: superior, and alignment, which keeps closer to the text.",
    },
    "ResizeImageMaskNode": {"crop_methods": ["disabled", "center"]},
    "ImageScaleToTotalPixels": {"crop_methods": ["disabled", "center"]},
    "LatentRebatch": {
        "get_batch": staticmethod(_get_batch), "get_slices": staticmethod(_get_slices), "slice_batch": staticmethod(_slice_batch),
        "cat_batch": staticmethod(_cat_batch),
    },
}
_LISTS = {
    "upscale_methods": (("upscale_method",), ("LatentUpscale", "LatentUpscaleBy", "ImageScale", "ImageScaleBy", "ImageScaleToTotalPixels")),
    "UPSCALE_METHODS": (("upscale_method",), ("SamplerLCMUpscale", "PatchModelAddDownscale")),
    "scale_methods": (("scale_method",), ("ResizeImageMaskNode",)),
    "crop_methods": (("crop",), ("LatentUpscale", "ImageScale")),
}
_MODULE = "comfy_extras.nodes_hooks"

# Functions of modules with built-in classes.
FUNCTIONS = {
    ("comfy_extras.nodes_lt", "get_noise_mask"): guides.get_noise_mask,
    ("comfy_extras.nodes_lt", "get_keyframe_idxs"): guides.get_keyframe_idxs,
    ("comfy_extras.nodes_lt", "_append_guide_attention_entry"): guides._append_guide_attention_entry,
}


def of(name, node):
    """What the Python class of this name has."""
    from . import builtin

    parts = dict(_PARTS.get(name, ()))
    for attribute, (inputs, classes) in _LISTS.items():
        if name in classes:
            parts[attribute] = _Choices(node, inputs)
    if builtin.call_of(node).module == _MODULE and builtin.call_of(node).method != "execute":
        parts["NodeId"] = node
        parts["NodeName"] = _Later(lambda cls: builtin.info(node)["display_name"])
    return parts
