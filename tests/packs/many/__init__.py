"""One small class for each rule of the contract that the other packs do not show."""

import asyncio
import os
import threading
import time

import folder_paths
import nodes
from comfy.comfy_types import IO, ComfyNodeABC
from comfy_api.v0_0_2 import ComfyAPI, ComfyAPISync
from comfy_execution.graph import ExecutionBlocker
from comfy_execution.graph_utils import GraphBuilder, is_link
from comfy_execution.utils import get_executing_context
from server import BinaryEventTypes, PromptServer

ran = []


async def _at_import():
    ran.append("task")


asyncio.get_running_loop().create_task(_at_import())


def _node(inputs, returns=("*",), output=False, **members):
    """Makes a class from its declaration and functions."""

    def decorate(function):
        base = {
            "INPUT_TYPES": classmethod(lambda cls: inputs() if callable(inputs) else inputs), "RETURN_TYPES": returns,
            "FUNCTION": "go", "OUTPUT_NODE": output, "CATEGORY": "packs/many", "go": function,
        }
        base.update(members)
        NODE_CLASS_MAPPINGS[function.__name__] = type(function.__name__, (), base)
        return function

    return decorate


NODE_CLASS_MAPPINGS = {}
ANY = {"required": {"value": (IO.ANY, {})}}


@_node({"required": {}}, (), True)
def ManyStarted(self):
    return {"ui": {"text": ran}}


@_node({"required": {"value": (IO.ANY, {})}}, ("STRING",), True)
def ManyShow(self, value):
    return {"ui": {"text": [repr(value)]}, "result": (repr(value),)}


@_node({"required": {"how": ("STRING",)}}, ("INT", "INT"))
def ManyArity(self, how):
    return {"few": (1,), "many": (1, 2, 3), "list": [4, 5], "text": "ab", "dict": {}, "none": None}.get(how) if how != "blocked" else ExecutionBlocker(None)


@_node({"required": {"how": ("STRING",)}}, ("INT",))
def ManyBadResult(self, how):
    return (number for number in (1, 2)) if how == "generator" else 5


class Tokens:
    """Change checks of every form, all on one input."""


def _changed(name, check, **more):
    def go(self, value, file=""):
        counts[name] = counts.get(name, 0) + 1
        return (f"{value}:{counts[name]}",)

    members = {
        "INPUT_TYPES": classmethod(lambda cls: {"required": {"value": ("INT",)}, "optional": {"file": ("STRING",)}}),
        "RETURN_TYPES": ("STRING",), "FUNCTION": "go", "go": go, "IS_CHANGED": check, **more,
    }
    NODE_CLASS_MAPPINGS[name] = type(name, (), members)


counts = {}
_changed("ManyNever", classmethod(lambda cls, value, file="": "same"))
_changed("ManyNan", classmethod(lambda cls, **kwargs: float("nan")))
_changed("ManyMtime", classmethod(lambda cls, value, file="": os.path.getmtime(file)))
_changed("ManyInstance", lambda self, value, file="": "same")
_changed("ManyBytes", classmethod(lambda cls, value, file="": b"equal"))


def _validated(name, validator):
    NODE_CLASS_MAPPINGS[name] = type(
        name, (),
        {
            "INPUT_TYPES": classmethod(lambda cls: {"required": {"value": ("INT", {"min": 0, "max": 5})}}), "RETURN_TYPES": (),
            "FUNCTION": "go", "OUTPUT_NODE": True, "go": lambda self, value: {"ui": {"text": [value]}}, "VALIDATE_INPUTS": validator,
        },
    )


def _verdict(value):
    return True if value != 7 else "no sevens"


async def _later(cls, value):
    await asyncio.sleep(0.01)
    return _verdict(value)


_validated("ManyValidClass", classmethod(lambda cls, value: _verdict(value)))
_validated("ManyValidStatic", staticmethod(lambda value: _verdict(value)))
_validated("ManyValidPlain", lambda value: _verdict(value))
_validated("ManyValidAsync", classmethod(_later))
_validated("ManyValidAll", classmethod(lambda cls, **kwargs: _verdict(kwargs["value"])))
_validated("ManyValidTypes", lambda input_types: True)


class ManyState:
    """Counts on itself, and is always run."""

    def __init__(self):
        self.count = 0

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    @classmethod
    def IS_CHANGED(cls):
        return float("nan")

    RETURN_TYPES = ("INT",)
    FUNCTION = "go"

    def go(self):
        self.count += 1
        return (self.count,)


