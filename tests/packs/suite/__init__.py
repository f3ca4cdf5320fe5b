"""What an execution engine is tried with: pictures as tensors, lazy inputs, loops by expansion, accumulations, types with rules of their
own, and validators that look at types."""

import os
import sys

try:
    import torch
except ImportError:
    sys.path.append(os.path.join(os.path.dirname(__file__), "imitation"))
    import torch

import asyncio
import time

from comfy.comfy_types import IO, ComfyNodeABC
from comfy.utils import ProgressBar
from comfy_execution.graph import ExecutionBlocker
from comfy_execution.graph_utils import GraphBuilder, is_link

SIDE = 64


class Subset(str):
    """A type that stands for several: equal to what contains it."""

    def __ne__(self, other):
        if self == "*" or other == "*":
            return False
        return not set(self.split(",")) <= set(other.split(","))


def subset_types(cls):
    """Makes the types of a class compare as sets, by plain functions on the class."""
    before = cls.INPUT_TYPES

    def declared():
        groups = before()
        for group in ("required", "optional"):
            for name, entry in groups.get(group, {}).items():
                groups[group][name] = (Subset(entry[0]), *entry[1:])
        return groups

    def validate(input_types):
        for name, kind in input_types.items():
            for group in ("required", "optional"):
                wanted = declared().get(group, {}).get(name)
                if wanted is not None and not isinstance(kind, Subset) and Subset(kind) != wanted[0]:
                    return f"{name} is {kind} and not {wanted[0]}"
        return True

    cls.INPUT_TYPES = declared
    cls.RETURN_TYPES = tuple(Subset(kind) for kind in cls.RETURN_TYPES)
    cls.VALIDATE_INPUTS = validate
    return cls


class SuiteImage:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"content": (["WHITE", "BLACK"],), "batch": ("INT", {"default": 1})}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def go(self, content, batch):
        return ((torch.ones if content == "WHITE" else torch.zeros)(batch, SIDE, SIDE, 3),)


class SuiteMask:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("FLOAT",)}}

    RETURN_TYPES = ("MASK",)
    FUNCTION = "go"

    def go(self, value):
        return (torch.ones([1, SIDE, SIDE]) * value,)


class SuiteInt:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("INT",)}}

    RETURN_TYPES = ("INT",)
    FUNCTION = "go"

    def go(self, value):
        return (value,)


class SuiteFloat:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("FLOAT",)}}

    RETURN_TYPES = ("FLOAT",)
    FUNCTION = "go"

    def go(self, value):
        return (value,)


class SuiteMix:
    """Asks for a picture only where the mask wants it."""

    @classmethod
    def INPUT_TYPES(cls):
        lazy = {"lazy": True}
        return {"required": {"first": ("IMAGE", lazy), "second": ("IMAGE", lazy), "mask": ("MASK",)}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def check_lazy_status(self, mask, first, second):
        wanted = []
        if first is None and mask.min() != 1.0:
            wanted.append("first")
        if second is None and mask.max() != 0.0:
            wanted.append("second")
        return wanted

    def go(self, mask, first, second):
        if mask.max() == 0.0:
            return (first,)
        if mask.min() == 1.0:
            return (second,)
        mask = mask.unsqueeze(3).repeat(1, 1, 1, 3)
        return (first * (1.0 - mask) + second * mask,)


class SuiteAverage:
    """Takes as many pictures as there are links."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"input1": ("IMAGE",)}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def go(self, input1, **more):
        return (torch.stack([input1, *more.values()]).mean(dim=0),)


class SuiteChanged:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",)}, "optional": {"always": ("BOOL", {"default": False})}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def go(self, image, always=False):
        return (image,)

    @classmethod
    def IS_CHANGED(cls, always=False, *args, **kwargs):
        return float("nan") if always else False


class SuiteScaled:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",), "value": ("FLOAT", {"min": 0.0, "max": 10.0})}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def go(self, image, value):
        return (image * value,)

    @classmethod
    def IS_CHANGED(cls, image, value):
        return value if image is None else image.mean().item() * value


class SuiteKinds:
    """Checks the kinds of its values and of its links itself."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"a": ("IMAGE,FLOAT",), "b": ("IMAGE,FLOAT",)}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def go(self, a, b):
        return (torch.ones([1, SIDE, SIDE, 3]) * a * b,)

    @classmethod
    def VALIDATE_INPUTS(cls, input_types, a=None, b=None):
        for name, value in (("a", a), ("b", b)):
            if value is not None and not isinstance(value, (float, torch.Tensor)):
                return f"{name} is a {type(value).__name__}"
            if input_types.get(name, "IMAGE") not in ("IMAGE", "FLOAT"):
                return f"{name} is linked to {input_types[name]}"
        return True


@subset_types
class SuiteSubset:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"a": ("IMAGE,FLOAT",), "b": ("IMAGE,FLOAT",)}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def go(self, a, b):
        return (torch.ones([1, SIDE, SIDE, 3]) * a * b,)


