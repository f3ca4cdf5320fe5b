"""Writes into the host's tables itself, and replaces functions of the host, as some packs do."""

import os

import comfy.samplers
import nodes
from server import PromptServer

here = os.path.dirname(__file__)
nodes.EXTENSION_WEB_DIRS["K"] = os.path.join(here, "js2")
frozen_at_import = getattr(PromptServer.instance.app.router, "frozen", None)


class TablesOwn:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self):
        return {"ui": {"text": [repr(frozen_at_import), comfy.samplers.calculate_sigmas(None, "mine", 3)]}}


nodes.NODE_CLASS_MAPPINGS["TablesOwn"] = TablesOwn
comfy.samplers.calculate_sigmas = lambda model_sampling, name, steps: f"{name} in {steps}"
NODE_CLASS_MAPPINGS = {}
WEB_DIRECTORY = "./nowhere"
