"""The host's nodes: tables of all classes, and the few that packs build upon in Python. The others run in the engine."""

import hashlib
import json
import os
import random

import folder_paths
import node_helpers
from comfy_execution.graph_utils import ExecutionBlocker
from fresco_host import builtin, builtin_parts, models
from fresco_host.host_names import REGISTERED
from fresco_host.placeholders import fallback

MAX_RESOLUTION = 16384
NODE_CLASS_MAPPINGS = {}
NODE_DISPLAY_NAME_MAPPINGS = {}
EXTENSION_WEB_DIRS = {}
LOADED_MODULE_DIRS = {}


def before_node_execution():
    import comfy.model_management

    comfy.model_management.throw_exception_if_processing_interrupted()


def interrupt_processing(value=True):
    import comfy.model_management

    comfy.model_management.interrupt_current_processing(value)


def fresco_class(module, name):
    """The class or function that a module of the host's further nodes has under this name, if there is one."""
    function = builtin_parts.FUNCTIONS.get((module, name))
    if function is not None:
        return function
    known = builtin.BY_CLASS.get((module, name))
    return NODE_CLASS_MAPPINGS.get(known.node if known is not None else REGISTERED.get(name, name))


def _setup(builtins):
    here = globals()
    for name in builtins:
        cls = here.get(name) or builtin.make(name)
        NODE_CLASS_MAPPINGS[name] = cls
        here.setdefault(name, cls)


def common_ksampler(
    model, seed, steps, cfg, sampler_name, scheduler, positive, negative, latent, denoise=1.0, disable_noise=False,
    start_step=None, last_step=None, force_full_denoise=False,
):
    import comfy.sample

    samples = comfy.sample.sample(
        model, None, steps, cfg, sampler_name, scheduler, positive, negative, latent["samples"], denoise=denoise,
        disable_noise=disable_noise, start_step=start_step, last_step=last_step, force_full_denoise=force_full_denoise,
        noise_mask=latent.get("noise_mask"), seed=seed,
    )
    out = latent.copy()
    out["samples"] = samples
    return (out,)


class SaveImage:
    def __init__(self):
        self.output_dir = folder_paths.get_output_directory()
        self.type = "output"
        self.prefix_append = ""
        self.compress_level = 4

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "images": ("IMAGE",),
                "filename_prefix": ("STRING", {"default": "ComfyUI"}),
            },
            "hidden": {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"},
        }

    RETURN_TYPES = ()
    FUNCTION = "save_images"
    OUTPUT_NODE = True
    CATEGORY = "image"
    DESCRIPTION = "Writes pictures into the output folder."

    def save_images(self, images, filename_prefix="ComfyUI", prompt=None, extra_pnginfo=None):
        import numpy
        from comfy.cli_args import args
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        filename_prefix += self.prefix_append
        if not hasattr(images, "cpu"):
            images = numpy.asarray(images)
        height, width = images[0].shape[0], images[0].shape[1]
        folder, filename, counter, subfolder, _ = folder_paths.get_save_image_path(
            filename_prefix, self.output_dir, width, height
        )
        results = []
        for number, image in enumerate(images):
            array = image.cpu().numpy() if hasattr(image, "cpu") else numpy.asarray(image)
            picture = Image.fromarray(numpy.clip(255.0 * array, 0, 255).astype(numpy.uint8))
            metadata = None
            if not args.disable_metadata:
                metadata = PngInfo()
                if prompt is not None:
                    metadata.add_text("prompt", json.dumps(prompt))
                for key in extra_pnginfo or {}:
                    metadata.add_text(key, json.dumps(extra_pnginfo[key]))
            name = f"{filename.replace('%batch_num%', str(number))}_{counter:05}_.png"
            picture.save(os.path.join(folder, name), pnginfo=metadata, compress_level=self.compress_level)
            results.append({"filename": name, "subfolder": subfolder, "type": self.type})
            counter += 1
        return {"ui": {"images": results}}


class PreviewImage(SaveImage):
    def __init__(self):
        self.output_dir = folder_paths.get_temp_directory()
        self.type = "temp"
        self.prefix_append = "_temp_" + "".join(random.choice("abcdefghijklmnopqrstupvxyz") for _ in range(5))
        self.compress_level = 1

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"images": ("IMAGE",)}, "hidden": {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"}}


class LoadImage:
    @classmethod
    def INPUT_TYPES(cls):
        folder = folder_paths.get_input_directory()
        files = [name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name))]
        files = folder_paths.filter_files_content_types(files, ["image"])
        return {"required": {"image": (sorted(files), {"image_upload": True})}}

    CATEGORY = "image"
    RETURN_TYPES = ("IMAGE", "MASK")
    FUNCTION = "load_image"

    def load_image(self, image):
        try:
            import torch
        except ImportError:
            # The engine reads it as well.
            return tuple(models.run_node("LoadImage", {"image": image})[:2])
        import numpy
        from PIL import Image, ImageOps, ImageSequence

        opened = node_helpers.pillow(Image.open, folder_paths.get_annotated_filepath(image))
        pictures, masks, size = [], [], None
        for frame in ImageSequence.Iterator(opened):
            frame = node_helpers.pillow(ImageOps.exif_transpose, frame)
            if frame.mode == "I":
                frame = frame.point(lambda i: i * (1 / 255))
            rgb = frame.convert("RGB")
            size = size or rgb.size
            if rgb.size != size:
                continue
            pictures.append(torch.from_numpy(numpy.array(rgb).astype(numpy.float32) / 255.0)[None,])
            if "A" in frame.getbands():
                alpha = numpy.array(frame.getchannel("A")).astype(numpy.float32) / 255.0
                masks.append((1.0 - torch.from_numpy(alpha)).unsqueeze(0))
            else:
                masks.append(torch.zeros((1, 64, 64), dtype=torch.float32))
            if opened.format == "MPO":
                break
        return (torch.cat(pictures, dim=0), torch.cat(masks, dim=0))

    @classmethod
    def IS_CHANGED(cls, image):
        digest = hashlib.sha256()
        with open(folder_paths.get_annotated_filepath(image), "rb") as file:
            digest.update(file.read())
        return digest.digest().hex()

    @classmethod
    def VALIDATE_INPUTS(cls, image):
        return True if folder_paths.exists_annotated_filepath(image) else f"Invalid image file: {image}"


class LoadImageMask:
    _color_channels = ["alpha", "red", "green", "blue"]

    @classmethod
    def INPUT_TYPES(cls):
        listed = LoadImage.INPUT_TYPES()["required"]["image"]
        return {"required": {"image": listed, "channel": (cls._color_channels,)}}

    CATEGORY = "mask"
    RETURN_TYPES = ("MASK",)
    FUNCTION = "load_image"

    def load_image(self, image, channel):
        return (models.run_node("LoadImageMask", {"image": image, "channel": channel})[0],)

    @classmethod
    def IS_CHANGED(cls, image, channel):
        return LoadImage.IS_CHANGED(image)

    @classmethod
    def VALIDATE_INPUTS(cls, image):
        return LoadImage.VALIDATE_INPUTS(image)


def get_module_name(module_path):
    """Under which name a pack is known: the last part of its path, or for a file the whole path without its ending."""
    name = os.path.basename(module_path)
    return os.path.splitext(module_path)[0] if os.path.isfile(module_path) else name


__all__ = ["ExecutionBlocker"]
__getattr__ = fallback(__name__)
