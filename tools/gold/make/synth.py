"""The synthetic weights of goldens, and how a golden is written. See `../shared/gold/README.md` for the scheme.

    python3 -m venv /tmp/gold && /tmp/gold/bin/pip install torch diffusers transformers safetensors
    /tmp/gold/bin/python tools/gold/make/NAME.py tests/gold
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


def _uniform(name, count):
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - np.float32(1)


def value(name, shape, scale=1.0):
    """A made-up input."""
    flat = _uniform(name, math.prod(shape)) * np.float32(scale)
    return torch.from_numpy(flat.reshape(shape))


def weight(name, shape):
    """The weight of this name."""
    last = name.split(".")[-1]
    offset = 0.0
    if len(shape) == 0:
        offset, scale = 1.0, 0.1
    elif len(shape) == 1:
        named = last in ("weight", "scale", "gamma")
        offset, scale = (1.0, 0.1) if named else (0.0, 0.02)
    elif last == "pos_embed":
        scale = 0.5
    else:
        scale = math.sqrt(3 / math.prod(shape[1:]))
    flat = _uniform(name, math.prod(shape)) * np.float32(scale)
    if offset:
        flat = flat + np.float32(offset)
    return torch.from_numpy(flat.reshape(tuple(shape)))


def fill(module):
    """Gives a module the weights of its names; returns names and shapes."""
    state = module.state_dict()
    module.load_state_dict({k: weight(k, tuple(v.shape)) for k, v in state.items()})
    return {k: list(v.shape) for k, v in state.items()}


def write(name, about, config, keys, tensors):
    """Writes NAME.json and NAME.safetensors into the folder that the script was given."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/gold")
    tensors = {k: v.detach().float().contiguous() for k, v in tensors.items()}
    said = {
        "about": "weights: synth scheme, f32, tensor name = key as listed under keys. "
        + about,
        "config": config,
        "n_tensors": len(keys),
        "keys": keys,
        "tensors": {
            k: {
                "dtype": "float32",
                "shape": list(v.shape),
                "mean": v.mean().item(),
                "std": v.std(correction=0).item(),
                "absmax": v.abs().max().item(),
            }
            for k, v in tensors.items()
        },
    }
    (folder / f"{name}.json").write_text(json.dumps(said, indent=1) + "\n")
    save_file(tensors, folder / f"{name}.safetensors")
    print(f"{name}: {len(keys)} weights, {len(tensors)} tensors")
