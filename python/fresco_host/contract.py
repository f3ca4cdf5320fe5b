"""What the engine asks of a class: what it declares, whether inputs will do, whether it changed, and to run."""

import asyncio
import inspect
import json
import math
import threading
import time
import traceback

from . import limits, speaker, state, values
from .channel import Outgoing

UNLIKELY = "FRESCO_UNLIKELY_a91c07"
MAGICS = {"PROMPT", "DYNPROMPT", "EXTRA_PNGINFO", "UNIQUE_ID", "AUTH_TOKEN_COMFY_ORG", "API_KEY_COMFY_ORG"}

classes = {}
modules = {}
instances = {}
_prompts = {}


def class_named(name):
    try:
        return classes[name]
    except KeyError:
        raise KeyError(f"there is no class {name!r} in this worker") from None


def is_v3(cls):
    return hasattr(cls, "GET_SCHEMA") and hasattr(cls, "define_schema")


# What is declared


def _plainly(cls):
    return cls.INPUT_TYPES()


def get_input_info(cls, nested=True):
    """Two packs look at the names of their callers: this one asks for the order of nodes."""
    if nested:
        return get_input_info(cls, False)
    return cls.INPUT_TYPES()


def _custom(kind):
    own = type(kind)
    if own is str or not isinstance(kind, str):
        return False
    return own.__ne__ is not str.__ne__ or own.__eq__ is not str.__eq__


def _type(kind, room=None):
    if kind is None:
        return "*"
    return values.plain_json(kind, room)


def plain_type(kind):
    """A type as text that can be compared and be a key, whatever a pack's own text does."""
    return _text(kind) if isinstance(kind, str) else "COMBO"


def _entry(entry):
    if isinstance(entry, str):
        return [entry, {}]
    entry = limits.listed(entry)
    kind = entry[0] if entry else "*"
    options = entry[1] if len(entry) > 1 else None
    return [kind, options]


def _group(info, group):
    """The inputs of a group by their names: a dictionary, or any object that a pack has in its place."""
    return info.get(group) if hasattr(info, "get") else None


def _groups(info):
    inputs = []
    room = [limits.VALUES]
    for group in ("required", "optional"):
        members = _group(info, group)
        if members is None:
            continue
        for name in limits.listed(members):
            kind, options = _entry(members[name])
            inputs.append(
                {
                    "name": _text(name),
                    "group": group,
                    "type": _type(kind, room),
                    "options": values.plain_json(options, room) if options is not None else None,
                    "custom": _custom(kind),
                }
            )
            if len(inputs) > limits.NAMES:
                raise limits.TooMuch(f"it has more than {limits.NAMES} inputs")
    return inputs


def _catch_all(info):
    """How a group treats names that it does not list, if it takes them."""
    for group in ("required", "optional"):
        members = _group(info, group)
        # Without a test of its own, Python would look for the name among all that it lists.
        if members is None or type(members) is dict or not hasattr(type(members), "__contains__"):
            continue
        try:
            if UNLIKELY in members:
                _, options = _entry(members[UNLIKELY])
                options = options if isinstance(options, dict) else {}
                return {"lazy": bool(options.get("lazy")), "raw": bool(options.get("rawLink"))}
        except Exception:
            continue
    return None


def _hidden(info):
    hidden = _group(info, "hidden")
    found = []
    for name in limits.listed(hidden) if hidden is not None else ():
        value = hidden[name]
        if isinstance(value, (list, tuple)):
            value = value[0] if value else ""
        # As plain text: a text type of a pack may have no hash, or be equal to everything.
        value = _text(value) if isinstance(value, str) else None
        found.append([_text(name), value if value in MAGICS else None])
    return found


def _validator(cls):
    function = getattr(cls, "VALIDATE_INPUTS", None)
    if is_v3(cls):
        if not cls.overrides("validate_inputs"):
            return None
        function = cls.validate_inputs
    if function is None:
        return None
    spec = inspect.getfullargspec(function)
    names = [name for name in spec.args if name not in ("self", "cls")]
    return {"params": names, "all": spec.varkw is not None, "types": "input_types" in names}


def describe(name, mode):
    """What a class declares. Raises `TimeoutError` if it does not say so in time."""
    return limits.within(_patience(), _describe, name, mode)


# Classes that did not say in time what they declare.
_slow = set()


def _patience():
    """A pack all of whose classes hang must not take minutes."""
    return limits.DESCRIBE if len(_slow) < 3 else 1.0


def describe_both(name):
    """Plainly, and as the order of nodes asks."""
    try:
        both = [describe(name, mode) for mode in ("plain", "scheduling")]
    except TimeoutError:
        _slow.add(name)
        raise
    _slow.discard(name)
    return both


