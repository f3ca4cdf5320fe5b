"""Weights of the engine as packs see them: by name, as changes of each other, and with what packs change about them."""

import uuid

from . import Unsupported, models, values


def _kind_of_patch(value):
    """A change in one of the host's forms: its kind and its parts."""
    if isinstance(value, KeyPatches):
        return value.as_change()
    if isinstance(value, list) and value and isinstance(value[0], (tuple, list)) and len(value[0]) == 2 and callable(value[0][1]):
        # As get_key_patches of a module gives it: the weight and how it is read, and the changes of it.
        import comfy.lora

        (weight, read), *changes = value
        return "diff", [comfy.lora.calculate_weight(changes, read(weight), "") if changes else read(weight)]
    adapter = getattr(value, "weights", None)
    if adapter is not None and not isinstance(value, (tuple, list)):
        return str(getattr(value, "name", "lora")), list(adapter)
    if not isinstance(value, (tuple, list)):
        return "diff", [value]
    if len(value) == 1:
        return "diff", [value[0]]
    if len(value) == 2 and isinstance(value[0], str):
        kind, parts = value
        parts = list(parts) if isinstance(parts, (tuple, list)) else [parts]
        if kind == "diff" and len(parts) > 1 and isinstance(parts[1], dict):
            parts = [parts[0], bool(parts[1].get("pad_weight"))]
        return kind, parts
    raise Unsupported(f"a change of a weight of the form {type(value).__name__} is not known")


class _Weights:
    """What can be done with the weights of a model that the engine has."""

    def _keys(self):
        if "_fresco_keys" not in self.__dict__:
            self._fresco_keys = dict((key, tuple(shape)) for key, shape in models.method("weights.keys", value=self))
        return self._fresco_keys

    def model_state_dict(self, filter_prefix=None):
        return LazyWeights(self, filter_prefix)

    def get_key_patches(self, filter_prefix=None):
        shapes = self._keys()
        return {key: KeyPatches(self, key, shape) for key, shape in shapes.items() if filter_prefix is None or key.startswith(filter_prefix)}

    def add_patches(self, patches, strength_patch=1.0, strength_model=1.0):
        """Adds changes of weights; gives the keys that the model has."""
        known, added = self._keys(), set()
        for key, value in patches.items():
            place = key if isinstance(key, str) else key[0]
            offset = key[1] if not isinstance(key, str) and len(key) > 1 else None
            if place not in known:
                continue
            kind, parts = _kind_of_patch(value)
            parts = [part._load() if isinstance(part, LazyWeight) else part for part in parts]
            self._fresco_patches.append([place, list(offset) if offset else None, kind, parts, float(strength_patch), float(strength_model)])
            self.patches.setdefault(place, []).append((strength_patch, value, strength_model, offset, None))
            added.add(key)
        self.patches_uuid = uuid.uuid4()
        return added


class LazyWeight:
    """A weight whose numbers come when somebody wants more than its shape."""

    def __init__(self, owner, key, shape):
        self._owner, self._key = owner, key
        self._torch_shape = shape
        self._tensor = None

    @property
    def shape(self):
        torch = values._torch()
        return torch.Size(self._torch_shape) if torch is not None else self._torch_shape

    def _load(self):
        if self._tensor is None:
            self._tensor = models.method("weights.get", value=self._owner, key=self._key)
        return self._tensor

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._load(), name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = lambda value: value._load() if isinstance(value, cls) else value  # noqa: E731
        args = [[plain(one) for one in value] if isinstance(value, (list, tuple)) else plain(value) for value in args]
        return function(*args, **{name: plain(value) for name, value in (kwargs or {}).items()})


def _forwarded(name):
    def function(self, *args):
        args = [value._load() if isinstance(value, LazyWeight) else value for value in args]
        return getattr(self._load(), name)(*args)

    return function


for _name in "add radd sub rsub mul rmul truediv rtruediv neg matmul getitem len iter float array".split():
    setattr(LazyWeight, f"__{_name}__", _forwarded(f"__{_name}__"))


class KeyPatches(list):
    """A weight of a model of the engine, as `get_key_patches` gives it: the weight and how it is read. As a change of another
    model it stays in the engine."""

    def __init__(self, owner, key, shape):
        super().__init__([(LazyWeight(owner, key, shape), lambda weight: weight)])
        self._owner, self._key = owner, key
        self._first = self[0]

    def as_change(self):
        if len(self) == 1 and self[0] is self._first:
            return "weight", [self._owner, self._key]
        return _kind_of_patch(list(self))


class LazyWeights(dict):
    """Weights by name; the numbers come when somebody wants them."""

    def __init__(self, owner, prefix=None):
        super().__init__({key: None for key in owner._keys() if prefix is None or key.startswith(prefix)})
        self._owner = owner

    def __getitem__(self, key):
        known = super().__getitem__(key)
        if known is None:
            known = models.method("weights.get", value=self._owner, key=key)
            super().__setitem__(key, known)
        return known

    def get(self, key, default=None):
        return self[key] if key in self else default

    def items(self):
        return ((key, self[key]) for key in self)

    def values(self):
        return (self[key] for key in self)
