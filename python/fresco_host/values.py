"""Values on their way between the engine and Python."""

import base64
import math
import reprlib
import sys

from . import handles, limits

FLOATS = ("float32", "float16", "bfloat16", "float64")
# Types whose parts may be references on their own, so that nodes of the engine can use the rest.
OPEN_TYPES = {"CONDITIONING", "LATENT", "AUDIO"}
DEPTH = 64


class NoTorch(RuntimeError, AttributeError):
    """A node needs torch, which is not installed; `hasattr` may ask all the same."""


class MissingTorch:
    """A tensor where torch is not installed: it can be passed on, and looked at with numpy."""

    def __init__(self, buffer, shape):
        self._buffer = buffer
        self.shape = tuple(shape)
        self.dtype = "float32"

    def numpy(self):
        import numpy

        return numpy.frombuffer(self._buffer, dtype=numpy.float32).reshape(self.shape)

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array.astype(dtype) if dtype is not None else array

    def __len__(self):
        return self.shape[0] if self.shape else 0

    def __repr__(self):
        return f"<tensor {list(self.shape)}; torch is not installed>"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoTorch(
            f"this node uses a tensor ({name}), and torch is not installed in {sys.executable}; install it there, or start "
            "Fresco with --python and an interpreter that has it"
        )


def _torch():
    """torch, if it is installed; imported when the first tensor comes."""
    if "torch" not in _tried:
        try:
            import torch
        except ImportError:
            torch = None
        _tried["torch"] = torch
    return _tried["torch"]


_tried = {}


class Imported:
    """Where an imported tensor's numbers came from."""

    def __init__(self, segment, offset, size, shape, index):
        self.segment, self.offset, self.size, self.shape, self.index = segment, offset, size, shape, index

    def unchanged(self, view):
        said = self.segment.untouched(self.offset, self.size)
        if said:
            return True
        # In pieces of bytes: comparing views goes number by number.
        view, step = memoryview(view), 1 << 20
        original = self.segment.original()
        with original:
            for start in range(0, self.size, step):
                end = min(start + step, self.size)
                if view[start:end].tobytes() != original[self.offset + start : self.offset + end]:
                    return False
        return True


def make_tensor(segments, offset, shape, index, call, number=None):
    segment = (segments or {}).get(number)
    count = math.prod(shape)
    size = count * 4
    torch = _torch()
    if size == 0:
        if torch is not None:
            return torch.empty(list(shape), dtype=torch.float32)
        return MissingTorch(b"", shape)
    buffer = memoryview(segment.map)[offset : offset + size]
    if torch is not None:
        tensor = torch.frombuffer(segment.map, dtype=torch.float32, count=count, offset=offset).reshape(list(shape))
    else:
        tensor = MissingTorch(buffer, shape)
    if call is not None:
        call.imported[id(tensor)] = (tensor, Imported(segment, offset, size, tuple(shape), index), buffer)
    return tensor


# Objects of this process that the engine holds, by number, and the other way round.
_objects = {}
_numbers = {}
_next = [0]


def keep(value):
    number = _numbers.get(id(value))
    if number is None:
        _next[0] += 1
        number = _next[0]
        _objects[number] = [value, 0]
        _numbers[id(value)] = number
    _objects[number][1] += 1
    return number


def drop(number, count):
    entry = _objects.get(number)
    if entry is None:
        return
    entry[1] -= count
    if entry[1] <= 0:
        del _objects[number]
        _numbers.pop(id(entry[0]), None)


def held():
    return len(_objects)


def held_object(number):
    entry = _objects.get(number)
    if entry is None:
        raise RuntimeError("a value of an earlier worker process is gone; run the workflow again")
    return entry[0]


