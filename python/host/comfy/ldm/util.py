"""Small questions about values."""

import importlib
from inspect import isfunction

from fresco_host.placeholders import fallback


def exists(x):
    return x is not None


def default(val, d):
    if exists(val):
        return val
    return d() if isfunction(d) else d


def _is_tensor(x):
    import torch

    return isinstance(x, torch.Tensor)


def ismap(x):
    return _is_tensor(x) and len(x.shape) == 4 and x.shape[1] > 3


def isimage(x):
    return _is_tensor(x) and len(x.shape) == 4 and x.shape[1] in (1, 3)


def mean_flat(tensor):
    return tensor.mean(dim=list(range(1, len(tensor.shape))))


def count_params(model, verbose=False):
    return sum(parameter.numel() for parameter in model.parameters())


def get_obj_from_str(string, reload=False):
    module, name = string.rsplit(".", 1)
    found = importlib.import_module(module)
    return getattr(importlib.reload(found) if reload else found, name)


def instantiate_from_config(config):
    if "target" not in config:
        raise KeyError("comfy.ldm.util.instantiate_from_config: the configuration has no entry `target` that names the class")
    return get_obj_from_str(config["target"])(**config.get("params", {}))


__getattr__ = fallback(__name__)
