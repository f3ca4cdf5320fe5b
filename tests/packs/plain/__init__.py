"""The ways of ordinary packs: widgets, lists, hidden inputs, state, expansion, lazy inputs, blockers."""

import asyncio
import os
import time

import folder_paths
from comfy_execution.graph import ExecutionBlocker
from comfy_execution.graph_utils import GraphBuilder

started = []


async def _task():
    started.append(True)


asyncio.get_running_loop().create_task(_task())


class PackAdd:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"a": ("INT", {"default": 1, "min": -(2**64), "max": 2**64}), "b": ("FLOAT", {"default": 0.5})}}

    RETURN_TYPES = ("FLOAT", "STRING")
    RETURN_NAMES = ("sum", "text")
    FUNCTION = "add"
    CATEGORY = "packs/test"
    DESCRIPTION = "Adds."

    def add(self, a, b):
        return (a + b, f"{a!r} {b!r}")


class PackShow:
    """Shows anything as text."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {"forceInput": True})}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "show"
    OUTPUT_NODE = True
    CATEGORY = "packs/test"

    def show(self, text):
        print("showing", text)
        return {"ui": {"text": [str(text)], "split": "abc", "own": [{"k": (1, 2)}]}, "result": (text,)}


class PackCount:
    """Counts its calls on itself."""

    def __init__(self):
        self.count = 0

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}, "hidden": {"own": "UNIQUE_ID"}}

    @classmethod
    def IS_CHANGED(cls, **kwargs):
        return float("nan")

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"
    CATEGORY = "packs/test"

    def go(self, own):
        self.count += 1
        return (f"{own}: {self.count}",)


class PackChoice:
    """A list that follows the disk."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"file": (sorted(os.listdir(folder_paths.get_input_directory())),)}}

    @classmethod
    def VALIDATE_INPUTS(cls, file):
        return True if not file.startswith("bad") else f"{file} is bad"

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, file):
        return (file,)


class PackLazy:
    @classmethod
    def INPUT_TYPES(cls):
        lazy = ("STRING", {"lazy": True})
        return {"required": {"first": ("BOOLEAN",)}, "optional": {"yes": lazy, "no": lazy}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def check_lazy_status(self, first, yes=None, no=None):
        if first:
            return ["yes"] if yes is None else []
        return ["no"] if no is None else []

    def go(self, first, yes=None, no=None):
        return (yes if first else no,)


class PackFail:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}, "optional": {"text": ("STRING", {"default": "x"})}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, text="x"):
        class PackError(Exception):
            pass

        raise PackError(f"this pack fails: {text}")


class PackList:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"count": ("INT",)}}

    RETURN_TYPES = ("INT",)
    OUTPUT_IS_LIST = (True,)
    FUNCTION = "go"

    def go(self, count):
        return ([ExecutionBlocker(None) if i == 1 else i for i in range(count)],)


class PackJoin:
    INPUT_IS_LIST = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"parts": ("STRING,INT", {"forceInput": True})}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, parts):
        return (repr(parts),)


class PackExpand:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING",)}, "hidden": {"dyn": "DYNPROMPT", "own": "UNIQUE_ID"}}

    RETURN_TYPES = ("STRING", "THING")
    FUNCTION = "go"

    def go(self, text, dyn, own):
        graph = GraphBuilder()
        inner = graph.node("PackUnwrap", thing=Thing(f"{text} from {dyn.get_real_node_id(own)}"))
        return {"result": (inner.out(0), Thing("kept")), "expand": graph.finalize()}


class Thing:
    def __init__(self, text):
        self.text = text


class PackUnwrap:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"thing": ("THING",)}, "hidden": {"own": "UNIQUE_ID"}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, thing, own):
        return (f"{thing.text} in {own}",)


class PackSleep:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"seconds": ("FLOAT",), "tag": ("STRING",)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    async def go(self, seconds, tag):
        await asyncio.sleep(seconds)
        return (tag,)


class PackMark:
    """Writes into the prompt that is saved with pictures, as seed nodes do."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"images": ("IMAGE",)}, "hidden": {"prompt": "PROMPT", "info": "EXTRA_PNGINFO", "own": "UNIQUE_ID"}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def go(self, images, prompt, info, own):
        prompt[own]["inputs"]["marked"] = "by the pack"
        if info is not None:
            info["workflow"]["marked"] = True
        return (images,)


class PackDarken:
    """Changes a picture in place, as careless packs do."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",)}}

    RETURN_TYPES = ("IMAGE", "STRING")
    FUNCTION = "go"

    def go(self, image):
        numbers = image.numpy()
        numbers *= 0.5
        return (numbers, str(list(numbers.shape)))


class PackProgress:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"steps": ("INT",), "pause": ("FLOAT", {"default": 0.0})}}

    RETURN_TYPES = ("INT",)
    FUNCTION = "go"

    def go(self, steps, pause):
        from comfy.utils import ProgressBar
        from server import PromptServer

        bar = ProgressBar(steps)
        PromptServer.instance.send_sync("pack.began", {"steps": steps})
        for _ in range(steps):
            time.sleep(pause)
            bar.update(1)
        return (steps,)


class PackInvert:
    """Runs a built-in node from Python."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",)}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def go(self, image):
        import nodes

        return nodes.NODE_CLASS_MAPPINGS["ImageInvert"]().invert(image)


class PackBroken:
    """Cannot say what it declares while a file is there."""

    @classmethod
    def INPUT_TYPES(cls):
        if os.path.exists(os.path.join(folder_paths.get_input_directory(), "break")):
            raise ValueError("broken for now")
        return {"required": {}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self):
        return {}


NODE_CLASS_MAPPINGS = {
    cls.__name__: cls
    for cls in (
        PackAdd, PackShow, PackCount, PackChoice, PackLazy, PackFail, PackList, PackJoin, PackExpand, PackUnwrap, PackSleep,
        PackMark, PackDarken, PackProgress, PackInvert, PackBroken,
    )
}
# A built-in name stays the program's.
NODE_CLASS_MAPPINGS["SaveImage"] = PackAdd
NODE_DISPLAY_NAME_MAPPINGS = {"PackAdd": "Add (pack)"}
WEB_DIRECTORY = "./js"