def decode(value, segment, call=None):
    """What the engine sent, as Python has it."""
    if isinstance(value, list):
        return [decode(item, segment, call) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, content), = value.items()
        if key == "$t":
            return make_tensor(segment, content[0], content[1], content[2], call, content[3] if len(content) > 3 else None)
        if key == "$r":
            return held_object(content)
        if key == "$h":
            return handles.from_wire(*content)
        if key == "$f":
            return float(content)
        if key == "$b":
            from comfy_execution.graph_utils import ExecutionBlocker

            return ExecutionBlocker(content)
        if key == "$o":
            return _record(content, segment, call)
        if key == "$m":
            return {k: decode(v, segment, call) for k, v in content}
    return {k: decode(v, segment, call) for k, v in value.items()}


class VisionOutput:
    def __init__(self, parts):
        self.__dict__.update(parts)

    def __getitem__(self, name):
        return getattr(self, name)

    def __setitem__(self, name, value):
        setattr(self, name, value)


def _record(content, segment, call):
    kind, plain, tensors = content["kind"], decode(content["plain"], segment, call), decode(content["tensors"], segment, call)
    if kind == "vision_output":
        return VisionOutput(dict(zip(plain["names"], tensors)))
    if kind == "video":
        from fractions import Fraction

        from comfy_api.latest import InputImpl, Types

        audio = None
        if "sample_rate" in plain:
            audio = {"waveform": tensors[1], "sample_rate": plain["sample_rate"]}
        rate = Fraction(*plain["frame_rate"])
        video = InputImpl.VideoFromComponents(Types.VideoComponents(images=tensors[0], audio=audio, frame_rate=rate))
        return video
    if kind == "voxels":
        from comfy_api.latest import Types

        return Types.VOXEL(tensors[0])
    return handles.from_wire(*content["handle"])


class NotPortable(Exception):
    pass


def _tensor_bytes(tensor):
    """Numbers of a tensor of any kind as 32-bit floats, and their shape."""
    if isinstance(tensor, MissingTorch):
        return memoryview(tensor._buffer).cast("B"), list(tensor.shape)
    if hasattr(tensor, "detach"):
        torch = _torch()
        plain = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous()
        shape = list(plain.shape)
        if not math.prod(shape):
            return b"", shape
        return memoryview(plain.numpy()).cast("B"), shape
    import numpy

    plain = numpy.ascontiguousarray(tensor, dtype=numpy.float32)
    return (memoryview(plain).cast("B") if plain.size else b""), list(tensor.shape)


def _is_tensor(value):
    if isinstance(value, MissingTorch):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Tensor and not value.requires_grad


