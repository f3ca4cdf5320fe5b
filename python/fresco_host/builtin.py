"""The host's built-in classes as packs see them: they are named, asked, extended and called like the Python classes of the
host, and run in the engine."""

import inspect
import json

from . import Unsupported, models, state
from .call_order import CALLS

# Classes that have the method of another class.
SAME_AS = {
    "PreviewImage": "SaveImage", "LoadImageOutput": "LoadImage", "ImageOnlyCheckpointSave": ("save", "CheckpointSave"),
    **dict.fromkeys(
        """ModelMergeSD1 ModelMergeSD2 ModelMergeSDXL ModelMergeSD3_2B ModelMergeAuraflow ModelMergeFlux1 ModelMergeSD35_Large
        ModelMergeMochiPreview ModelMergeLTXV ModelMergeCosmos7B ModelMergeCosmos14B ModelMergeWAN2_1
        ModelMergeCosmosPredict2_2B ModelMergeCosmosPredict2_14B ModelMergeQwenImage ModelMergeKrea2""".split(),
        "ModelMergeBlocks",
    ),
}

# A choice that is none of the listed ones: the host's methods compare with one text, and take all else as the other.
OTHER_CHOICE = {
    ("ImageScale", "crop"): "disabled", ("LatentUpscale", "crop"): "disabled", ("CLIPVisionEncode", "crop"): "none",
    ("ConditioningSetMask", "set_cond_area"): "mask bounds", ("KSamplerAdvanced", "add_noise"): "enable",
    ("KSamplerAdvanced", "return_with_leftover_noise"): "disable", ("UNETLoader", "weight_dtype"): "default",
    ("CLIPLoader", "type"): "stable_diffusion", ("CLIPLoader", "device"): "default",
    ("DualCLIPLoader", "type"): "stable_diffusion", ("DualCLIPLoader", "device"): "default",
}

# Arguments that methods have and nodes do not declare: the value that means nothing. None and what is empty always do.
UNDECLARED = {
    "composite_method": ("normal",), "blend_mode": ("normal",), "denoise": (1, 1.0), "multiplier": (1000, 1000.0),
    "format": ("flac", "mp3", "opus"), "output_vae": (True, False), "output_clip": (True, False), "num_frames": (0,),
    "filename_prefix": ("ComfyUI",),
}


class Call:
    """How one method is called."""

    def __init__(self, node, name, module, method, arguments, aliases):
        self.node, self.name, self.module, self.method, self.aliases = node, name, module, method, aliases
        self.order = [argument.rstrip("?") for argument in arguments]
        self.optional = {argument[:-1] for argument in arguments if argument.endswith("?")}

    @property
    def place(self):
        return f"{self.name}.{self.method}()"


def _read():
    by_node, by_class, module = {}, {}, ""
    for line in CALLS.splitlines():
        if not line.startswith(" "):
            module = line.strip()
            continue
        parts, _, aliases = line.partition(" | ")
        name, method, *arguments = parts.split()
        name, _, node = name.partition("=")
        node = node.replace("+", " ") or name
        by_node[node] = by_class[module, name] = Call(node, name, module, method, arguments, aliases.split())
    return by_node, by_class


BY_NODE, BY_CLASS = _read()


def call_of(node):
    """How the method of a node is called; classes that the table does not have are of the newer kind."""
    known = BY_NODE.get(node)
    if known is not None:
        return known
    like = SAME_AS.get(node)
    if isinstance(like, tuple):
        return Call(node, node, BY_NODE[like[1]].module, like[0], [], [])
    if like is not None:
        base = BY_NODE[like]
        arguments = [name + "?" * (name in base.optional) for name in base.order]
        return Call(node, node, base.module, base.method, arguments, [])
    return Call(node, node, None, "execute", [], [])


_infos = {}


def info(node, fresh=False):
    """What a node declares, as `/object_info` has it. Lists of files change, the rest does not."""
    if fresh or node not in _infos:
        answer, _ = state.channel.call("class_info", {"class": node})
        _infos[node] = json.loads(answer)
    return _infos[node]


def declared(node, fresh=False):
    """Entries of the inputs by name, and the names of hidden values."""
    facts = info(node, fresh)
    groups, entries = facts["input"], {}
    for group in ("required", "optional"):
        for name in facts["input_order"].get(group, ()):
            entry = groups[group][name]
            entry = entry if isinstance(entry, list) else [entry]
            entries[name] = (group, entry[0], entry[1] if len(entry) > 1 else {})
    return entries, groups.get("hidden") or {}