class SuiteCycle:
    """Expands into nodes that wait for each other."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"first": ("IMAGE",), "second": ("IMAGE",)}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"

    def go(self, first, second):
        graph = GraphBuilder()
        mask = graph.node("SuiteMask", value=0.5)
        one = graph.node("SuiteMix", first=first, mask=mask.out(0))
        two = graph.node("SuiteMix", first=one.out(0), second=second, mask=mask.out(0))
        one.set_input("second", two.out(0))
        return {"result": (two.out(0),), "expand": graph.finalize()}


class SuiteMixed:
    """Results of three kinds: plain, in a dictionary, by expansion beside a value."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("FLOAT",)}}

    RETURN_TYPES = ("IMAGE", "IMAGE")
    FUNCTION = "go"

    def go(self, value):
        white = torch.ones([1, SIDE, SIDE, 3])
        if value < 0.15:
            return (white * value, white)
        if value < 0.25:
            return {"result": (white * value, white)}
        graph = GraphBuilder()
        mask = graph.node("SuiteMask", value=value)
        black, other = graph.node("SuiteImage", content="BLACK", batch=1), graph.node("SuiteImage", content="WHITE", batch=1)
        mix = graph.node("SuiteMix", first=black.out(0), second=other.out(0), mask=mask.out(0))
        return {"result": (mix.out(0), white), "expand": graph.finalize()}


SLOTS = 3


@subset_types
class SuiteOpen:
    @classmethod
    def INPUT_TYPES(cls):
        values = {f"value{slot}": ("*",) for slot in range(SLOTS)}
        return {"required": {"go_on": ("BOOLEAN", {"default": True})}, "optional": values}

    RETURN_TYPES = ("FLOW_CONTROL",) + ("*",) * SLOTS
    FUNCTION = "go"

    def go(self, go_on, **values):
        return ("begin", *(values.get(f"value{slot}") for slot in range(SLOTS)))


@subset_types
class SuiteClose:
    """Repeats what is between it and the begin, by a copy of those nodes, for as long as it is told to."""

    @classmethod
    def INPUT_TYPES(cls):
        values = {f"value{slot}": ("*",) for slot in range(SLOTS)}
        required = {"flow": ("FLOW_CONTROL", {"rawLink": True}), "go_on": ("BOOLEAN", {"forceInput": True})}
        return {"required": required, "optional": values, "hidden": {"graph": "DYNPROMPT", "own": "UNIQUE_ID"}}

    RETURN_TYPES = ("*",) * SLOTS
    FUNCTION = "go"

    def _inside(self, begin, own, graph):
        users, open_nodes = {}, [own]
        while open_nodes:
            node = open_nodes.pop()
            for value in graph.get_node(node)["inputs"].values():
                if is_link(value):
                    if value[0] not in users:
                        users[value[0]] = []
                        open_nodes.append(value[0])
                    users[value[0]].append(node)
        inside, open_nodes = {begin: True}, [begin]
        while open_nodes:
            for user in users.get(open_nodes.pop(), ()):
                if user not in inside:
                    inside[user] = True
                    open_nodes.append(user)
        inside[own] = True
        return inside

    def go(self, flow, go_on, graph=None, own=None, **values):
        if not go_on:
            return tuple(values.get(f"value{slot}") for slot in range(SLOTS))
        inside = self._inside(flow[0], own, graph)
        builder = GraphBuilder()
        names = {node: "Again" if node == own else node for node in inside}
        for node, name in names.items():
            builder.node(graph.get_node(node)["class_type"], name).set_override_display_id(node)
        for node, name in names.items():
            made = builder.lookup_node(name)
            for key, value in graph.get_node(node)["inputs"].items():
                if is_link(value) and value[0] in names:
                    made.set_input(key, builder.lookup_node(names[value[0]]).out(value[1]))
                else:
                    made.set_input(key, value)
        begin = builder.lookup_node(flow[0])
        for slot in range(SLOTS):
            begin.set_input(f"value{slot}", values.get(f"value{slot}"))
        again = builder.lookup_node("Again")
        return {"result": tuple(map(again.out, range(SLOTS))), "expand": builder.finalize()}


