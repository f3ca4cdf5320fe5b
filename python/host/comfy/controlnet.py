"""Control nets, which run in the engine."""

import comfy.sd
from fresco_host.models import Control, run_node
from fresco_host.placeholders import fallback

ControlBase = ControlNet = ControlLora = T2IAdapter = Control


def load_controlnet(ckpt_path, model=None, model_options={}):
    name = comfy.sd._name(ckpt_path, ["controlnet"])
    if model is not None:
        return run_node("DiffControlNetLoader", {"model": model, "control_net_name": name})[0]
    return run_node("ControlNetLoader", {"control_net_name": name})[0]


__getattr__ = fallback(__name__)
