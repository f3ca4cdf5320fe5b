"""The synthetic weights of goldens (the scheme of `crates/tensor/src/synthetic.rs`), and how a golden is written.

    python3 -m venv /tmp/gold && /tmp/gold/bin/pip install torch diffusers transformers safetensors
    /tmp/gold/bin/python tools/gold/make/NAME.py [FOLDER]
"""

import json
import sys
from math import prod, sqrt
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/gold")


def stream(name, count):
    """Numbers in [-1, 1) that follow from a name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)


def value(name, shape, scale=1.0):
    """A made-up input."""
    return torch.from_numpy((stream(name, prod(shape)) * np.float32(scale)).reshape(shape))


def weight(name, shape):
    offset, scale = 0.0, 0.02
    if len(shape) == 0 or len(shape) == 1 and name.rsplit(".", 1)[-1] in ("weight", "scale", "gamma"):
        offset, scale = 1.0, 0.1
    elif len(shape) > 1:
        scale = 0.5 if name.endswith("pos_embed") else sqrt(3.0 / prod(shape[1:]))
    values = stream(name, prod(shape)) * np.float32(scale)
    if offset:
        values = values + np.float32(offset)
    return torch.from_numpy(values.reshape(shape))


def fill(model, skipped=(), limits=None):
    """Gives a model its weights; their names and shapes."""
    keys = {}
    for name, value in model.state_dict().items():
        if name not in skipped:
            keys[name] = list(value.shape)
            limit = (limits or {}).get(name.rsplit(".", 1)[-1])
            value.copy_(torch.tensor(limit) if limit else weight(name, tuple(value.shape)))
    return keys


def save(folder, name, about, keys, tensors, **said):
    tensors = {key: value.detach().contiguous() for key, value in tensors.items()}
    shapes = {key: {"dtype": str(v.dtype).removeprefix("torch."), "shape": list(v.shape)} for key, v in tensors.items()}
    text = {"about": about} | said | {"keys": keys, "tensors": shapes}
    (folder / f"{name}.json").write_text(json.dumps(text, indent=1) + "\n")
    save_file(tensors, folder / f"{name}.safetensors")