def _describe(name, mode):
    cls = class_named(name)
    if is_v3(cls):
        return _describe_v3(name, cls)
    info = get_input_info(cls) if mode == "scheduling" else _plainly(cls)
    returns = _return_types(cls)
    lists, names, tips = (_listed(cls, key) for key in ("OUTPUT_IS_LIST", "RETURN_NAMES", "OUTPUT_TOOLTIPS"))
    outputs = []
    for slot, kind in enumerate(returns):
        tip = tips[slot] if slot < len(tips) else None
        outputs.append(
            {
                "type": _type(kind),
                "name": _text(names[slot]) if slot < len(names) else plain_type(kind),
                "list": bool(lists[slot]) if slot < len(lists) else False,
                "tooltip": _text(tip),
                "custom": _custom(kind),
            }
        )
    function = getattr(cls, getattr(cls, "FUNCTION", "") or "", None)
    import nodes

    return {
        "form": 1,
        "inputs": _groups(info),
        "hidden": _hidden(info),
        "catch_all": _catch_all(info),
        "outputs": outputs,
        "display": _text(nodes.NODE_DISPLAY_NAME_MAPPINGS.get(name)),
        "category": _text(getattr(cls, "CATEGORY", "sd")) or "sd",
        "description": _text(getattr(cls, "DESCRIPTION", "")) or "",
        "module": modules.get(name, "custom_nodes"),
        "output_node": getattr(cls, "OUTPUT_NODE", False) is True,
        "input_is_list": bool(getattr(cls, "INPUT_IS_LIST", False)),
        "not_idempotent": bool(getattr(cls, "NOT_IDEMPOTENT", False)),
        "deprecated": bool(getattr(cls, "DEPRECATED", False)),
        "experimental": bool(getattr(cls, "EXPERIMENTAL", False)),
        "api": values.plain_json(getattr(cls, "API_NODE", None)),
        "async": inspect.iscoroutinefunction(function),
        "lazy": getattr(cls, "check_lazy_status", None) is not None,
        "changed": getattr(cls, "IS_CHANGED", None) is not None,
        "validator": _validator(cls),
    }


def _text(value):
    return None if value is None else str.__str__(value) if isinstance(value, str) else str(value)


def _describe_v3(name, cls):
    described = cls.fresco_describe()
    described["module"] = modules.get(name, "custom_nodes")
    described["validator"] = _validator(cls)
    return values.plain_json(described)


def _listed(cls, key):
    found = getattr(cls, key, None)
    return limits.listed(found) if found is not None else []


def _return_types(cls):
    return _listed(cls, "RETURN_TYPES")


def match(received, declared):
    """Whether Python says that an output's type is an input's."""
    return limits.within(limits.CHECK, lambda: not (_return_type(received) != _input_type(declared)))


def _return_type(place):
    cls = classes.get(place.get("class"))
    if cls is not None:
        returns = _return_types(cls)
        if 0 <= place.get("slot", -1) < len(returns):
            return returns[place["slot"]]
    return place.get("type")


def _input_type(place):
    cls = classes.get(place.get("class"))
    if cls is not None:
        info = cls.INPUT_TYPES()
        for group in ("required", "optional", "hidden"):
            members = _group(info, group)
            if members is not None and hasattr(type(members), "__contains__") and place["input"] in members:
                return _entry(members[place["input"]])[0]
    return place.get("type")


# Questions about a node


def _arguments(asked, segment, call):
    return {name: values.decode(value, segment, call) for name, value in asked.items()}


async def _maybe_await(result):
    return await result if inspect.isawaitable(result) else result


async def validate(asked, segment, call):
    cls = class_named(asked["class"])
    arguments = _arguments(asked["args"], segment, call)
    kind = _validator(cls)
    if kind is None:
        return True
    if getattr(cls, "INPUT_IS_LIST", False):
        arguments = {name: [value] for name, value in arguments.items()}
    if not kind["all"]:
        arguments = {name: value for name, value in arguments.items() if name in kind["params"]}
    if kind["types"]:
        types = dict(asked.get("types") or {})
        for name, place in (asked.get("sources") or {}).items():
            if name in types:
                types[name] = _return_type({"class": place[0], "slot": place[1], "type": types[name]})
        arguments["input_types"] = types
    function = cls.validate_inputs if is_v3(cls) else cls.VALIDATE_INPUTS
    # On the loop that also serves requests: nothing of it may hold up the others for long.
    result = limits.within(limits.CHECK, lambda: function(**arguments))
    if inspect.isawaitable(result):
        try:
            result = await asyncio.wait_for(result, limits.CHECK)
        except asyncio.TimeoutError:
            raise TimeoutError(f"VALIDATE_INPUTS took longer than {limits.CHECK:g} seconds") from None
    if result is True:
        return True
    return _text(result) if isinstance(result, str) else False


