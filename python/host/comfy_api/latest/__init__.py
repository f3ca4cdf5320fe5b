"""The newer interface for nodes."""

from fresco_host import state

from . import _input_impl as InputImpl
from . import _io as io
from . import _types as Types
from . import _ui as ui
from . import _input as Input

IO = io
UI = ui


class ComfyExtension:
    async def on_load(self):
        return None

    async def get_node_list(self):
        raise NotImplementedError("a ComfyExtension must say which nodes it has")


class _Execution:
    async def set_progress(self, value, max_value, node_id=None, preview_image=None, ignore_size_limit=False):
        _set_progress(value, max_value, node_id, preview_image, ignore_size_limit)


class _ExecutionSync:
    def set_progress(self, value, max_value, node_id=None, preview_image=None, ignore_size_limit=False):
        _set_progress(value, max_value, node_id, preview_image, ignore_size_limit)


def _set_progress(value, max_value, node_id, preview_image, ignore_size_limit):
    call = state.current.get()
    if call is None and node_id is None:
        raise ValueError("no node is running: node_id must be given")
    call = call or state.latest
    shown = None
    if preview_image is not None:
        from comfy.utils import _encode_preview

        image = preview_image
        if hasattr(image, "cpu"):
            import numpy
            from PIL import Image

            array = image[0] if image.dim() == 4 else image
            image = Image.fromarray(numpy.clip(array.cpu().numpy() * 255, 0, 255).astype(numpy.uint8))
        shown = _encode_preview(("PNG", image, None if ignore_size_limit else 512))
    state.channel.event(
        "progress", call=call.number if call else 0, node=node_id or call.node_id, value=float(value), max=float(max_value),
        preview=shown, bar=False,
    )


class ComfyAPI:
    VERSION = "latest"
    STABLE = False

    def __init__(self):
        self.execution = _Execution()

    Execution = _Execution


class ComfyAPISync:
    def __init__(self):
        self.execution = _ExecutionSync()


ComfyAPI_latest = ComfyAPI
ComfyAPISyncStub = ComfyAPISync

__all__ = ["ComfyExtension", "io", "ui", "IO", "UI", "Input", "InputImpl", "Types", "ComfyAPI", "ComfyAPISync"]