def choices(entry):
    """The members of a choice; none for other types."""
    _, kind, options = entry
    if isinstance(kind, list):
        return kind
    return options.get("options") if kind == "COMBO" else None


def _fitting(node, name, entry, value):
    """A value in the type that the engine takes, where Python's methods are content with another one."""
    if isinstance(value, (list, dict)):
        return value
    kind = entry[1]
    if kind in ("INT", "FLOAT", "BOOLEAN") or choices(entry) is not None:
        value = models.plain_number(value)
    if kind == "INT" and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind == "INT" and isinstance(value, bool):
        return int(value)
    if kind == "BOOLEAN" and isinstance(value, (int, float)):
        return bool(value)
    members = choices(entry)
    if members is not None and value not in members:
        return OTHER_CHOICE.get((node, name), value)
    return value


def _bound(call, args, kwargs):
    """Arguments by name, as Python binds them to the method."""
    entries, hidden = declared(call.node)
    order = call.order or list(entries)
    if len(args) > len(order):
        raise TypeError(f"{call.place} takes {len(order)} arguments, but {len(args)} were given")
    given = dict(zip(order, args))
    # A method that does not name all that is declared takes any name.
    open_names = not call.order or any(name not in call.order for name in entries)
    for name, value in kwargs.items():
        if name in given:
            raise TypeError(f"{call.place} got multiple values for argument {name!r}")
        if name not in order and name not in entries and name not in hidden and not open_names:
            raise TypeError(f"{call.place} got an unexpected keyword argument {name!r}")
        given[name] = value
    for name, (group, kind, options) in entries.items():
        if name in given or (group == "optional" and "default" not in options):
            continue
        if group == "required" and call.order and name in call.order and name not in call.optional:
            raise TypeError(f"{call.place} is called without its argument {name!r}")
        members = choices((group, kind, options))
        if "default" in options:
            given[name] = options["default"]
        elif members:
            given[name] = members[0]
    return given, entries, hidden


def _is_nothing(name, value):
    if value is None or (isinstance(value, (list, tuple, dict)) and not value):
        return True
    return any(value is known or (type(value) is type(known) and value == known) for known in UNDECLARED.get(name, ()))


def run(call, args, kwargs):
    """Runs the node: values of its slots, and what it shows."""
    given, entries, hidden = _bound(call, args, kwargs)
    arguments = {}
    for name, value in given.items():
        if name in hidden:
            # Hidden values go by themselves.
            continue
        if name in entries:
            arguments[name] = _fitting(call.node, name, entries[name], value)
        elif name in call.order:
            if not _is_nothing(name, value):
                raise Unsupported(f"{call.place}: {name}={value!r} is not possible in Fresco, whose node {call.node} does not declare it")
        else:
            arguments[name] = value
    # What is optional and None is as good as not given.
    arguments = {name: value for name, value in arguments.items() if value is not None or entries.get(name, ("required",))[0] == "required"}
    return models.run_shown(call.node, arguments)


# Classes


class _Fact:
    """What a class says about itself, on the class and on its objects."""

    def __init__(self, read):
        self.read = read

    def __get__(self, instance, cls):
        return self.read(info(cls.fresco_class))


class Older:
    """A class of the older kind: a method on an object, and facts as attributes of the class."""

    RETURN_TYPES = _Fact(lambda facts: tuple(facts["output"]))
    RETURN_NAMES = _Fact(lambda facts: tuple(facts["output_name"]))
    OUTPUT_IS_LIST = _Fact(lambda facts: tuple(facts["output_is_list"]))
    OUTPUT_NODE = _Fact(lambda facts: bool(facts["output_node"]))
    CATEGORY = _Fact(lambda facts: str(facts["category"]))
    DESCRIPTION = _Fact(lambda facts: str(facts.get("description") or ""))
    DEPRECATED = _Fact(lambda facts: bool(facts.get("deprecated")))
    EXPERIMENTAL = _Fact(lambda facts: bool(facts.get("experimental")))
    RELATIVE_PYTHON_MODULE = _Fact(lambda facts: facts.get("python_module"))

    @classmethod
    def INPUT_TYPES(cls):
        groups = info(cls.fresco_class, fresh=True)["input"]
        return {
            group: {name: tuple(entry) if isinstance(entry, list) else entry for name, entry in members.items()}
            for group, members in groups.items()
        }


