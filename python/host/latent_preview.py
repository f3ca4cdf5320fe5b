"""Previews of latents. The engine makes its own while it samples; these are for packs that sample or look themselves."""

import comfy.utils
from comfy.cli_args import LatentPreviewMethod, args
from fresco_host.placeholders import fallback

MAX_PREVIEW_RESOLUTION = args.preview_size
default_preview_method = args.preview_method


def _array(value):
    import numpy

    if hasattr(value, "detach"):
        value = value.detach().to("cpu").float()
    return numpy.asarray(value.numpy() if hasattr(value, "numpy") else value, dtype=numpy.float32)


def preview_to_image(latent_image, do_scale=True):
    import numpy
    from PIL import Image

    numbers = _array(latent_image)
    if do_scale:
        numbers = (numbers + 1.0) / 2.0
    return Image.fromarray((numbers.clip(0, 1) * 255).astype(numpy.uint8))


class LatentPreviewer:
    def decode_latent_to_preview(self, x0):
        return None

    def decode_latent_to_preview_image(self, preview_format, x0):
        return ("JPEG", self.decode_latent_to_preview(x0), MAX_PREVIEW_RESOLUTION)


class Latent2RGBPreviewer(LatentPreviewer):
    """A colour for each channel of a latent."""

    def __init__(self, latent_rgb_factors, latent_rgb_factors_bias=None, latent_rgb_factors_reshape=None):
        self.latent_rgb_factors = latent_rgb_factors
        self.latent_rgb_factors_bias = latent_rgb_factors_bias
        self.latent_rgb_factors_reshape = latent_rgb_factors_reshape

    def decode_latent_to_preview(self, x0):
        import numpy

        if self.latent_rgb_factors_reshape is not None:
            x0 = self.latent_rgb_factors_reshape(x0)
        latent = _array(x0)[0]
        # Of a film, the first picture.
        latent = latent[:, 0] if latent.ndim == 4 else latent
        factors = numpy.asarray(self.latent_rgb_factors, dtype=numpy.float32)
        picture = numpy.moveaxis(latent, 0, -1) @ factors[: latent.shape[0]]
        if self.latent_rgb_factors_bias is not None:
            picture = picture + numpy.asarray(self.latent_rgb_factors_bias, dtype=numpy.float32)
        return preview_to_image(picture)


class TAESDPreviewerImpl(LatentPreviewer):
    """Pictures by a small decoder."""

    def __init__(self, taesd):
        self.taesd = taesd

    def decode_latent_to_preview(self, x0):
        return preview_to_image(self.taesd.decode(x0[:1])[0].movedim(0, 2))


def get_previewer(device, latent_format):
    if args.preview_method == LatentPreviewMethod.NoPreviews:
        return None
    factors = getattr(latent_format, "latent_rgb_factors", None)
    if factors is None:
        return None
    return Latent2RGBPreviewer(factors, latent_format.latent_rgb_factors_bias, latent_format.latent_rgb_factors_reshape)


def prepare_callback(model, steps, x0_output_dict=None):
    bar = comfy.utils.ProgressBar(steps)
    # By its name in this module: some packs put their own in its place.
    previewer = get_previewer(model.load_device if args.preview_method != LatentPreviewMethod.NoPreviews else None, model.model.latent_format)

    def callback(step, x0, x, total_steps):
        if x0_output_dict is not None:
            x0_output_dict["x0"] = x0
        preview = previewer.decode_latent_to_preview_image("JPEG", x0) if previewer is not None else None
        bar.update_absolute(step + 1, total_steps, preview)

    return callback


def set_preview_method(override=None):
    """For the next prompts of packs; the engine has its own setting."""
    args.preview_method = LatentPreviewMethod.from_string(override or "default") or default_preview_method


__all__ = ["LatentPreviewMethod"]
_others = fallback(__name__)


def __getattr__(name):
    if name == "TAESD":
        # Made of torch, which this module does without.
        import comfy.taesd.taesd

        return comfy.taesd.taesd.TAESD
    return _others(name)
