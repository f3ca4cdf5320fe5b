"""How latents that nodes exchange differ from those a network works on."""

from comfy import _latent_tables as tables
from fresco_host.placeholders import fallback


class LatentFormat:
    scale_factor = 1.0
    shift_factor = 0.0
    latent_channels = 4
    latent_dimensions = 2
    latent_rgb_factors = None
    latent_rgb_factors_bias = None
    latent_rgb_factors_reshape = None
    taesd_decoder_name = None

    def process_in(self, latent):
        if self.shift_factor == 0.0:
            return latent * self.scale_factor
        return (latent - self.shift_factor) * self.scale_factor

    def process_out(self, latent):
        if self.shift_factor == 0.0:
            return latent / self.scale_factor
        return latent / self.scale_factor + self.shift_factor


class _Normalised(LatentFormat):
    """A mean and a deviation for each channel."""

    fresco_mean = ()
    fresco_deviation = ()

    @property
    def latents_mean(self):
        return self._by_channel(self.fresco_mean)

    @property
    def latents_std(self):
        return self._by_channel(self.fresco_deviation)

    def _by_channel(self, numbers, like=None):
        dimensions = self.latent_dimensions if like is None else len(like.shape) - 2
        shape = (1, len(numbers)) + (1,) * dimensions
        if like is None or hasattr(like, "detach"):
            import torch

            made = torch.tensor(numbers, dtype=torch.float32).reshape(shape)
            return made if like is None else made.to(device=like.device, dtype=like.dtype)
        import numpy

        return numpy.asarray(numbers, dtype=numpy.float32).reshape(shape)

    def process_in(self, latent):
        mean, deviation = self._by_channel(self.fresco_mean, latent), self._by_channel(self.fresco_deviation, latent)
        return (latent - mean) * self.scale_factor / deviation

    def process_out(self, latent):
        mean, deviation = self._by_channel(self.fresco_mean, latent), self._by_channel(self.fresco_deviation, latent)
        return latent * deviation / self.scale_factor + mean


def _kind(name, base=None):
    channels, dimensions, scale, shift, decoder = tables.FORMATS[name]
    facts = {
        "scale_factor": scale, "shift_factor": shift, "latent_channels": channels, "latent_dimensions": dimensions,
        "latent_rgb_factors": tables.COLOURS.get(name), "latent_rgb_factors_bias": tables.BIAS.get(name),
        "taesd_decoder_name": decoder,
    }
    normalised = name in tables.MEANS
    if normalised:
        facts.update(fresco_mean=tables.MEANS[name], fresco_deviation=tables.DEVIATIONS[name])
    base = base or (_Normalised if normalised else LatentFormat)
    return type(name, (base,), {"__module__": __name__, "__qualname__": name, **facts})


class SD15(_kind("SD15")):
    def __init__(self, scale_factor=0.18215):
        self.scale_factor = scale_factor


SDXL = _kind("SDXL")
SDXL_Playground_2_5 = _kind("SDXL_Playground_2_5")
SD_X4 = _kind("SD_X4")
SC_Prior = _kind("SC_Prior")
SC_B = _kind("SC_B")
SD3 = _kind("SD3")
StableAudio1 = _kind("StableAudio1")
Flux = _kind("Flux")
Mochi = _kind("Mochi")
LTXV = _kind("LTXV")
LTXAV = type("LTXAV", (LTXV,), {"__module__": __name__})
HunyuanVideo = _kind("HunyuanVideo")
Cosmos1CV8x8x8 = _kind("Cosmos1CV8x8x8")
Wan21 = _kind("Wan21")
Wan22 = _kind("Wan22", Wan21)
HunyuanImage21 = _kind("HunyuanImage21")
HunyuanVideo15 = _kind("HunyuanVideo15")
Hunyuan3Dv2 = _kind("Hunyuan3Dv2")
Hunyuan3Dv2_1 = _kind("Hunyuan3Dv2_1")
Hunyuan3Dv2mini = _kind("Hunyuan3Dv2mini")
ACEAudio = _kind("ACEAudio")
ChromaRadiance = _kind("ChromaRadiance")
MiniMaxH3 = _kind("MiniMaxH3")
QwenImage21 = _kind("QwenImage21")


class Flux2(_kind("Flux2")):
    @staticmethod
    def latent_rgb_factors_reshape(latent):
        """128 channels are 32 of a picture of twice the size."""
        batch, _, height, width = latent.shape
        cells = latent.reshape(batch, 32, 2, 2, height, width)
        moved = cells.permute(0, 1, 4, 2, 5, 3) if hasattr(cells, "permute") else cells.transpose(0, 1, 4, 2, 5, 3)
        return moved.reshape(batch, 32, height * 2, width * 2)


class HunyuanImage21Refiner(_kind("HunyuanImage21Refiner")):
    """Two frames are one with twice the channels to the network, the first of which is there twice."""

    def process_in(self, latent):
        import torch

        frames = torch.cat([latent[:, :, :1], latent * 1.0], dim=2) * self.scale_factor
        if frames.shape[2] % 2:
            # A last frame without another stands with itself.
            frames = torch.cat([frames, frames[:, :, -1:]], dim=2)
        batch, channels, count, height, width = frames.shape
        pairs = frames.reshape(batch, channels, count // 2, 2, height, width).permute(0, 3, 1, 2, 4, 5)
        return pairs.reshape(batch, 2 * channels, count // 2, height, width)

    def process_out(self, latent):
        batch, channels, count, height, width = latent.shape
        frames = latent.reshape(batch, 2, channels // 2, count, height, width).permute(0, 2, 3, 1, 4, 5)
        return frames.reshape(batch, channels // 2, 2 * count, height, width)[:, :, 1:] / self.scale_factor


def _of_engine(model, facts):
    """The format of a model of the engine, which does the conversion itself."""
    from fresco_host.models import method

    base = globals().get(facts["name"]) if facts["name"] in tables.FORMATS else LatentFormat

    class Format(base):
        def process_in(self, latent):
            return method("model.latent", model=model, latent=latent, out=False)

        def process_out(self, latent):
            return method("model.latent", model=model, latent=latent, out=True)

    Format.__name__ = Format.__qualname__ = facts["name"] or "LatentFormat"
    made = Format()
    for name in ("scale_factor", "shift_factor", "latent_channels", "latent_dimensions"):
        setattr(made, name, facts[name])
    made.latent_rgb_factors = facts["rgb"] or None
    made.latent_rgb_factors_bias = facts["rgb_bias"] if facts["rgb"] else None
    made.taesd_decoder_name = facts["taesd"]
    return made


__getattr__ = fallback(__name__)
