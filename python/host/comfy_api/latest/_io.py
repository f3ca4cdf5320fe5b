"""Schemas of newer nodes."""

import enum
import inspect

from comfy_execution.graph_utils import ExecutionBlocker


class FolderType(str, enum.Enum):
    input = "input"
    output = "output"
    temp = "temp"


class UploadType(str, enum.Enum):
    image = "image_upload"
    audio = "audio_upload"
    video = "video_upload"
    model = "file_upload"


class NumberDisplay(str, enum.Enum):
    number = "number"
    slider = "slider"


class Hidden(str, enum.Enum):
    unique_id = "UNIQUE_ID"
    prompt = "PROMPT"
    extra_pnginfo = "EXTRA_PNGINFO"
    dynprompt = "DYNPROMPT"
    auth_token_comfy_org = "AUTH_TOKEN_COMFY_ORG"
    api_key_comfy_org = "API_KEY_COMFY_ORG"


class RemoteOptions:
    def __init__(self, route, refresh_button, control_after_refresh="first", timeout=None, max_retries=None, refresh=None):
        self.values = {
            "route": route, "refresh_button": refresh_button, "control_after_refresh": control_after_refresh,
            "timeout": timeout, "max_retries": max_retries, "refresh": refresh,
        }

    def as_dict(self):
        return _without_nulls(self.values)


def _without_nulls(values):
    return {key: value for key, value in values.items() if value is not None}


def _value(member):
    return member.value if isinstance(member, enum.Enum) else member


class Input:
    io_type = "*"
    # Options beyond the common ones: parameter to wire name, in wire order.
    EXTRA = ()
    DEFAULTS = {}

    def __init__(self, id, display_name=None, optional=False, tooltip=None, lazy=None, extra_dict=None, **more):
        self.id = id
        self.display_name = display_name
        self.optional = optional
        self.tooltip = tooltip
        self.lazy = lazy
        self.extra_dict = extra_dict or {}
        self.more = {**self.DEFAULTS, **more}
        for name, value in self.more.items():
            if not hasattr(self, name):
                setattr(self, name, value)

    def get_io_type(self):
        return self.io_type

    def options(self):
        options = {"display_name": self.display_name, "tooltip": self.tooltip, "lazy": self.lazy}
        known = dict(self.EXTRA)
        for name, wire in self.EXTRA:
            options[wire] = _value(self.more.get(name))
        for name, value in self.more.items():
            if name not in known and isinstance(value, (bool, int, float, str, list, dict)):
                options[name] = value
        options.update(self.extra_dict)
        return _without_nulls(options)

    def kind(self):
        return None

    def described(self, group=None):
        made = {
            "name": self.id, "group": group or ("optional" if self.optional else "required"), "type": self.get_io_type(),
            "options": self.options(), "custom": False,
        }
        kind = self.kind()
        if kind is not None:
            made["kind"] = kind
        return made


class Output:
    io_type = "*"

    def __init__(self, id=None, display_name=None, tooltip=None, is_output_list=False, **more):
        self.id = id
        self.display_name = display_name
        self.tooltip = tooltip
        self.is_output_list = is_output_list
        self.more = more

    def get_io_type(self):
        return self.io_type

    template = None


WIDGET = (("default", "default"), ("socketless", "socketless"), ("widget_type", "widgetType"), ("force_input", "forceInput"))


def _type(name, extra=None, defaults=None, order=()):
    """A type with the classes of its inputs and outputs. `order`: positional parameters after the id."""

    def start(self, id, *args, **kwargs):
        names = ("display_name", "optional", "tooltip", "lazy") + tuple(order)
        kwargs.update(zip(names, args))
        Input.__init__(self, id, **kwargs)

    members = {"io_type": name, "EXTRA": extra or (), "DEFAULTS": defaults or {}}
    if order:
        members["__init__"] = start
    own_input = type("Input", (Input,), members)
    own_output = type("Output", (Output,), {"io_type": name})
    return type(name, (), {"io_type": name, "Type": object, "Input": own_input, "Output": own_output})


def Custom(io_type):
    return _type(io_type)


def comfytype(io_type, **kwargs):
    def decorate(cls):
        cls.io_type = io_type
        made = _type(io_type)
        for name in ("Input", "Output"):
            if not hasattr(cls, name):
                setattr(cls, name, getattr(made, name))
        return cls

    return decorate


