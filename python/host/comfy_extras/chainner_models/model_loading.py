"""Models that make pictures larger, from the content of their files."""

import importlib.util
import os

from fresco_host import Unsupported, models
from fresco_host.placeholders import fallback


def load_state_dict(state_dict):
    """A model that is called with pictures (batch, channels, height, width).

    With the library spandrel it is one of spandrel's, as packs expect; else Fresco's, for a file of its folders.
    """
    if importlib.util.find_spec("spandrel") is not None:
        import spandrel

        return spandrel.ModelLoader().load_from_state_dict(dict(state_dict)).eval()
    name = _listed(state_dict)
    if name is None:
        raise Unsupported(
            "comfy_extras.chainner_models.model_loading.load_state_dict: these weights are not the content of a file in the folders "
            "of upscale models, which Fresco could load; install spandrel into the Python of the packs, or take UpscaleModelLoader"
        )
    return _Model(models.run_node("UpscaleModelLoader", {"model_name": name})[0])


def _listed(state_dict):
    import folder_paths

    path = getattr(state_dict, "fresco_path", None)
    if path is None or len(state_dict) != state_dict.fresco_size:
        return None
    for folder in folder_paths.get_folder_paths("upscale_models"):
        inside = os.path.relpath(path, os.path.abspath(folder))
        if not inside.startswith(".."):
            return inside
    return None


class _Model:
    """Fresco's model, called like a module of torch. It lies where Fresco has put it."""

    def __init__(self, handle):
        self.handle = handle
        self._scale = None

    def fresco_handle(self):
        return self.handle

    @property
    def scale(self):
        """How much larger a picture becomes."""
        if self._scale is None:
            import torch

            self._scale = self(torch.zeros(1, 3, 16, 16)).shape[-1] // 16
        return self._scale

    def __call__(self, image):
        given = {"upscale_model": self.handle, "image": image.movedim(1, -1).float().cpu()}
        made = models.run_node("ImageUpscaleWithModel", given)[0]
        return made.movedim(-1, 1).to(device=image.device, dtype=image.dtype)

    def _stays(self, *args, **kwargs):
        return self

    eval = to = cpu = cuda = half = float = bfloat16 = _stays


__getattr__ = fallback(__name__)