def _signature(call, first):
    """What `inspect` says about the method."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(first, kind)]
    for name in call.order:
        default = None if name in call.optional else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(parameters)


def _named(function, call, first):
    function.__name__, function.__qualname__ = call.method, f"{call.name}.{call.method}"
    function.__module__ = call.module or __name__
    if call.order:
        function.__signature__ = _signature(call, first)
    return function


def _older(call):
    special = _SPECIAL.get(call.node)

    def method(self, *args, **kwargs):
        if special is not None:
            made = special(call, args, kwargs)
            if made is not None:
                return made
        slots, ui = run(call, args, kwargs)
        if ui is None:
            return tuple(slots)
        return {"ui": ui, "result": tuple(slots)} if slots else {"ui": ui}

    members = {"fresco_class": call.node, "__module__": call.module or "nodes", "FUNCTION": call.method}
    for name in (call.method, *call.aliases):
        members[name] = _named(method, call, "self")
    return type(call.name, (Older,), members)


def _schema(node):
    """The declaration of a node in the newer form."""
    from comfy_api.latest import io

    facts = info(node, fresh=True)
    entries, hidden = declared(node)
    inputs = []
    for name, (group, kind, options) in entries.items():
        if isinstance(kind, list):
            options, kind = {**options, "options": kind}, "COMBO"
        inputs.append(io.Custom(kind).Input(name, optional=group == "optional", extra_dict=dict(options)))
    lists = facts["output_is_list"]
    outputs = []
    for slot, kind in enumerate(facts["output"]):
        kind = kind if isinstance(kind, str) else "COMBO"
        outputs.append(io.Custom(kind).Output(display_name=facts["output_name"][slot], is_output_list=bool(lists[slot])))
    known = {magic.name: magic for magic in io.Hidden}
    return io.Schema(
        node_id=node, display_name=facts.get("display_name"), category=facts["category"], inputs=inputs, outputs=outputs,
        hidden=[known[name] for name in hidden if name in known], description=facts.get("description") or "",
        is_output_node=bool(facts["output_node"]), is_deprecated=bool(facts.get("deprecated")),
        is_experimental=bool(facts.get("experimental")), is_api_node=bool(facts.get("api_node")),
        is_input_list=bool(facts.get("is_input_list")),
    )


def _newer(call):
    from comfy_api.latest import io

    def execute(cls, *args, **kwargs):
        slots, ui = run(call, args, kwargs)
        return io.NodeOutput(*slots, ui=ui)

    function = classmethod(_named(execute, call, "cls"))
    members = {
        "fresco_class": call.node, "__module__": call.module or "nodes", "execute": function,
        "define_schema": classmethod(lambda cls: _schema(call.node)),
    }
    members.update(dict.fromkeys(call.aliases, function))
    return type(io.ComfyNode)(call.name, (io.ComfyNode,), members)


def make(node):
    """The class of a built-in node."""
    from . import builtin_parts

    call = call_of(node)
    cls = _newer(call) if call.method == "execute" else _older(call)
    for name, part in builtin_parts.of(call.name, node).items():
        setattr(cls, name, part)
    return cls


# Methods that can more than their node


def _sample_advanced(call, args, kwargs):
    """KSamplerAdvanced of a part of the noise, which only the method knows."""
    given, _, _ = _bound(call, args, kwargs)
    denoise = given.pop("denoise", 1.0)
    if denoise is None or denoise == 1.0:
        return None
    import nodes

    return nodes.common_ksampler(
        given["model"], given["noise_seed"], given["steps"], given["cfg"], given["sampler_name"], given["scheduler"],
        given["positive"], given["negative"], given["latent_image"], denoise=denoise,
        disable_noise=given["add_noise"] == "disable", start_step=given["start_at_step"], last_step=given["end_at_step"],
        force_full_denoise=given["return_with_leftover_noise"] != "enable",
    )


def _sampling_of_sd3(call, args, kwargs):
    """ModelSamplingSD3 with a multiplier of its own, which only the method knows."""
    given, _, _ = _bound(call, args, kwargs)
    multiplier = given.get("multiplier")
    if multiplier is None or multiplier == 1000:
        return None
    import comfy.model_sampling

    class Sampling(comfy.model_sampling.ModelSamplingDiscreteFlow, comfy.model_sampling.CONST):
        pass

    model = given["model"].clone()
    sampling = Sampling(model.model.model_config)
    sampling.set_parameters(shift=given["shift"], multiplier=multiplier)
    model.add_object_patch("model_sampling", sampling)
    return (model,)


_SPECIAL = {"KSamplerAdvanced": _sample_advanced, "ModelSamplingSD3": _sampling_of_sd3}