Boolean = _type(
    "BOOLEAN", WIDGET + (("label_on", "label_on"), ("label_off", "label_off")),
    order=("default", "label_on", "label_off", "socketless", "force_input"),
)
Int = _type(
    "INT", WIDGET + tuple((n, n) for n in ("min", "max", "step", "control_after_generate")) + (("display_mode", "display"),),
    order=("default", "min", "max", "step", "control_after_generate", "display_mode", "socketless", "force_input"),
)
Float = _type(
    "FLOAT", WIDGET + tuple((n, n) for n in ("min", "max", "step", "round")) + (("display_mode", "display"),),
    order=("default", "min", "max", "step", "round", "display_mode", "socketless", "force_input"),
)
String = _type(
    "STRING", WIDGET + (("multiline", "multiline"), ("placeholder", "placeholder"), ("dynamic_prompts", "dynamicPrompts")),
    {"multiline": False}, ("multiline", "placeholder", "default", "dynamic_prompts", "socketless", "force_input"),
)
Webcam = _type("WEBCAM", WIDGET, order=("default", "socketless"))


def _choices(options):
    if isinstance(options, type) and issubclass(options, enum.Enum):
        return [member.value for member in options]
    return list(options) if options is not None else None


class Combo:
    io_type = "COMBO"
    Type = str

    class Input(Input):
        io_type = "COMBO"

        def __init__(
            self, id, options=None, display_name=None, optional=False, tooltip=None, lazy=None, default=None,
            control_after_generate=None, upload=None, image_folder=None, remote=None, socketless=None, extra_dict=None, **more,
        ):
            Input.__init__(self, id, display_name, optional, tooltip, lazy, extra_dict, **more)
            self.choices = _choices(options)
            self.wire = {
                "default": _value(default), "socketless": socketless, "multiselect": False, "options": self.choices,
                "control_after_generate": control_after_generate,
            }
            if upload is not None:
                self.wire[_value(upload)] = True
            self.wire["image_folder"] = _value(image_folder)
            self.wire["remote"] = remote.as_dict() if remote is not None else None

        def options(self):
            return {**Input.options(self), **_without_nulls(self.wire)}

    class Output(Output):
        io_type = "COMBO"

        def __init__(self, id=None, display_name=None, options=None, tooltip=None, is_output_list=False, **more):
            Output.__init__(self, id, display_name, tooltip, is_output_list, **more)
            self.choices = _choices(options)

        def get_io_type(self):
            return self.choices if self.choices is not None else "COMBO"


class MultiCombo:
    io_type = "COMBO"
    Type = list

    class Input(Combo.Input):
        def __init__(self, id, options, *args, default=None, placeholder=None, chip=None, **more):
            Combo.Input.__init__(self, id, options, *args, default=default, **more)
            self.wire.update(multiselect=True, multi_select=True, placeholder=placeholder, chip=chip)

    Output = Combo.Output


class MultiType:
    io_type = "COMFY_MULTITYPED_V3"
    Type = object

    class Input(Input):
        def __init__(self, id, types, display_name=None, optional=False, tooltip=None, lazy=None, extra_dict=None, **more):
            self.inner = id if isinstance(id, globals()["Input"]) else None
            name = self.inner.id if self.inner is not None else id
            super().__init__(name, display_name, optional, tooltip, lazy, extra_dict, **more)
            names = [self.inner.get_io_type()] if self.inner is not None else []
            names += [kind.io_type for kind in types]
            self.io_type = ",".join(dict.fromkeys(names))

        def options(self):
            own = super().options()
            return {**self.inner.options(), **own} if self.inner is not None else own


class MatchType:
    io_type = "COMFY_MATCHTYPE_V3"
    Type = object

    class Template:
        def __init__(self, template_id, allowed_types=None):
            self.template_id = template_id
            allowed = allowed_types if allowed_types is not None else AnyType
            allowed = allowed if isinstance(allowed, (list, tuple)) else [allowed]
            self.allowed = ",".join(kind.io_type for kind in allowed)

    class Input(Input):
        io_type = "COMFY_MATCHTYPE_V3"

        def __init__(self, id, template, display_name=None, optional=False, tooltip=None, lazy=None, extra_dict=None, **more):
            super().__init__(id, display_name, optional, tooltip, lazy, extra_dict, **more)
            self.template = template

        def kind(self):
            return {"is": "match", "template": self.template.template_id, "allowed": self.template.allowed}

    class Output(Output):
        io_type = "COMFY_MATCHTYPE_V3"

        def __init__(self, template, id=None, display_name=None, tooltip=None, is_output_list=False, **more):
            super().__init__(id, display_name, tooltip, is_output_list, **more)
            self.template = template.template_id