def _token(value):
    try:
        json.dumps(value, allow_nan=False)
        return value
    except (TypeError, ValueError, RecursionError):
        pass
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isnan(value):
        return {"$f": str(value)}
    return {"$f": "nan"}


async def changed(asked, segment, call):
    cls = class_named(asked["class"])
    arguments = _arguments(asked["args"], segment, call)
    _add_hidden(arguments, asked.get("hidden") or {}, asked, call)
    function = cls.fingerprint_inputs if is_v3(cls) else cls.IS_CHANGED
    return _token(await _maybe_await(function(**arguments)))


def _instance(cls, number):
    if number is None:
        return cls()
    known = instances.get(number)
    if known is None or type(known) is not cls:
        known = instances[number] = cls()
    return known


async def lazy(asked, segment, call):
    cls = class_named(asked["class"])
    arguments = _arguments(asked["args"], segment, call)
    _add_hidden(arguments, asked.get("hidden") or {}, asked, call)
    if is_v3(cls):
        names = cls.fresco_prepare(arguments).check_lazy_status(**arguments)
    else:
        names = _instance(cls, asked.get("instance")).check_lazy_status(**arguments)
    names = await _maybe_await(names)
    return [name for name in names or () if isinstance(name, str)]


# Hidden inputs


class _Prompt:
    def __init__(self):
        self.prompt = None
        self.pnginfo = None
        self.shown = {}


def _digest(value):
    try:
        return json.dumps(value, default=repr)
    except (TypeError, ValueError):
        return None


def _prompt_of(call):
    known = _prompts.get(call.prompt_id)
    if known is None:
        if len(_prompts) > 4:
            _prompts.pop(next(iter(_prompts)))
        known = _prompts[call.prompt_id] = _Prompt()
    return known


def _add_hidden(arguments, hidden, asked, call):
    """Fills in what a class wants to know; `hidden` has the magic of each name."""
    known = _prompt_of(call)
    given = asked.get("given") or {}
    if "prompt" in given:
        known.prompt = json.loads(given["prompt"])
        known.shown["prompt"] = _digest(known.prompt)
    if "extra_pnginfo" in given:
        known.pnginfo = json.loads(given["extra_pnginfo"])
        known.shown["extra_pnginfo"] = _digest(known.pnginfo)
    for name, magic in hidden.items():
        if magic == "PROMPT":
            arguments[name] = known.prompt
        elif magic == "EXTRA_PNGINFO":
            arguments[name] = known.pnginfo
        elif magic == "UNIQUE_ID":
            arguments[name] = call.node_id
        elif magic == "DYNPROMPT":
            from comfy_execution.graph import DynamicPrompt

            arguments[name] = DynamicPrompt._from_engine(values.decode(given.get("dynprompt") or [], None, None))
        elif magic == "AUTH_TOKEN_COMFY_ORG":
            arguments[name] = given.get("auth_token")
        elif magic == "API_KEY_COMFY_ORG":
            arguments[name] = given.get("api_key")


def _changes(call):
    """What a node changed in the prompt or in what is saved with pictures."""
    known = _prompts.get(call.prompt_id)
    changes = {}
    if known is None:
        return changes
    for name, value in (("prompt", known.prompt), ("extra_pnginfo", known.pnginfo)):
        if value is None or name not in known.shown:
            continue
        digest = _digest(value)
        if digest is not None and digest != known.shown[name]:
            known.shown[name] = digest
            changes[name] = digest
    return changes


# Running