NODE_CLASS_MAPPINGS["ManyState"] = ManyState


@_node({"required": {"count": ("INT",)}}, ("INT",), OUTPUT_IS_LIST=(True,))
def ManyList(self, count):
    return ([ExecutionBlocker(None) if number == 1 else number for number in range(count)],)


@_node({"required": {"values": (IO.ANY,), "other": (IO.ANY,)}}, ("STRING",), INPUT_IS_LIST=True)
def ManyGather(self, values, other):
    return (repr((values, other)),)


@_node({"required": {"value": (IO.ANY,)}, "hidden": {"own": "UNIQUE_ID", "graph": "DYNPROMPT"}}, ("STRING", "IMAGE"))
def ManyInside(self, value, own, graph):
    """Says who made it."""
    kind = type(value).__name__
    return (f"{kind} {own} of {graph.get_parent_node_id(own)}, shown at {graph.get_display_node_id(own)}", value)


@_node({"required": {"value": (IO.ANY,)}, "hidden": {"own": "UNIQUE_ID"}}, ("STRING", "IMAGE"))
def ManyExpand(self, value, own):
    """Expands twice, with a value that JSON cannot write as a literal."""
    first, second = GraphBuilder(), GraphBuilder()
    one = first.node("ManyInside", value=value)
    two = second.node("ManyInside", value=one.out(1))
    two.set_override_display_id(own)
    return {"result": (two.out(0), two.out(1)), "expand": {**first.finalize(), **second.finalize()}}


@_node({"required": {"start": (IO.ANY,), "times": ("INT", {"default": 0})}, "hidden": {"own": "UNIQUE_ID", "graph": "DYNPROMPT"}}, ("*", "STRING"))
def ManyLoop(self, start, times, own, graph):
    """Expands into a copy of itself as the running graph has it, with its literals, until nothing is left to do."""
    if times <= 0:
        return (start, own)
    node = graph.get_node(own)
    builder = GraphBuilder()
    again = builder.node(node["class_type"], "Again")
    for name, value in node["inputs"].items():
        again.set_input(name, value)
    if not is_link(node["inputs"]["start"]):
        again.set_input("start", node["inputs"]["start"])
    again.set_input("times", times - 1)
    return {"result": (again.out(0), again.out(1)), "expand": builder.finalize()}


@_node({"required": {"seconds": ("FLOAT",)}}, ("FLOAT",))
def ManyBlock(self, seconds):
    """Sleeps on the thread of the nodes."""
    time.sleep(seconds)
    return (seconds,)


class ManySleep(ComfyNodeABC):
    busy = asyncio.Semaphore(2)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"seconds": ("FLOAT",), "tag": ("INT", {"default": 0})}, "hidden": {"own": "UNIQUE_ID"}}

    RETURN_TYPES = ("FLOAT",)
    FUNCTION = "go"

    async def go(self, seconds, tag, own):
        api = ComfyAPI()
        until = time.time() + seconds
        while time.time() < until:
            await api.execution.set_progress(1.0 - max(until - time.time(), 0) / seconds, 1.0)
            await asyncio.sleep(0.01)
        return (seconds,)


class ManyLimited(ManySleep):
    async def go(self, seconds, tag, own):
        async with self.busy:
            await asyncio.sleep(seconds)
        return (seconds,)


class ManyAsyncFail(ManySleep):
    async def go(self, seconds, tag, own):
        await asyncio.sleep(seconds)
        raise ValueError(f"failed later {tag}")


NODE_CLASS_MAPPINGS.update(ManySleep=ManySleep, ManyLimited=ManyLimited, ManyAsyncFail=ManyAsyncFail)


@_node({"required": {"steps": ("INT",)}, "hidden": {"own": "UNIQUE_ID"}}, ("INT",))
def ManyThread(self, steps, own):
    """Reports progress from a thread that it starts, which knows of no call."""
    from comfy.utils import ProgressBar

    def work():
        bar = ProgressBar(steps, node_id=own)
        for _ in range(steps):
            bar.update(1)
        ComfyAPISync().execution.set_progress(1, 2, node_id=own)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert get_executing_context().node_id == own
    return (steps,)


@_node({"required": {"to": ("STRING",)}}, (), True)
def ManySend(self, to):
    server = PromptServer.instance
    server.send_sync("many.all", {"own": server.client_id})
    server.send_sync("many.one", {"n": 1}, to)
    server.send_sync("many.bad", {"n": object()})
    return {"ui": {"text": [server.client_id, to in server.sockets]}}