class Autogrow:
    io_type = "COMFY_AUTOGROW_V3"
    Type = dict

    class TemplatePrefix:
        def __init__(self, input, prefix, min=1, max=10):
            self.input, self.prefix, self.min, self.max, self.names = input, prefix, min, max, None

    class TemplateNames:
        def __init__(self, input, names, min=1):
            self.input, self.names, self.min = input, names[:100], min

    class Input(Input):
        io_type = "COMFY_AUTOGROW_V3"

        def __init__(self, id, template, display_name=None, optional=False, tooltip=None, lazy=None, extra_dict=None, **more):
            super().__init__(id, display_name, optional, tooltip, lazy, extra_dict, **more)
            self.template = template

        def kind(self):
            made = {"is": "autogrow", "template": self.template.input.described(), "min": self.template.min}
            if self.template.names is not None:
                made["names"] = self.template.names
            else:
                made["prefix"], made["max"] = self.template.prefix, min(self.template.max, 100)
            return made


class DynamicCombo:
    io_type = "COMFY_DYNAMICCOMBO_V3"
    Type = dict

    class Option:
        def __init__(self, key, inputs):
            self.key, self.inputs = key, inputs

    class Input(Input):
        io_type = "COMFY_DYNAMICCOMBO_V3"

        def __init__(self, id, options, display_name=None, optional=False, tooltip=None, lazy=None, extra_dict=None, **more):
            super().__init__(id, display_name, optional, tooltip, lazy, extra_dict, **more)
            self.choices = options

        def kind(self):
            options = [{"key": o.key, "inputs": [i.described() for i in o.inputs]} for o in self.choices]
            return {"is": "combo", "options": options}


class DynamicSlot:
    io_type = "COMFY_DYNAMICSLOT_V3"
    Type = dict

    class Input(Input):
        io_type = "COMFY_DYNAMICSLOT_V3"

        def __init__(self, slot, inputs, display_name=None, tooltip=None, lazy=None, extra_dict=None, **more):
            super().__init__(slot.id, display_name, True, tooltip, lazy, extra_dict, **more)
            self.slot, self.inputs = slot, inputs

        def kind(self):
            return {"is": "slot", "slot": self.slot.get_io_type(), "inputs": [i.described() for i in self.inputs]}


_NAMES = {
    "AnyType": "*", "Image": "IMAGE", "Mask": "MASK", "Latent": "LATENT", "Conditioning": "CONDITIONING",
    "Sampler": "SAMPLER", "Sigmas": "SIGMAS", "Noise": "NOISE", "Guider": "GUIDER", "Clip": "CLIP",
    "ControlNet": "CONTROL_NET", "Vae": "VAE", "Model": "MODEL", "ClipVision": "CLIP_VISION",
    "ClipVisionOutput": "CLIP_VISION_OUTPUT", "StyleModel": "STYLE_MODEL", "Gligen": "GLIGEN",
    "UpscaleModel": "UPSCALE_MODEL", "Audio": "AUDIO", "Video": "VIDEO", "SVG": "SVG", "LoraModel": "LORA_MODEL",
    "LossMap": "LOSS_MAP", "Voxel": "VOXEL", "Mesh": "MESH", "Hooks": "HOOKS", "HookKeyframes": "HOOK_KEYFRAMES",
    "TimestepsRange": "TIMESTEPS_RANGE", "LatentOperation": "LATENT_OPERATION", "FlowControl": "FLOW_CONTROL",
    "Accumulation": "ACCUMULATION", "Load3DCamera": "LOAD3D_CAMERA", "Load3D": "LOAD_3D",
    "Load3DAnimation": "LOAD_3D_ANIMATION", "Photomaker": "PHOTOMAKER", "Point": "POINT", "FaceAnalysis": "FACE_ANALYSIS",
    "BBOX": "BBOX", "SEGS": "SEGS", "AudioEncoder": "AUDIO_ENCODER", "AudioEncoderOutput": "AUDIO_ENCODER_OUTPUT",
    "AudioRecord": "AUDIO_RECORD", "WanCameraEmbedding": "WAN_CAMERA_EMBEDDING", "MODEL_PATCH": "MODEL_PATCH",
    "ModelPatch": "MODEL_PATCH", "Tracks": "TRACKS",
}
for _name, _wire in _NAMES.items():
    globals()[_name] = _type(_wire)


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    import re
    import sys

    wire = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
    print(f"comfy_api io.{name} is not known; it is taken as the type {wire}", file=sys.stderr)
    made = globals()[name] = _type(wire)
    return made


