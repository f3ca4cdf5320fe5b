"""Names of the host that exist so that packs can be imported, and that say what is missing when they are used.

A name of a host module is, in this order: what the module's own file defines; another thing of the host (`ALIASES`); a class
of the host's nodes; a placeholder if the host has such a name (`host_names.py`); and else no name at all, so that `hasattr`
tells packs what the host has. A module with a file of ours ends with `__getattr__ = fallback(__name__)`; a module without one
is made of its names alone.
"""

import abc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import types

from . import Unsupported, UnsupportedAttribute
from .host_names import ALIASES, EMPTY, NAMES

_names = {module: frozenset(name.partition(".")[0] for name in found) for module, found in NAMES.items()}
_listed = frozenset(f"{module}.{name}" for module, found in NAMES.items() for name in found)
MODULES = frozenset(NAMES) | frozenset(EMPTY)
# Packages of the host: those of ours and those that are only names.
_PACKAGES = frozenset(module.rpartition(".")[0] for module in MODULES if "." in module)
# What the host has imported before it imports a pack: packs that put `sys.modules` back as it was would lose these.
LIBRARIES = (
    "torch", "torchvision", "numpy", "PIL.Image", "aiohttp", "einops", "safetensors.torch", "transformers", "tqdm", "yaml", "scipy",
)


def _message(place):
    return f"{place} needs a torch model inside the worker (level L3b); Fresco has no such thing in this version"


class _PlaceholderType(abc.ABCMeta):
    """A class that can be named, kept, subclassed and asked about, and nothing else."""

    def __getattr__(cls, name):
        place = f"{cls.fresco_place}.{name}"
        # A class of a pack that builds on a placeholder has what it defines, and no more.
        if "fresco_place" not in vars(cls) or (name.startswith("_") and place not in _listed):
            raise UnsupportedAttribute(_message(place))
        made = _made(cls.__module__, f"{cls.__qualname__}.{name}", place)
        setattr(cls, name, made)
        return made

    def __call__(cls, *args, **kwargs):
        if "fresco_place" not in vars(cls):
            return super().__call__(*args, **kwargs)
        # As a decorator it gives back what it was put on.
        if len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType)):
            return args[0]
        raise Unsupported(_message(cls.fresco_place))

    def __bool__(cls):
        return True

    def _used(cls, *_args):
        raise Unsupported(_message(cls.fresco_place))

    __iter__ = __len__ = __getitem__ = __setitem__ = __contains__ = _used


def _made(module, name, place):
    def __init__(self, *args, **kwargs):
        raise Unsupported(_message(place))

    def __getattr__(self, name):
        further = getattr(super(made, self), "__getattr__", None)
        if further is not None:
            return further(name)
        raise UnsupportedAttribute(_message(f"{place}.{name}"))

    body = {
        "__module__": module, "__qualname__": name, "fresco_place": place, "fresco_placeholder": True, "__init__": __init__,
        "__getattr__": __getattr__,
    }
    made = _PlaceholderType(name.rpartition(".")[2], (), body)
    return made


def placeholder(module, name):
    return _made(module, name, f"{module}.{name}")


def is_placeholder(value):
    return isinstance(value, _PlaceholderType) and "fresco_place" in vars(value)


def fallback(module):
    """`__getattr__` of a module of the host."""

    def missing(name):
        place = f"{module}.{name}"
        found = _known(module, name, place)
        if found is _NOTHING:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        # Kept, so that what a pack compares is the same thing each time. Submodules are kept by the import.
        if not isinstance(found, types.ModuleType) and module in sys.modules:
            setattr(sys.modules[module], name, found)
        return found

    return missing


_NOTHING = object()


def _known(module, name, place):
    if place in ALIASES:
        return _aliased(ALIASES[place])
    if place in MODULES or (not name.startswith("_") and _has_file(place)):
        return importlib.import_module(place)
    if name not in _names.get(module, ()):
        return _NOTHING
    if module.startswith("comfy_extras."):
        import nodes

        # Nodes of the host run in the engine.
        node = nodes.fresco_class(module, name)
        if node is not None:
            return node
    return placeholder(module, name)


def _aliased(target):
    """A module, or what one has under a name; nothing where a library is not installed."""
    try:
        return importlib.import_module(target)
    except ImportError:
        module, _, name = target.rpartition(".")
        return getattr(importlib.import_module(module), name) if module in sys.modules else _NOTHING


def _has_file(place):
    parent = sys.modules.get(place.rpartition(".")[0])
    if getattr(parent, "__path__", None) is None:
        return False
    try:
        return importlib.util.find_spec(place) is not None
    except (ImportError, ValueError):
        return False


class _Loader(importlib.abc.Loader):
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = fallback(module.__name__)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            return importlib.machinery.ModuleSpec(name, _Loader(), is_package=name in _PACKAGES)
        return None


def install():
    # Last: a module with a file of ours is that file.
    sys.meta_path.append(_Finder())


def import_libraries():
    """The libraries that the host has imported before any pack, as far as they are installed."""
    for name in LIBRARIES:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            # What is broken is an error of the packs that want it, in their own words.
            logging.getLogger("fresco").warning("%s is installed and cannot be imported: %s", name, error)


def import_host():
    """All modules that the host has imported at its start, which makes them attributes of their packages."""
    for name in sorted(MODULES):
        if name.partition(".")[0] in ("comfy", "comfy_api", "app"):
            _import(name)
    _complete()


def _import(name):
    try:
        importlib.import_module(name)
    except ImportError as error:
        # A file of ours that wants torch, where there is none: its names are there all the same.
        logging.getLogger("fresco").debug("%s has its names only: %s", name, error)
        spec = importlib.machinery.ModuleSpec(name, _Loader(), is_package=name in _PACKAGES)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, module)


def _complete():
    """Methods of the host's classes that classes of ours lack: packs keep or replace them while they are imported."""
    for module, found in NAMES.items():
        # Classes of nodes say what they have themselves.
        if module == "nodes" or module.startswith("comfy_extras"):
            continue
        for name in found:
            head, _, last = name.partition(".")
            owner = vars(sys.modules[module]).get(head) if last and module in sys.modules else None
            if isinstance(owner, type) and not is_placeholder(owner) and not hasattr(owner, last):
                setattr(owner, last, _method(f"{module}.{name}", last))


def _method(place, name):
    def method(*args, **kwargs):
        raise Unsupported(_message(place))

    method.__name__ = method.__qualname__ = name
    return method
