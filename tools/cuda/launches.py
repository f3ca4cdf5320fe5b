"""The parameters of every kernel as Rust: crates/tensor/src/cuda/launches.rs, read from the `extern "C"` signatures in the sources.

The sources are expanded by the preprocessor of a C++ compiler (`$CXX`, otherwise g++), because most signatures stand in macros. Kernels of a source that take the
same parameters are one structure with a field that says which of them is meant; the macros that make the structures are in launch.rs. What a structure
cannot know is left to the operations: sizes of memory, and what has to be a multiple of what.
"""

import collections
import os
import re
import subprocess

# Parameters that several kernels take one after the other: a structure of their own, and the field that it is.
GROUPS = {
    "AfterProduct": ("after", "bias per_item gate residual out act rows_per_item act_from"),
    "AttentionMask": ("mask", "mask mask_item mask_head mask_query kind"),
    "AttentionSizes": ("sizes", "queries keys heads d scale"),
    "AttentionTensors": ("tensors", "q k v out"),
    "ByteScales": ("scales", "row_scale column_scale"),
    "LineTarget": ("place", "row_bytes place count"),
    "NormRows": ("norm", "weight bias scale shift rows width each eps rms"),
    "OtherResults": ("others", "bias1 out1 bias2 out2 each"),
    "PixelBoxes": ("boxes", "out_height out_width out_count wlog hlog phases"),
    "ProductMaps": ("maps", "ta ta1 tb tb1 tb2"),
    "ProductParts": ("cut", "full_tiles parts sums"),
    "ProductWindow": ("window", "frames in_height in_width channels large_height large_width out_height out_width"
    " time height width time_stride stride time_before above left"),
    "ResultMaps": ("results", "to to1 to2 tr"),
    "RowLayout": ("layout", "row_bytes code_bytes group_bytes groups group bits levels corrected number"),
    "StepWindow": ("window", "channels time height width time_stride shift time_before above left split more more_split"),
    "WeightSizes": ("sizes", "out channels taps padded all_taps first"),
}

# Names of structures that the names of their kernels do not give: by source and first kernel.
NAMES = {
    ("attention_hopper.cu", "attention_40"): "Attention",
    ("bytes.cu", "whole_numbers"): "ToBytes",
    ("elementwise.cu", "from_f32"): "Convert",
    ("norm_bytes.cu", "whole_384"): "NormedBytes",
    ("product_finish.cu", "finish_parts"): "FinishParts",
    ("product_hopper.cu", "product_64"): "Product",
    ("product_hopper.cu", "product_128"): "ByteProduct",
    ("product_mma.cu", "product_128"): "Product",
    ("product_plain.cu", "rows_64"): "MatrixProduct",
    ("product_plain.cu", "picture_64"): "PictureProduct",
    ("weights.cu", "from_f32"): "FromPlain",
}

NUMBERS = {"int": "i32", "i64": "i64", "long long": "i64", "u64": "u64", "unsigned long long": "u64", "u32": "u32", "float": "f32"}
# Structures that are passed by value, in words of eight bytes.
STRUCTURES = {"TMap": "TensorMap", "Walk": "[u64; 19]", "Parts": "[u64; 8]", "Layers": "[u64; 128]"}
# What pointers point to. Elements have the format of the module, which `Store`, `S` and `Element` stand for, as `u16` does where there is no other.
ELEMENTS = {"Store", "S", "Element"}
POINTED = {"float": "f32", "float2": "[f32; 2]", "u8": "u8", "unsigned char": "u8", "u32": "u32", "unsigned": "u32", "unsigned int": "u32", "uint4": "[u32; 4]", "void": "Unit"}

FORMATS = r"_(f32|f16|bf16)$"

HEAD = """//! Parameters of all kernels, by their sources. Made by `cargo xtask cuda --launches`; not to be edited.
//! Sources: {hash}

#![expect(
    clippy::enum_variant_names,
    reason = "variants have the names of kernels"
)]

use super::driver::TensorMap;
use super::launch::{{Element, Pointer, Unit, kernel_names, kernel_parameters, shared_parameters}};
"""

FILE = "launches.rs"


class SignatureError(Exception):
    """A signature that has no structure; the text is for the person who wrote it."""


Signature = collections.namedtuple("Signature", "parameters kernels modules formats")


def source_hash(folder):
    """Of everything that signatures are read from, as tools/xtask/src/tidy/launches.rs has it: FNV-1a of names and contents."""
    value = 0xCBF29CE484222325
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            for byte in name.encode() + b"\0" + file.read() + b"\0":
                value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def expanded(job, folder):
    """A source with its macros expanded for a module."""
    arch = re.search(r"\d+", job.arch)[0]
    options = [option for option in job.options if option.startswith("-D")]
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-E", "-P", "-x", "c++", "-std=c++17", f"-D__CUDA_ARCH__={arch}0", *options, os.path.join(folder, job.source)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kernels_of(text):
    """Names and parameters of the kernels of an expanded source."""
    for match in re.finditer(r'extern "C" __global__ void\b', text):
        head = text[match.end() : text.index("{", match.end())]
        inside = re.search(r"(\w+)\s*\(([^()]*)\)\s*$", head)
        if not inside:
            raise SignatureError(f"not the head of a kernel: {head.strip()}")
        yield inside[1], [parameter.strip() for parameter in inside[2].split(",")]