class Schema:
    def __init__(
        self, node_id, display_name=None, category="sd", inputs=None, outputs=None, hidden=None, description="",
        is_input_list=False, is_output_node=False, is_deprecated=False, is_experimental=False, is_api_node=False,
        not_idempotent=False, enable_expand=False, **more,
    ):
        self.node_id = node_id
        self.display_name = display_name
        self.category = category
        self.inputs = inputs or []
        self.outputs = outputs or []
        self.hidden = hidden or []
        self.description = description
        self.is_input_list = is_input_list
        self.is_output_node = is_output_node
        self.is_deprecated = is_deprecated
        self.is_experimental = is_experimental
        self.is_api_node = is_api_node
        self.not_idempotent = not_idempotent
        self.enable_expand = enable_expand
        # Newer packs say more than this host knows.
        self.more = more

    def validate(self):
        for kind, members in (("input", self.inputs), ("output", self.outputs)):
            ids = [member.id for member in members if member.id is not None]
            doubled = sorted({id for id in ids if ids.count(id) > 1})
            if doubled:
                raise ValueError(f"{self.node_id}: {kind}s with the same id: {', '.join(doubled)}")

    def finalize(self):
        hidden = list(self.hidden)
        wanted = [Hidden.auth_token_comfy_org, Hidden.api_key_comfy_org] if self.is_api_node else []
        wanted += [Hidden.prompt, Hidden.extra_pnginfo] if self.is_output_node else []
        hidden += [magic for magic in wanted if magic not in hidden]
        self.hidden = hidden
        for slot, output in enumerate(self.outputs):
            if output.id is None:
                output.id = f"_{slot}_{output.io_type}_"


class NodeOutput:
    def __init__(self, *args, ui=None, expand=None, block_execution=None):
        self.args = args
        self.ui = ui
        self.expand = expand
        self.block_execution = block_execution

    @property
    def result(self):
        return self.args if self.args else None

    def __getitem__(self, index):
        return self.args[index]

    @classmethod
    def from_dict(cls, data):
        result = data.get("result")
        args = () if result is None else tuple(result) if isinstance(result, (tuple, list)) else (result,)
        return cls(*args, ui=data.get("ui"), expand=data.get("expand"))


def _normalized(result):
    if isinstance(result, NodeOutput):
        return result
    if isinstance(result, dict):
        return NodeOutput.from_dict(result)
    if isinstance(result, ExecutionBlocker):
        return NodeOutput(block_execution=result.message)
    return NodeOutput(*result) if isinstance(result, (tuple, list)) else NodeOutput()


class HiddenHolder:
    def __init__(self, values):
        self.__dict__.update(values)

    def __getattr__(self, name):
        return None


class _Attribute:
    def __init__(self, read):
        self.read = read

    def __get__(self, instance, cls):
        return self.read(cls.GET_SCHEMA())


class _NodeType(type):
    def __setattr__(cls, name, value):
        if cls.__dict__.get("_fresco_locked"):
            raise AttributeError(f"{cls.__name__}.{name} cannot be set while the node runs; a node has no state")
        super().__setattr__(name, value)