class Interrupter:
    """Ends a synchronous call that does not look at the flag, as far as Python can."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = None

    def begin(self, prompt):
        with self.lock:
            self.running = (prompt, threading.get_ident())

    def end(self):
        with self.lock:
            self.running = None

    def interrupt(self, prompt):
        state.interrupted_prompt = prompt
        state.interrupted.set()
        threading.Thread(target=self._later, args=(prompt,), daemon=True).start()

    def _later(self, prompt):
        import ctypes

        import comfy.model_management as management

        time.sleep(0.3)
        for _ in range(20):
            with self.lock:
                running = self.running
                if running is None or running[0] != prompt or not state.interrupted.is_set():
                    return
                error = ctypes.py_object(management.InterruptProcessingException)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(running[1]), error)
            time.sleep(0.25)


interrupter = Interrupter()


def _no_gradients():
    import contextlib
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "inference_mode"):
        return contextlib.nullcontext()
    return torch.inference_mode()


async def run(asked, segment, call):
    """Runs one call of a node. Gives the reply's body and what goes with it."""
    cls = class_named(asked["class"])
    if state.interrupted_prompt != call.prompt_id:
        state.interrupted.clear()
    arguments = _arguments(asked["args"], segment, call)
    speaker.speaks(modules.get(call.class_name, "").removeprefix("custom_nodes."))
    hidden = asked.get("hidden") or {}
    if is_v3(cls):
        values_of = {}
        _add_hidden(values_of, hidden, asked, call)
        bound = cls.fresco_prepare(arguments, values_of)
        function = bound.execute
    else:
        _add_hidden(arguments, hidden, asked, call)
        function = getattr(_instance(cls, asked.get("instance")), cls.FUNCTION)
    if inspect.iscoroutinefunction(function):
        with _no_gradients():
            result = await function(**arguments)
    else:
        interrupter.begin(call.prompt_id)
        try:
            with _no_gradients():
                result = function(**arguments)
        finally:
            interrupter.end()
    out = Outgoing()
    encoder = values.Encoder(out, call)
    body = _result(cls, result, encoder)
    body["changes"] = _changes(call)
    tell_folders()
    tell_memory()
    call.imported.clear()
    return body, out, encoder.handles


def _result(cls, result, encoder):
    if is_v3(cls):
        result = cls.fresco_result(result)
    types = [plain_type(kind) for kind in _return_types(cls)]
    lists = _listed(cls, "OUTPUT_IS_LIST")
    body = {"slots": None, "ui": None, "expand": None}
    slots = result
    if isinstance(result, dict):
        slots = result.get("result")
        if "ui" in result:
            body["ui"] = {str(name): _shown(value) for name, value in (result["ui"] or {}).items()}
        if result.get("expand"):
            body["expand"] = [_sub_node(name, node, encoder) for name, node in result["expand"].items()]
        if "result" not in result:
            return body
    if slots is None:
        return body
    if values._is_blocker(slots):
        body["blocked"] = slots.message
        return body
    if not isinstance(slots, (tuple, list)):
        slots = [slots[slot] for slot in range(len(types))]
    body["slots"] = [
        _slot(value, types[slot] if slot < len(types) else None, slot < len(lists) and lists[slot], encoder, body["expand"])
        for slot, value in enumerate(slots)
    ]
    return body


def _slot(value, declared, is_list, encoder, expanded):
    if expanded and isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        return list(value)
    if is_list and not values._is_blocker(value):
        return [encoder.item(item, declared) for item in value]
    return encoder.item(value, declared)


def _shown(value):
    try:
        return [values.plain_json(item) for item in value]
    except TypeError as error:
        raise TypeError(f"what a node shows must be a sequence of plain values: {error}") from None


def _sub_node(name, node, encoder):
    inputs = {}
    for key, value in node.get("inputs", {}).items():
        inputs[key] = encoder.item(value)
    return [name, node["class_type"], inputs, node.get("override_display_id")]


_folders = [None]
_taken = [0]


def tell_memory():
    """What torch has taken of GPUs, which the engine cannot see as its own."""
    import sys

    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not getattr(cuda, "is_initialized", bool)():
        return
    taken = sum(cuda.memory_reserved(device) for device in range(cuda.device_count()))
    if taken != _taken[0]:
        _taken[0] = taken
        state.channel.event("memory", gpu=taken)


def tell_folders():
    """Folder types that packs changed since they were loaded."""
    import folder_paths

    table = folder_paths.folder_names_and_paths
    mark = (len(table), sum(len(entry[0]) for entry in table.values() if isinstance(entry, (list, tuple)) and entry))
    if _folders[0] is not None and _folders[0] != mark:
        from .loader import folder_table

        state.channel.event("folders", table=folder_table())
    _folders[0] = mark


# Errors


def full_type_name(kind):
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def error_body(error):
    import sys

    management = sys.modules.get("comfy.model_management")
    interrupted = management is not None and isinstance(error, management.InterruptProcessingException)
    torch = sys.modules.get("torch")
    memory = getattr(torch, "OutOfMemoryError", None) if torch is not None else None
    frames = traceback.extract_tb(error.__traceback__)
    # Our own frames say nothing to the author of a pack.
    own = __file__.rsplit("contract.py", 1)[0]
    kept = [frame for frame in frames if not frame.filename.startswith(own)] or frames
    return {
        "type": full_type_name(type(error)),
        "message": str(error),
        "trace": traceback.format_list(kept),
        "interrupted": bool(interrupted) or isinstance(error, asyncio.CancelledError),
        "memory": memory is not None and isinstance(error, memory),
    }