class Encoder:
    """Turns results into what the engine takes."""

    def __init__(self, out, call=None):
        self.out = out
        self.call = call
        self.kept = []
        self.handles = []

    def reference(self, value):
        number = keep(value)
        self.kept.append(number)
        return {"$r": [number, type(value).__name__, _describe(value), _size(value)]}

    def tensor(self, value, shape=None):
        known = self.call.imported.get(id(value)) if self.call is not None else None
        if known is not None and known[0] is value:
            origin, view = known[1], known[2]
            if tuple(value.shape) == origin.shape and origin.unchanged(view):
                return {"$s": origin.index}
        data, shape = _tensor_bytes(value)
        offset = self.out.add(data) if len(data) else 0
        return {"$t": [offset, shape]}

    def item(self, value, declared=None):
        """One slot's item. What has a foreign part stays here as a whole, but for a few types."""
        if declared in ("IMAGE", "MASK") and type(value).__module__ == "numpy" and hasattr(value, "shape"):
            return self.tensor(value)
        if declared in ("INT", "FLOAT", "BOOLEAN", "STRING") and not isinstance(value, (int, float, str, bool)):
            if hasattr(value, "item") and getattr(value, "shape", ()) in ((), (1,)):
                value = value.item()
        kept, pieces, size = len(self.kept), len(self.out.pieces), self.out.size
        try:
            return self.portable(value, declared in OPEN_TYPES, 0)
        except NotPortable:
            for number in self.kept[kept:]:
                drop(number, 1)
            del self.kept[kept:]
            del self.out.pieces[pieces:]
            self.out.size = size
            return self.reference(value)

    def portable(self, value, open_parts, depth):
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind is str or kind is int:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$f": str(value)}
        if isinstance(value, handles.Handle):
            from . import models

            # Alive until the message is sent.
            self.handles.append(value)
            return models.to_wire(value, self)
        native = getattr(kind, "fresco_handle", None)
        if native is not None:
            # What Fresco has an object of its own for.
            made = native(value)
            if made is not None:
                return self.portable(made, open_parts, depth)
        if _is_blocker(value):
            return {"$b": value.message}
        if depth < DEPTH:
            if kind is dict and all(type(key) is str for key in value):
                parts = {key: self.portable(part, open_parts, depth + 1) for key, part in value.items()}
                if any(key.startswith("$") for key in parts):
                    return {"$m": list(map(list, parts.items()))}
                return parts
            if kind is list or (kind is tuple and open_parts):
                return [self.portable(part, open_parts, depth + 1) for part in value]
            if open_parts and depth == 0 and hasattr(value, "keys"):
                try:
                    parts = {key: value[key] for key in value.keys()}
                except Exception:
                    # It reads a file when it is asked, for example. It stays here, and fails where somebody uses it.
                    raise NotPortable from None
                return self.portable(parts, True, 1)
        if _is_tensor(value):
            name = str(value.dtype).rpartition(".")[2]
            if name in FLOATS or open_parts:
                return self.tensor(value)
        if open_parts and type(value).__module__ == "numpy":
            letter = getattr(getattr(value, "dtype", None), "kind", "")
            if letter == "f" and value.shape:
                return self.tensor(value)
            if letter in "biuf" and letter and not value.shape:
                return self.portable(value.item(), True, depth)
        if isinstance(value, str):
            return str.__str__(value)
        record = self._record(value)
        if record is not None:
            return record
        if open_parts and depth:
            return self.reference(value)
        raise NotPortable

    def _record(self, value):
        if type(value) is VisionOutput:
            names = [name for name, part in vars(value).items() if _is_tensor(part)]
            tensors = [self.tensor(getattr(value, name)) for name in names]
            return {"$o": {"kind": "vision_output", "plain": {"names": names}, "tensors": tensors}}
        latest = sys.modules.get("comfy_api.latest")
        if latest is not None and isinstance(value, latest.InputImpl.VideoFromComponents):
            parts = value.get_components()
            rate = parts.frame_rate
            plain = {"frame_rate": [rate.numerator, rate.denominator]}
            tensors = [self.tensor(parts.images)]
            if parts.audio is not None:
                plain["sample_rate"] = parts.audio["sample_rate"]
                tensors.append(self.tensor(parts.audio["waveform"]))
            return {"$o": {"kind": "video", "plain": plain, "tensors": tensors}}
        if latest is not None and type(value) is latest.Types.VOXEL:
            return {"$o": {"kind": "voxels", "plain": {}, "tensors": [self.tensor(value.data)]}}
        return None


def _is_blocker(value):
    module = sys.modules.get("comfy_execution.graph_utils")
    return module is not None and isinstance(value, module.ExecutionBlocker)


_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = 20
_short.maxstring = _short.maxother = 200


def _describe(value):
    """A short text for messages. Built-in containers are not written out: they may be long."""
    try:
        return limits.within(1.0, _short.repr, value)[:200]
    except Exception:
        return f"<{type(value).__name__}>"


def _size(value):
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


def plain_json(value, room=None):
    """A JSON form of what a class declares; raises where there is none. `room` has how many values may still come."""
    room = [limits.VALUES] if room is None else room
    room[0] -= 1
    if room[0] < 0:
        raise limits.TooMuch(f"it has more than {limits.VALUES} values")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value) if not hasattr(value, "value") or not isinstance(value.value, str) else value.value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {plain_json(k) if isinstance(k, str) else str(k): plain_json(v, room) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_json(v, room) for v in value]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return plain_json(value.item())
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return {str(k): plain_json(value[k], room) for k in limits.listed(value, limits.VALUES)}
    raise TypeError(f"{type(value).__name__} has no JSON form")

