"""Modules of the host that are made of torch, in a Python that has none.

They can be imported, and their names can be looked up and subclassed as in a Python with torch, because packs do that while
they are imported. Using such a name says what is missing. Their names are those that the module's file gives.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys

from . import Unsupported, placeholders

_ROOTS = ("comfy", "comfy_extras")


class _WithoutTorch(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(f"{cls.fresco_place} has no attribute {name!r}")
        return stand_in(cls.fresco_place, name)

    def __call__(cls, *args, **kwargs):
        raise Unsupported(_message(cls.fresco_place))


def _message(place):
    return f"{place} needs torch, which this Python does not have; install it with: {sys.executable} -m pip install torch"


def stand_in(module, name):
    """A class in the place of something that torch is needed for."""
    return _WithoutTorch(name, (), {"__module__": module, "fresco_place": f"{module}.{name}", "fresco_placeholder": True})


def _names(path):
    """What a file defines or imports at its outermost level, except modules."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    found = set()
    for part in tree.body:
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            found.add(part.name)
        elif isinstance(part, ast.ImportFrom) and not str(part.module).startswith("fresco_host"):
            found.update(name.asname or name.name for name in part.names)
        elif isinstance(part, ast.Assign):
            for target in part.targets:
                found.update(each.id for each in ast.walk(target) if isinstance(each, ast.Name))
    return {name for name in found if not name.startswith("_")}


class _Loader(importlib.abc.Loader):
    """Runs the module's file, and puts stand-ins in the place of its names where that fails for want of torch."""

    def __init__(self, real, path):
        self.real, self.path = real, path

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        kept = {**vars(module), "__getattr__": placeholders.fallback(module.__name__)}
        try:
            self.real.exec_module(module)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            vars(module).clear()
            vars(module).update(kept)
            for name in _names(self.path):
                setattr(module, name, stand_in(module.__name__, name))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in _ROOTS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader, spec.origin)
        return spec


def install():
    if importlib.util.find_spec("torch") is None:
        sys.meta_path.insert(0, _Finder())
