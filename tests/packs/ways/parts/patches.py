"""Functions and methods of the host that packs put their own in place of."""

import comfy.samplers
import comfy.utils
import folder_paths
import latent_preview
import nodes
from server import PromptServer

seen = {"previews": 0, "messages": [], "lists": 0, "bars": []}

_previewer = latent_preview.get_previewer


def get_previewer(*args, **kwargs):
    seen["previews"] += 1
    return _previewer(*args, **kwargs)


latent_preview.get_previewer = get_previewer

_send = PromptServer.instance.send_sync


def send_sync(event, data, sid=None):
    seen["messages"].append(event)
    return _send(event, data, sid)


PromptServer.instance.send_sync = send_sync

_list = folder_paths.get_filename_list


def get_filename_list(name):
    seen["lists"] += 1
    return _list(name)


folder_paths.get_filename_list = get_filename_list


class _Scale(nodes.ImageScale):
    pass


# In place of the host's class, for all packs of the process.
nodes.ImageScale = _Scale
comfy.samplers.KSampler.own_of_ways = "set on the class"


class WaysPatches:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"file": (folder_paths.get_filename_list("loras") or ["none"],)}}

    @classmethod
    def VALIDATE_INPUTS(cls, file):
        return True

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, file):
        PromptServer.instance.send_sync("ways.message", {"n": 1})
        latent_preview.get_previewer(None, None)
        comfy.utils.set_progress_bar_global_hook(lambda value, total, preview, **kwargs: seen["bars"].append([value, total]))
        try:
            bar = comfy.utils.ProgressBar(2)
            bar.update(1)
            bar.update_absolute(2, 4)
        finally:
            comfy.utils.set_progress_bar_global_hook(None)
        text = [
            seen["previews"], seen["messages"], seen["lists"] > 0, seen["bars"], nodes.ImageScale is _Scale,
            comfy.samplers.KSampler.own_of_ways,
        ]
        return {"ui": {"text": text}}


NODE_CLASS_MAPPINGS = {"WaysPatches": WaysPatches}
