"""Networks of the engine that packs call as if they were modules of torch."""

from . import UnsupportedAttribute, handles, models, values


class FirstStage:
    """The network of a VAE: it can be asked for whole pictures, in the range that networks have; its layers are the engine's."""

    def __init__(self, vae):
        self._vae = vae

    device = property(lambda self: self._vae.device)
    dtype = property(lambda self: self._vae.vae_dtype)

    def to(self, *args, **kwargs):
        # Where it is, is the engine's to say.
        return self

    cpu = cuda = eval = half = float = requires_grad_ = to

    def decode(self, samples, **_):
        return self._vae.process_input(self._vae.decode(samples)).movedim(-1, 1)

    def encode(self, pixels, **_):
        return self._vae.encode(self._vae.process_output(pixels.movedim(1, -1)))

    def state_dict(self):
        return self._vae.get_sd()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedAttribute(
            f"vae.first_stage_model.{name}: the layers of a VAE are held by Fresco (level L3b needs a torch model inside the worker)"
        )


class UpscaleModel(handles.Handle):
    """UPSCALE_MODEL of the engine, called like the network that packs expect."""

    def _fresco_info(self):
        if "_fresco_facts" not in self.__dict__:
            self._fresco_facts = models.method("upscale.info", upscale_model=self)
        return self._fresco_facts

    scale = property(lambda self: self._fresco_info()["scale"])
    input_channels = property(lambda self: self._fresco_info()["channels"])
    output_channels = input_channels
    model = property(lambda self: self)
    dtype = property(lambda self: values._torch().float32)
    supports_half = supports_bfloat16 = False
    tiling = "supported"

    @property
    def device(self):
        import comfy.model_management as management

        return management.get_torch_device()

    def to(self, *args, **kwargs):
        # Where it is, is the engine's to say.
        return self

    cpu = cuda = eval = half = float = bfloat16 = requires_grad_ = to

    def parameters(self):
        return iter(())

    def state_dict(self):
        return {}

    def __call__(self, image):
        """Pictures (b, c, h, w), enlarged."""
        made = models.method("upscale.run", upscale_model=self, planes=image)
        return made.to(device=image.device, dtype=image.dtype) if hasattr(image, "device") and hasattr(made, "to") else made

    forward = __call__
