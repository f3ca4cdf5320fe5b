"""Writes blocks.gguf with the gguf package of llama.cpp, and blocks.safetensors with what that package reads in it.

pip install gguf safetensors; python3 make_gguf.py
"""

import os

import gguf
import numpy as np
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q4_K", "Q5_K", "Q6_K"]


def scales(kind, blocks):
    """Random blocks, but with sensible scales: random bits there are mostly NaN or huge."""
    rng = np.random.default_rng(7)
    half = lambda: (rng.random(len(blocks)) - 0.5).astype(np.float16).view(np.uint8).reshape(-1, 2)
    where = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
    for at in where[kind]:
        blocks[:, at : at + 2] = half()
    return blocks


def main():
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(os.path.join(HERE, "blocks.gguf"), "sd1")
    writer.add_quantization_version(2)
    writer.add_uint64("test.large", 1 << 63)
    writer.add_float32("test.float", 0.5)
    writer.add_bool("test.bool", True)
    writer.add_int8("test.int", -3)
    writer.add_array("test.words", ["a", "b"])
    writer.add_array("test.many", list(range(100)))
    writer.add_array("comfy.gguf.orig_shape.Q8_0", [3, 64, 2, 2])
    wanted = {}
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        if name in ("F32", "F16", "BF16"):
            values = (rng.random((3, 5)) - 0.5).astype(np.float32)
            data = gguf.quants.quantize(values, kind)
        else:
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            blocks = rng.integers(0, 256, (3 * 256 // elements, size), dtype=np.uint8)
            data = scales(name, blocks).reshape(3, -1)
        writer.add_tensor(name, data, raw_dtype=kind)
        wanted[name] = gguf.quants.dequantize(data, kind).astype(np.float32)
    # A type that is not read, which must not make the others unreadable.
    kind = gguf.GGMLQuantizationType.Q2_K
    writer.add_tensor("odd", np.zeros((2, 84), np.uint8), raw_dtype=kind)
    writer.add_tensor("scalar", np.array([1.5], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    wanted["Q8_0"] = wanted["Q8_0"].reshape(3, 64, 2, 2)
    save_file(wanted, os.path.join(HERE, "blocks.safetensors"))


main()
