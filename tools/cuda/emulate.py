#!/usr/bin/env python3
"""Build GPUs that are not there: a libcuda.so.1 whose kernels are those of crates/tensor, compiled for the processor.

    python3 tools/cuda/emulate.py DIR [--capability 8.9]
    LD_LIBRARY_PATH=DIR fresco

Nothing of the program changes: it loads the machine code that it has for a card of that capability, and the driver in DIR finds by its hash
which module of kernels/modules.txt it is. The sources of the modules are compiled with g++; what they say in PTX is replaced by what
emulator/device.h has for it. Kernels for Hopper alone (wgmma, clusters, the copy engine) cannot be emulated, so that the capability is another one.

What emulator/driver.cpp lets one set: the number of GPUs, their memory, what others have of it, and whether kernels do anything.
"""

import argparse
import concurrent.futures
import hashlib
import os
import re
import subprocess
import sys

import build

HERE = os.path.dirname(os.path.abspath(__file__))
EMULATOR = os.path.join(HERE, "emulator")

# Archives of machine code that a card loads its modules from, the best first: as in crates/tensor/src/cuda/kernels.rs.
ARCHIVES = {"7.5": ["75"], "8.0": ["80"], "8.6": ["80"], "8.9": ["89", "80"], "12.0": ["120"]}

SUMS = "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
# What each piece of PTX in the sources means.
PTX = {
    "griddepcontrol.wait;": "",
    "griddepcontrol.launch_dependents;": "",
    "cvt.f32.f16 %0, %1;": "%0 = emulated::from_half(%1)",
    "cvt.rn.f16.f32 %0, %1;": "%0 = emulated::to_half(%1)",
    "cvt.rn.f16x2.f32 %0, %1, %2;": "%0 = (u32)emulated::to_half(%1) << 16 | emulated::to_half(%2)",
    "cvt.rn.bf16.f32 %0, %1;": "%0 = emulated::to_bf16(%1)",
    "cvt.rn.bf16x2.f32 %0, %1, %2;": "%0 = (u32)emulated::to_bf16(%1) << 16 | emulated::to_bf16(%2)",
    "cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;": "%0 = (u16)(emulated::to_e4m3(%1) << 8 | emulated::to_e4m3(%2))",
    "{.reg .b16 a,b; mov.b32 {a,b}, %1; cvt.f32.f16 %0, a;}": "%0 = emulated::from_half((u16)(%1))",
    "{.reg .b16 a,b; mov.b32 {a,b}, %1; cvt.f32.f16 %0, b;}": "%0 = emulated::from_half((u16)((%1) >> 16))",
    "{.reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t;}": "%0 = emulated::shared_address(%1)",
    "ex2.approx.ftz.f32 %0, %1;": "%0 = exp2f(%1)",
    "rcp.approx.ftz.f32 %0, %1;": "%0 = 1.0f / %1",
    "tanh.approx.f32 %0, %1;": "%0 = tanhf(%1)",
    "cp.async.cg.shared.global [%0], [%1], 16, %2;": "emulated::copy16(%0, %1, %2)",
    "cp.async.commit_group;": "emulated::emulated_commit()",
    "cp.async.wait_group %0;": "emulated::emulated_wait(%0)",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];": "emulated::ldmatrix4(%0, %1, %2, %3, %4)",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];": "emulated::ldmatrix4_turned(%0, %1, %2, %3, %4)",
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];": "emulated::ldmatrix2_turned(%0, %1, %2)",
}
FRAGMENTS = " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
for ptx, name in [
    ("m16n8k16.row.col.f32.f16.f16.f32", "f16"),
    ("m16n8k16.row.col.f32.bf16.bf16.f32", "bf16"),
    ("m16n8k32.row.col.s32.s8.s8.s32", "s8"),
    ("m16n8k32.row.col.f32.e4m3.e4m3.f32", "e4m3"),
    ("m16n8k32.row.col.f32.e4m3.e5m2.f32", "e5m2"),
]:
    PTX[f"mma.sync.aligned.{ptx}{FRAGMENTS}"] = f"emulated::mma_{name}({SUMS})"


def closing(text, start):
    """Where the bracket ends that begins at `start`, strings being skipped."""
    depth, at = 0, start
    while at < len(text):
        if text[at] == '"':
            at = text.index('"', at + 1)
        elif text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise build.BuildError("a bracket is not closed")


def operands(text):
    """What stands in the brackets behind the constraints, in order."""
    found = []
    for match in re.finditer(r'"[^"]*"\s*(?=\()', text):
        start = match.end()
        found.append(text[start + 1 : closing(text, start)])
    return found


def without_ptx(text):
    """The source with PTX replaced by what it means."""
    parts, at = [], 0
    for match in re.finditer(r"\basm\b\s*(volatile)?\s*\(", text):
        start = match.end() - 1
        end = closing(text, start)
        inside = text[start + 1 : end]
        strings = re.match(r'\s*((?:"[^"]*"\s*)+)', inside)
        ptx = "".join(re.findall(r'"([^"]*)"', strings[1]))
        if ptx not in PTX:
            raise build.BuildError(f"emulate.py does not know this PTX: {ptx}")
        given = operands(inside[strings.end() :])
        meaning = re.sub(r"%(\d)", lambda number: given[int(number[1])], PTX[ptx])
        parts += [text[at : match.start()], meaning]
        at = end + 1
    return "".join(parts) + text[at:]


