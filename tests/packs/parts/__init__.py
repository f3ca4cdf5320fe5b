"""The parts of the host that are plain torch or plain Python, compared with numbers that were computed in another way.

Each module of this pack has functions named `check_...`; a node runs those of one module and reports what failed.
"""

import importlib
import traceback


class PartsReport:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"group": ("STRING",)}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, group):
        checks = importlib.import_module(f".{group}", __package__)
        passed, failed = [], []
        for name, function in list(vars(checks).items()):
            if not name.startswith("check_"):
                continue
            try:
                function()
                passed.append(name)
            except Exception:
                failed.append(f"{name}: {traceback.format_exc()}")
        return {"ui": {"passed": passed, "failed": failed}}


NODE_CLASS_MAPPINGS = {"PartsReport": PartsReport}