class ComfyNode(metaclass=_NodeType):
    SCHEMA = None
    resources = None
    hidden = None
    FUNCTION = "EXECUTE_NORMALIZED"
    RELATIVE_PYTHON_MODULE = None

    @classmethod
    def define_schema(cls):
        raise NotImplementedError(f"{cls.__name__} has no define_schema")

    @classmethod
    def execute(cls, **kwargs):
        raise NotImplementedError(f"{cls.__name__} has no execute")

    @classmethod
    def EXECUTE_NORMALIZED(cls, *args, **kwargs):
        """What `execute` gives, whatever form it has, as a NodeOutput."""
        return _normalized(cls.execute(*args, **kwargs))

    @classmethod
    async def EXECUTE_NORMALIZED_ASYNC(cls, *args, **kwargs):
        return _normalized(await cls.execute(*args, **kwargs))

    @classmethod
    def validate_inputs(cls, **kwargs):
        return True

    @classmethod
    def fingerprint_inputs(cls, **kwargs):
        return None

    @classmethod
    def check_lazy_status(cls, **kwargs):
        return [name for name, value in kwargs.items() if value is None]

    @classmethod
    def overrides(cls, name):
        return getattr(cls, name).__func__ is not getattr(ComfyNode, name).__func__

    @classmethod
    def GET_SCHEMA(cls):
        schema = cls.define_schema()
        schema.validate()
        schema.finalize()
        return schema

    @classmethod
    def INPUT_TYPES(cls, include_hidden=True, return_schema=False, live_inputs=None):
        schema = cls.GET_SCHEMA()
        groups = {"required": {}}
        for member in schema.inputs:
            group = groups.setdefault("optional" if member.optional else "required", {})
            group[member.id] = (member.get_io_type(), member.options())
        if include_hidden and schema.hidden:
            groups["hidden"] = {magic.name: (magic.value,) for magic in schema.hidden}
        return (groups, schema) if return_schema else groups

    RETURN_TYPES = _Attribute(lambda schema: [output.get_io_type() for output in schema.outputs])
    RETURN_NAMES = _Attribute(lambda schema: [output.display_name or output.io_type for output in schema.outputs])
    OUTPUT_IS_LIST = _Attribute(lambda schema: [output.is_output_list for output in schema.outputs])
    OUTPUT_TOOLTIPS = _Attribute(lambda schema: [output.tooltip for output in schema.outputs])
    CATEGORY = _Attribute(lambda schema: schema.category)
    DESCRIPTION = _Attribute(lambda schema: schema.description)
    OUTPUT_NODE = _Attribute(lambda schema: schema.is_output_node)
    INPUT_IS_LIST = _Attribute(lambda schema: schema.is_input_list)
    DEPRECATED = _Attribute(lambda schema: schema.is_deprecated)
    EXPERIMENTAL = _Attribute(lambda schema: schema.is_experimental)
    API_NODE = _Attribute(lambda schema: schema.is_api_node)
    NOT_IDEMPOTENT = _Attribute(lambda schema: schema.not_idempotent)

    # What the worker asks

    @classmethod
    def fresco_describe(cls):
        schema = cls.GET_SCHEMA()
        outputs = [
            {
                "type": output.get_io_type(), "name": output.display_name or output.io_type, "list": output.is_output_list,
                "tooltip": output.tooltip, "template": output.template,
            }
            for output in schema.outputs
        ]
        return {
            "form": 3, "inputs": [member.described() for member in schema.inputs],
            "hidden": [[magic.name, magic.value] for magic in schema.hidden], "catch_all": None, "outputs": outputs,
            "display": schema.display_name, "category": schema.category, "description": schema.description,
            "output_node": schema.is_output_node, "input_is_list": schema.is_input_list,
            "not_idempotent": schema.not_idempotent, "deprecated": schema.is_deprecated,
            "experimental": schema.is_experimental, "api": schema.is_api_node,
            "async": inspect.iscoroutinefunction(cls.execute), "lazy": cls.overrides("check_lazy_status"),
            "changed": cls.overrides("fingerprint_inputs"),
        }

    @classmethod
    def fresco_prepare(cls, arguments, hidden=None):
        """A class of its own for one call: with its hidden values, and closed to changes."""
        own = type(cls)(cls.__name__, (cls,), {"__module__": cls.__module__})
        own.SCHEMA = cls.GET_SCHEMA()
        own.hidden = HiddenHolder(hidden or {})
        own._fresco_locked = True
        return own

    @classmethod
    def fresco_result(cls, result):
        """A result in the form of the older interface."""
        if isinstance(result, dict):
            result = NodeOutput.from_dict(result)
        if isinstance(result, (tuple, list)):
            return tuple(result)
        if result is None:
            return None
        if isinstance(result, ExecutionBlocker):
            return result
        if not isinstance(result, NodeOutput):
            raise ValueError(f"execute of {cls.__name__} gave a {type(result).__name__} and no NodeOutput")
        made = {}
        if result.ui is not None:
            made["ui"] = result.ui if isinstance(result.ui, dict) else result.ui.as_dict()
        if result.expand is not None:
            made["expand"] = result.expand
        if result.block_execution is not None:
            made["result"] = ExecutionBlocker(result.block_execution)
        elif result.result is not None:
            made["result"] = result.result
        return made
