"""Previews of latents. The engine makes its own while it samples."""

import comfy.utils
from comfy.cli_args import LatentPreviewMethod, args
from fresco_host.placeholders import fallback

MAX_PREVIEW_RESOLUTION = args.preview_size
default_preview_method = args.preview_method


def preview_to_image(latent_image, do_scale=True):
    import numpy
    from PIL import Image

    if do_scale:
        latent_image = (latent_image + 1.0) / 2.0
    numbers = latent_image.clamp(0, 1).mul(255).to("cpu").numpy().astype(numpy.uint8)
    return Image.fromarray(numbers)


class LatentPreviewer:
    def decode_latent_to_preview(self, x0):
        return None

    def decode_latent_to_preview_image(self, preview_format, x0):
        return ("JPEG", self.decode_latent_to_preview(x0), MAX_PREVIEW_RESOLUTION)


def get_previewer(device, latent_format):
    return None


def prepare_callback(model, steps, x0_output_dict=None):
    bar = comfy.utils.ProgressBar(steps)

    def callback(step, x0, x, total_steps):
        if x0_output_dict is not None:
            x0_output_dict["x0"] = x0
        bar.update_absolute(step + 1, total_steps, None)

    return callback


def set_preview_method(override=None):
    return None


__all__ = ["LatentPreviewMethod"]
__getattr__ = fallback(__name__)
