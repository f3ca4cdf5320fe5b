"""How latents that nodes exchange differ from those a network works on."""

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
        return (latent - self.shift_factor) * self.scale_factor

    def process_out(self, latent):
        return latent / self.scale_factor + self.shift_factor


def _kind(name, **facts):
    return type(name, (LatentFormat,), {"__module__": __name__, **facts})


SD15 = _kind("SD15", scale_factor=0.18215, taesd_decoder_name="taesd_decoder")
SDXL = _kind("SDXL", scale_factor=0.13025, taesd_decoder_name="taesdxl_decoder")
SD3 = _kind("SD3", scale_factor=1.5305, shift_factor=0.0609, latent_channels=16, taesd_decoder_name="taesd3_decoder")
Flux = _kind("Flux", scale_factor=0.3611, shift_factor=0.1159, latent_channels=16, taesd_decoder_name="taef1_decoder")
_KNOWN = {"SD15": SD15, "SDXL": SDXL, "SD3": SD3, "Flux": Flux}


def _of_engine(model, facts):
    """The format of a model of the engine, which does the conversion itself."""
    from fresco_host.models import method

    base = _KNOWN.get(facts["name"], LatentFormat)

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