@_node({"required": {}}, (), True)
def ManyPreview(self):
    from PIL import Image

    picture = Image.new("RGB", (64, 32), (255, 0, 0))
    server = PromptServer.instance
    server.send_sync(BinaryEventTypes.UNENCODED_PREVIEW_IMAGE, ("JPEG", picture, 16), server.client_id)
    about = {"node_id": "9", "prompt_id": server.last_prompt_id}
    server.send_sync(BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA, (("PNG", picture, None), about), server.client_id)
    server.send_sync(77, b"own bytes", server.client_id)
    server.send_sync(78, "no bytes")
    return {"ui": {"text": ["sent"]}}


@_node({"required": {"how": ("STRING",)}}, (), True)
def ManyQueue(self, how):
    queue = PromptServer.instance.prompt_queue
    running = list(queue.currently_running.values())
    item = running[0]
    text = [len(item), sorted(item[2]), item[4], queue.get_tasks_remaining()]
    if how == "again":
        prompt = {key: {**node, "inputs": {**node["inputs"], "how": "once"}} for key, node in item[2].items()}
        queue.put((-1, "again-" + item[1], prompt, item[3], item[4], item[5]))
        text.append([entry[1] for entry in queue.queue])
    if how == "free":
        queue.set_flag("free_memory", True)
    return {"ui": {"text": text}}


class ManySave(nodes.SaveImage):
    """A built-in class with a prefix of its own."""

    def __init__(self):
        super().__init__()
        self.prefix_append = "_many"

    FUNCTION = "mine"

    def mine(self, images, filename_prefix="ComfyUI", prompt=None, extra_pnginfo=None):
        return self.save_images(images, filename_prefix, prompt, extra_pnginfo)


class ManyLoad(nodes.LoadImage):
    RETURN_TYPES = ("IMAGE", "MASK", "STRING")

    def load_image(self, image):
        picture, mask = super().load_image(image)
        return (picture, mask, image)


class ManyScale(nodes.NODE_CLASS_MAPPINGS["ImageScale"]):
    """A class of the engine, called by position and by keyword."""

    RETURN_TYPES = ("IMAGE", "IMAGE")
    FUNCTION = "both"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",)}}

    def both(self, image):
        scale = nodes.NODE_CLASS_MAPPINGS["ImageScale"]()
        first = scale.upscale(image, "bilinear", 24, 12, "disabled")[0]
        second = scale.upscale(image=image, upscale_method="bilinear", width=24, height=12, crop="disabled")[0]
        return (first, second)


NODE_CLASS_MAPPINGS.update(ManySave=ManySave, ManyLoad=ManyLoad, ManyScale=ManyScale)


@_node({"required": {"image": ("IMAGE",)}}, ("IMAGE",), IS_CHANGED=classmethod(lambda cls, **kwargs: float("nan")))
def ManyPass(self, image):
    return (image,)


@_node({"required": {"image": ("IMAGE",)}}, ("IMAGE",))
def ManyPassOnce(self, image):
    return (image,)


@_node({"required": {"image": ("IMAGE",)}}, (), True)
def ManySize(self, image):
    return {"ui": {"text": [list(image.shape)]}}


@_node({"required": {"image": ("IMAGE",)}}, ("IMAGE",))
def ManyBare(self, image):
    """A tensor instead of a tuple: its items are the outputs."""
    return image.numpy()


@_node({"required": {"image": ("IMAGE",), "how": ("STRING",)}}, ("IMAGE",), IS_CHANGED=classmethod(lambda cls, **kwargs: float("nan")))
def ManyEdit(self, image, how):
    """Changes one number, or writes what is there already."""
    numbers = image.numpy()
    numbers[0, 0, 0, 0] = numbers[0, 0, 0, 0] if how == "same" else 0.25
    return (image,)


@_node({"required": {}}, (), True)
def ManyFolders(self):
    """A folder type that is added while a node runs."""
    folder = os.path.join(folder_paths.get_input_directory(), "late")
    os.makedirs(folder, exist_ok=True)
    folder_paths.add_model_folder_path("late_type", folder)
    return {"ui": {"text": ["added"]}}


@_node({"required": {}}, (), True)
def ManyInstall(self):
    import subprocess
    import sys

    try:
        subprocess.run([sys.executable, "-m", "pip", "install", "something"], check=True)
    except PermissionError as error:
        return {"ui": {"text": [str(error)]}}
    return {"ui": {"text": ["installed"]}}
