"""Objects of the engine that a pack may hold, pass on and call."""

import weakref

from . import UnsupportedAttribute
from .channel import _done_handles

_known = weakref.WeakValueDictionary()
_counts = {}


def _release(number):
    # Told later: the garbage collector may call this while a message is being sent.
    count = _counts.pop(number, 0)
    if count:
        _done_handles.append((number, count))


class Handle:
    """Stands for an object of the engine. Attributes that packs set are kept while this object lives."""

    KIND = "object"

    def __init__(self, number, kind, text):
        self._fresco_number = number
        self._fresco_kind = kind
        self._fresco_text = text
        weakref.finalize(self, _release, number).atexit = False

    def __repr__(self):
        return f"<{self._fresco_text}>"

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError(f"{self._fresco_text} is held by Fresco and cannot be pickled")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedAttribute(
            f"{type(self).__name__}.{name}: {self._fresco_text} is held by Fresco; this part of it cannot be reached from "
            "Python (level L3b needs a torch model inside the worker)"
        )


def from_wire(number, kind, text):
    from . import models

    known = _known.get(number)
    _counts[number] = _counts.get(number, 0) + 1
    if known is None:
        known = models.proxy_class(kind)(number, kind, text)
        _known[number] = known
    return known


def adopt(number, handle):
    """From now on the engine's object of this number is this one here, with all that packs set on it."""
    _counts[number] = _counts.get(number, 0) + 1
    _known[number] = handle
    weakref.finalize(handle, _release, number).atexit = False