def flags():
    # Modules have kernels, and so templates, of the same names: none may be taken for another's.
    return ["-fno-gnu-unique", "-fvisibility=hidden", "-ffp-contract=off", "-std=c++17", "-O3", "-march=native", "-fPIC", "-fno-strict-aliasing", "-w"]


def source_of(job, arch):
    """A module as C++."""
    path = os.path.join(build.KERNELS, job.source)
    options = [option for option in job.options if option.startswith("-D")]
    command = ["g++", "-E", "-P", "-x", "c++", "-std=c++17", f"-D__CUDA_ARCH__={arch}0", *options, path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = without_ptx(text)
    text = re.sub(r"extern __shared__ ([\w ]+?) (\w+)\[\];", r"\1* \2 = (\1*)emulated::emulated_shared();", text)
    text = re.sub(r"__shared__ (alignas\(\d+\))", r"\1 __shared__", text)
    # Kernels may have the names of functions of theirs.
    begins = r'(extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s*)?)(\w+)\('
    kernels = [name for _, name in re.findall(begins, text)]
    text = re.sub(begins, r"\1entry_\2(", text)
    if not kernels:
        raise build.BuildError(f"{job.source} has no kernels")
    entries = "\n".join(f"EMULATED_KERNEL({name})" for name in kernels)
    return f'#include "device.h"\n{text}\n{entries}\n'


def compile_module(job, arch, folder):
    target = os.path.join(folder, f"{job.module}.so")
    text = source_of(job, arch)
    with open(os.path.join(EMULATOR, "device.h"), encoding="utf-8") as file:
        mark = hashlib.sha256((text + file.read()).encode()).hexdigest()
    source = os.path.join(folder, f"{job.module}.cpp")
    if os.path.exists(target) and os.path.exists(source):
        with open(source, encoding="utf-8") as file:
            if file.readline().strip() == f"// {mark}":
                return
    with open(source, "w", encoding="utf-8") as file:
        file.write(f"// {mark}\n{text}")
    command = ["g++", *flags(), "-shared", f"-I{EMULATOR}", source, "-o", target, f"-L{folder}", "-l:libcuda.so.1"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        os.remove(source)
        raise build.BuildError(f"{job.module} does not compile for the processor\n{done.stderr[:4000]}")


def image_hash(image):
    """As driver.cpp has it: FNV-1a of a text, or of machine code up to the end of its tables."""
    number = lambda place, size: int.from_bytes(image[place : place + size], "little")
    if image[:4] == b"\x7fELF":
        segments = number(32, 8) + number(54, 2) * number(56, 2)
        image = image[: max(segments, number(40, 8) + number(58, 2) * number(60, 2))]
    value = 1469598103934665603
    for byte in image:
        value = ((value ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return value


def emulate(arguments):
    folder = os.path.abspath(arguments.folder)
    os.makedirs(folder, exist_ok=True)
    archs = ARCHIVES[arguments.capability]
    chosen = {}
    for job in build.read_jobs():
        if job.arch in archs and (job.module not in chosen or archs.index(job.arch) < archs.index(chosen[job.module].arch)):
            chosen[job.module] = job
    capability = arguments.capability.replace(".", "")
    driver = os.path.join(folder, "libcuda.so.1")
    command = ["g++", *flags(), "-shared", f"-DCAPABILITY={capability}", "-Wl,-soname,libcuda.so.1", os.path.join(EMULATOR, "driver.cpp")]
    subprocess.run([*command, "-o", driver, "-ldl", "-pthread"], check=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for done in [pool.submit(compile_module, job, job.arch, folder) for job in chosen.values()]:
            done.result()
    images = {}
    for arch in archs:
        with open(os.path.join(build.BUILT, f"{arch}.bin"), "rb") as file:
            images[arch] = build.unpack(file.read())
    lines = {}
    for job in chosen.values():
        value = image_hash(images[job.arch][job.module])
        if value in lines:
            raise build.BuildError(f"{job.module} and {lines[value]} look the same")
        lines[value] = job.module
    with open(os.path.join(folder, "modules.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{value:016x} {module}.so\n" for value, module in sorted(lines.items()))
    print(f"{len(chosen)} modules for a card of {arguments.capability} in {folder}")


def main():
    parser = argparse.ArgumentParser(description="build a driver of GPUs that are not there")
    parser.add_argument("folder", metavar="DIR", help="where libcuda.so.1 and the modules go")
    parser.add_argument("--capability", choices=sorted(ARCHIVES), default="8.9", help="of the GPUs (8.9)")
    parser.add_argument("--jobs", type=int, default=2, help="compilations at a time (2)")
    try:
        emulate(parser.parse_args())
    except build.BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