def rust_parameter(text, halves):
    """Name and type of a parameter. `halves`: whether `u16` is an element."""
    match = re.fullmatch(r"(?:const\s+)?(?:__grid_constant__\s+)?([\w ]+?)\s*(\*?)\s*(?:__restrict__\s+)?(\w+)", text)
    if not match:
        raise SignatureError(f"not a parameter: {text}")
    kind, star, name = match.groups()
    name = {"W": "weights", "Wt": "weights"}.get(name, name.lower())
    if not star:
        known = NUMBERS.get(kind) or STRUCTURES.get(kind)
    elif kind in ("u16", "unsigned short"):
        known = "Pointer<Element>" if halves else "Pointer<u16>"
    else:
        pointed = "Element" if kind in ELEMENTS else POINTED.get(kind, "Unit" if kind == "uint2" else None)
        known = f"Pointer<{pointed}>" if pointed else None
    if not known:
        raise SignatureError(f"launches.py does not know the type of `{text}`")
    return name, known


def without_pointed(parameters):
    return tuple((name, re.sub("Pointer<.*>", "Pointer", kind)) for name, kind in parameters)


def signatures_of(jobs, folder):
    """Signatures by their sources; those that differ in what pointers point to are one."""
    found = {}
    modules = {}
    for job in jobs:
        modules.setdefault(job.module, []).append(job)
    for module, same in modules.items():
        base, suffix = re.sub(FORMATS, "", module), re.search(FORMATS, module)[1]
        halves = any(option.startswith("-DTY=") for option in same[0].options)
        here = {}
        # Architectures may have kernels that others have not.
        for text in {expanded(job, folder): None for job in same}:
            here.update((name, tuple(rust_parameter(parameter, halves) for parameter in parameters)) for name, parameters in kernels_of(text))
        of_source = found.setdefault(same[0].source, {})
        for name, parameters in here.items():
            entry = of_source.setdefault(without_pointed(parameters), Signature([], {}, {}, {}))
            entry.parameters.append(parameters)
            for kind, value in zip((entry.kernels, entry.modules, entry.formats), (name, base, suffix)):
                kind[value] = None
    return found


def merged(all_parameters):
    """One type for each parameter: a unit of no known format where kernels differ."""
    result = []
    for same in zip(*all_parameters):
        kinds = {kind for _, kind in same}
        result.append((same[0][0], kinds.pop() if len(kinds) == 1 else "Pointer<Unit>"))
    return result


def camel(name):
    joined = "".join(part.capitalize() + "_" for part in name.split("_"))[:-1]
    return re.sub(r"(?<!\d)_|_(?!\d)", "", joined)


def structure_name(source, signature):
    kernels = list(signature.kernels)
    if known := NAMES.get((source, kernels[0])):
        return known
    prefix = os.path.commonprefix([kernel + "_" for kernel in kernels])
    words = prefix[: prefix.rfind("_")] if "_" in prefix else ""
    while words and words.split("_")[-1].isdigit():
        words = words.rpartition("_")[0]
    if not words:
        raise SignatureError(f"{source}: {', '.join(kernels)} have no name together; launches.py gives it in NAMES")
    return camel(words)


def grouped(parameters, groups):
    """The same with those of groups as one; notes what the groups are."""
    result, at = [], 0
    names = [name for name, _ in parameters]
    while at < len(parameters):
        for group, (field, members) in sorted(GROUPS.items(), key=lambda item: -len(item[1][1].split())):
            members = members.split()
            if names[at : at + len(members)] == members:
                run = parameters[at : at + len(members)]
                if groups.setdefault(group, run) != run:
                    raise SignatureError(f"{group} has other types in two kernels: {groups[group]} and {run}")
                result.append((field, group))
                at += len(members)
                break
        else:
            result.append(parameters[at])
            at += 1
    return result


def fields(parameters):
    return ", ".join(f"{name}: {kind}" for name, kind in parameters)


def module_text(source, signatures, groups):
    lines, body = [], []
    for signature in signatures.values():
        name = structure_name(source, signature)
        own = grouped(merged(signature.parameters), groups)
        chosen = []
        for word, values in (("module", signature.modules), ("kernel", signature.kernels)):
            if len(values) == 1:
                chosen.append(f'{word} "{next(iter(values))}"')
                continue
            kind = name + word.capitalize()
            variants = ", ".join(f'{camel(value)}: "{value}"' for value in values)
            body.append(f"    kernel_names! {{ {kind} {{ {variants} }} }}")
            chosen.append(f"{word} {kind}")
        formatted = "plain" if list(signature.formats) == ["f32"] else "formatted"
        body.append(f"    kernel_parameters! {{ {formatted} {name}, {', '.join(chosen)}; {fields(own)} }}")
    lines += ["", f"/// `kernels/{source}`", f"pub(crate) mod {source.removesuffix('.cu')} {{"]
    lines += ["    use super::*;", "", *body, "}"]
    return lines


def text(jobs, folder):
    """The whole file."""
    groups = {}
    lines = []
    for source, signatures in sorted(signatures_of(jobs, folder).items()):
        lines += module_text(source, signatures, groups)
    if missing := set(GROUPS) - set(groups):
        raise SignatureError(f"groups of no kernel: {', '.join(sorted(missing))}")
    shared = [f"shared_parameters! {{ {name}; {fields(groups[name])} }}" for name in sorted(groups)]
    return "\n".join([HEAD.format(hash=source_hash(folder)), *shared, *lines]) + "\n"