@subset_types
class SuiteBlock:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("*",), "block": ("BOOLEAN",), "words": ("BOOLEAN", {"default": False})}}

    RETURN_TYPES = ("*",)
    FUNCTION = "go"

    def go(self, value, block, words):
        return (ExecutionBlocker("blocked here" if words else None),) if block else (value,)


@subset_types
class SuiteGather:
    """A value that grows, of a type that only this pack knows."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("*",)}, "optional": {"gathered": ("ACCUMULATION",)}}

    RETURN_TYPES = ("ACCUMULATION",)
    FUNCTION = "go"

    def go(self, value, gathered=None):
        return ({"gathered": [*(gathered["gathered"] if gathered else []), value]},)


@subset_types
class SuiteSpread:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"gathered": ("ACCUMULATION",)}}

    RETURN_TYPES = ("*",)
    OUTPUT_IS_LIST = (True,)
    FUNCTION = "go"

    def go(self, gathered):
        return (gathered["gathered"],)


class SuiteLess:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"a": ("INT",), "b": ("INT",)}}

    RETURN_TYPES = ("BOOLEAN", "INT")
    FUNCTION = "go"

    def go(self, a, b):
        return (a + 1 < b, a + 1)


class SuiteSleep(ComfyNodeABC):
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": (IO.ANY, {}), "seconds": ("FLOAT",)}, "hidden": {"own": "UNIQUE_ID"}}

    RETURN_TYPES = (IO.ANY,)
    FUNCTION = "go"

    async def go(self, value, seconds, own):
        bar, began = ProgressBar(seconds, node_id=own), time.time()
        while time.time() < began + seconds:
            bar.update_absolute(time.time() - began)
            await asyncio.sleep(0.01)
        return (value,)


class SuiteParallel:
    """Expands into sleeps that run at the same time."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",), "count": ("INT",), "seconds": ("FLOAT",)}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, image, count, seconds):
        graph = GraphBuilder()
        slept = [graph.node("SuiteSleep", value=image, seconds=seconds).out(0) for _ in range(count)]
        more = {f"input{number + 1}": link for number, link in enumerate(slept)}
        return {"result": (graph.node("SuiteAverage", **more).out(0),), "expand": graph.finalize()}


class SuiteLevel:
    """Shows how light a picture is, and of what kind it came."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",)}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, image):
        return {"ui": {"level": [round(float(image.mean().item()), 3)], "shape": [list(image.shape)], "tensor": [type(image) is torch.Tensor]}}


class Network:
    """A network that the pack has itself."""

    def __init__(self):
        self.moves = []

    def to(self, device):
        self.moves.append(str(device))
        return self

    def __call__(self, image):
        return 1.0 - image


class SuiteNetwork:
    """Loads a network of its own with the host's functions for memory."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",)}}

    RETURN_TYPES = ("IMAGE", "STRING")
    FUNCTION = "go"

    def go(self, image):
        import comfy.model_management as management
        from comfy.model_patcher import ModelPatcher

        network = Network()
        patcher = ModelPatcher(network, management.get_torch_device(), management.unet_offload_device(), size=1000)
        clone = patcher.clone()
        management.load_models_gpu([clone], memory_required=10)
        out = clone.model(image.to(management.get_torch_device()))
        told = [patcher.is_clone(clone), clone in management.loaded_models(), clone.model_size(), management.get_free_memory() > 0]
        management.unload_all_models()
        management.soft_empty_cache()
        return (out.cpu(), repr([*told, network.moves, management.loaded_models()]))


class SuiteText:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {"forceInput": True})}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, text):
        return {"ui": {"text": [text]}}


NODE_CLASS_MAPPINGS = {name: cls for name, cls in list(globals().items()) if name.startswith("Suite") and name != "Suite"}
