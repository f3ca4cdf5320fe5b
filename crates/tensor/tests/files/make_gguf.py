"""Writes blocks.gguf with the gguf package of llama.cpp, and blocks.safetensors with what that package reads in it.

pip install gguf safetensors; python3 make_gguf.py
"""

import os

import gguf
import numpy as np
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q4_K", "Q5_K", "Q6_K", "Q4_1", "Q5_1", "Q2_K", "Q3_K"]
TYPES += ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"]
TYPES += ["TQ1_0", "TQ2_0", "MXFP4", "NVFP4"]


def scales(kind, blocks):
    """Random blocks, but with sensible scales: random bits there are mostly NaN or huge."""
    rng = np.random.default_rng(7)
    half = lambda: (rng.random(len(blocks)) - 0.5).astype(np.float16).view(np.uint8).reshape(-1, 2)
    where = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
    where |= {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "TQ1_0": [52], "TQ2_0": [64]}
    where |= {"MXFP4": [], "NVFP4": [], "IQ1_M": []}
    for at in where.get(kind, [0]):
        blocks[:, at : at + 2] = half()
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(100, 140, len(blocks))
    if kind == "NVFP4":
        blocks[:, :4] &= 0x7E
    if kind == "IQ1_M":
        # The scale is in the upper four bits of four numbers.
        bits = (rng.random(len(blocks)) - 0.5).astype(np.float16).view(np.uint16)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 0x0F | ((bits >> (4 * i)) & 0xF) << 4
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
    kind = gguf.GGMLQuantizationType.Q8_1
    writer.add_tensor("odd", np.zeros((2, 8 * 40), np.uint8), raw_dtype=kind)
    writer.add_tensor("scalar", np.array([1.5], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    wanted["Q8_0"] = wanted["Q8_0"].reshape(3, 64, 2, 2)
    save_file(wanted, os.path.join(HERE, "blocks.safetensors"))


main()
