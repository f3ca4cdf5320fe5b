"""Packs that look at other packs, at the host's flags and at their own place."""

import json
import os
import sys

import folder_paths
import nodes
from comfy.cli_args import args


class WaysLooks:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self):
        found = [name for name in sys.modules if name.endswith(os.sep + "plain")]
        other = getattr(sys.modules[found[0]], "PackAdd") if found else None
        added = nodes.NODE_CLASS_MAPPINGS["PackAdd"]().add(1, 2.5)
        pack = sys.modules[__name__.rsplit(".parts", 1)[0]]
        with open(os.path.join(pack.here, "settings.json")) as file:
            settings = json.load(file)
        import utils.extra_config

        text = [
            other is nodes.NODE_CLASS_MAPPINGS["PackAdd"], list(added), settings, pack.said.getvalue().strip(), pack.ticks,
            os.environ["WAYS_SET_AT_IMPORT"], getattr(args, "no_such_flag", "none"), callable(utils.extra_config.load_extra_path_config),
            folder_paths.get_directory_by_type("output") == folder_paths.get_output_directory(),
        ]
        return {"ui": {"text": text}}


class WaysOutputs:
    """Lists a folder while it is described, which a fresh base folder does not have."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"folder": (["none", *sorted(os.listdir(folder_paths.get_output_directory()))],)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, folder):
        return (folder,)


NODE_CLASS_MAPPINGS = {"WaysLooks": WaysLooks, "WaysOutputs": WaysOutputs}
