#!/usr/bin/env python3
"""Compile the CUDA kernels of crates/tensor with NVRTC: no GPU, no CUDA toolkit, no CUDA header.

Reads kernels/modules.txt, one module per line:

    module source archs [options..]

`archs` is a list of 75, 80, 89, 90a, 100, 120 (machine code for that one) and ptx75, ptx80, ptx89 (PTX, for cards that are not
known yet), with commas. Options that start with `-` go to the compiler; `spills` allows registers to be spilled and
`warnings` allows the assembler's performance warnings (C75xx), both of which fail the build otherwise; `spills:100,120` allows them for
these architectures.

Writes built/<arch>.bin for each arch. Such an archive is little endian: the magic "FRK1", u32 count; for each
module u16 length of its name, the name, u32 offset from the start of the file, u32 packed length, u32 length; then the
machine code (or PTX) of each, as raw DEFLATE. The same sources and the same NVRTC make the same
bytes. What was compiled once is kept in target/cuda under the hash of all that went into it.

Beside the archives, made.txt has a line for each module and architecture: the hash of all that went into it, and that of its
code. Modules whose sources are those of their line are taken from their archive, as they are packed there: a change of one kernel compiles its modules
alone, and adds little more than them to the repository's history. `--no-cache` compiles all. A check compares both hashes for all
of them, and compiles those of one architecture again; `--all` compiles every one.

Writes crates/tensor/src/cuda/launches.rs, too, which has the parameters of every kernel as Rust (see launches.py); `--launches` writes it alone, which takes
a second and no NVRTC.
"""

import argparse
import concurrent.futures
import ctypes
import dataclasses
import functools
import glob
import hashlib
import importlib.util
import os
import re
import struct
import sys
import time
import zlib

import launches

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CUDA = os.path.join(ROOT, "crates", "tensor", "src", "cuda")
KERNELS = os.path.join(CUDA, "kernels")
BUILT = os.path.join(CUDA, "built")
CACHE = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "cuda")

# Changes when the builder passes other options, so that nothing old is taken from the cache.
BUILDER = 3

# The version that PTX says it is written in: the oldest that has all of its instructions. A driver refuses one that is newer than itself,
# whatever is in the text; those of CUDA 12.0 know 8.0.
PTX_VERSIONS = {"ptx75": b"8.0", "ptx80": b"8.0", "ptx89": b"8.4"}


@dataclasses.dataclass(frozen=True)
class Job:
    """One module for one architecture."""

    module: str
    source: str
    arch: str
    options: tuple
    allowed: frozenset

    @property
    def name(self):
        return f"{self.module}.{self.arch}"


@dataclasses.dataclass
class Compiled:
    code: bytes
    log: str
    seconds: float
    cached: bool


class BuildError(Exception):
    """What stops the build; its text is for the person who started it."""


# ---- sources -------------------------------------------------------------------------------------------------------


@functools.lru_cache
def headers():
    """Every header by its name. They are handed over in memory, so that no path of this machine can get into the
    result."""
    found = {}
    for path in sorted(glob.glob(os.path.join(KERNELS, "*.cuh"))):
        with open(path, encoding="utf-8") as file:
            found[os.path.basename(path)] = file.read()
    return found


@functools.lru_cache
def source_text(name):
    with open(os.path.join(KERNELS, name), encoding="utf-8") as file:
        return file.read()


def used_headers(text):
    """Names of the headers that a source reaches."""
    found, queue = set(), [text]
    while queue:
        for name in re.findall(r'#\s*include\s+"([^"]+)"', queue.pop()):
            if name in headers() and name not in found:
                found.add(name)
                queue.append(headers()[name])
    return sorted(found)


def read_jobs():
    path = os.path.join(KERNELS, "modules.txt")
    jobs, names = [], set()
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if len(words) < 3:
                raise BuildError(f"{path}:{number}: a module, its source and its architectures are needed")
            module, source, archs = words[:3]
            if module in names:
                raise BuildError(f"{path}:{number}: module {module} is there twice")
            names.add(module)
            options = tuple(word for word in words[3:] if word.startswith("-"))
            allowed = [word.partition(":") for word in words[3:] if not word.startswith("-")]
            if unknown := {word for word, _, _ in allowed} - {"spills", "warnings"}:
                raise BuildError(f"{path}:{number}: unknown words {sorted(unknown)}")
            for arch in archs.split(","):
                if not re.fullmatch(r"(ptx)?\d+a?", arch):
                    raise BuildError(f"{path}:{number}: unknown architecture {arch}")
                here = frozenset(word for word, _, where in allowed if not where or arch in where.split(","))
                jobs.append(Job(module, source, arch, options, here))
    return jobs


# ---- compiling -----------------------------------------------------------------------------------------------------


def find_nvrtc():
    """The library of the installed Python package nvidia-cuda-nvrtc-cu12."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        for pattern in ("lib/libnvrtc.so.12", "bin/nvrtc64_120_0.dll"):
            for path in glob.glob(os.path.join(folder, "cuda_nvrtc", pattern)):
                return path
    raise BuildError("no NVRTC: install the Python package nvidia-cuda-nvrtc-cu12, or pass --nvrtc PATH")


def compiler_options(job):
    target = f"compute_{job.arch[3:]}" if job.arch.startswith("ptx") else f"sm_{job.arch}"
    return [f"--gpu-architecture={target}", "--std=c++17", "--ptxas-options=-v", *job.options]


def as_version(ptx, version):
    return re.sub(rb"(?m)^\.version \d+\.\d+$", b".version " + version, ptx, count=1)


class Nvrtc:
    """NVRTC through ctypes."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.check(self.lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = f"{major.value}.{minor.value}"

    def check(self, code):
        if code:
            raise BuildError(f"NVRTC: {self.lib.nvrtcGetErrorString(code).decode()}")

    def bytes_of(self, program, what):
        size = ctypes.c_size_t()
        self.check(getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self.check(getattr(self.lib, f"nvrtcGet{what}")(program, text))
        return text.raw

    def compile(self, job):
        """Machine code or PTX, and the log."""
        text = source_text(job.source)
        names = used_headers(text)
        includes = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        contents = (ctypes.c_char_p * len(names))(*(headers()[name].encode() for name in names))
        program = ctypes.c_void_p()
        self.check(
            self.lib.nvrtcCreateProgram(
                ctypes.byref(program), text.encode(), job.source.encode(), len(names), contents, includes
            )
        )
        try:
            options = [option.encode() for option in compiler_options(job)]
            failed = self.lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            log = self.bytes_of(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if failed:
                raise BuildError(f"{job.name} does not compile\n{log}")
            if job.arch.startswith("ptx"):
                return as_version(self.bytes_of(program, "PTX").rstrip(b"\0"), PTX_VERSIONS[job.arch]), log
            return self.bytes_of(program, "CUBIN"), log
        finally:
            self.lib.nvrtcDestroyProgram(ctypes.byref(program))


@functools.lru_cache
def nvrtc(path):
    return Nvrtc(path)


def cache_key(job, version):
    digest = hashlib.sha256()
    text = source_text(job.source)
    parts = [str(BUILDER), version, job.source, *compiler_options(job), text]
    for name in used_headers(text):
        parts += [name, headers()[name]]
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def compile_job(path, job, use_cache):
    """Runs in a process of its own: NVRTC holds a lock for most of a compilation."""
    # Of the processor: what it takes does not depend on what else the machine does.
    start = time.process_time()
    compiler = nvrtc(path)
    kept = os.path.join(CACHE, cache_key(job, compiler.version))
    if use_cache and os.path.exists(kept):
        with open(kept, "rb") as file:
            log, code = file.read().split(b"\0\0", 1)
        return Compiled(code, log.decode(), time.process_time() - start, True)
    code, log = compiler.compile(job)
    os.makedirs(CACHE, exist_ok=True)
    part = f"{kept}.{os.getpid()}"
    with open(part, "wb") as file:
        file.write(log.encode() + b"\0\0" + code)
    os.replace(part, kept)
    return Compiled(code, log, time.process_time() - start, False)


def complaints(job, log):
    """What the assembler says that must not pass."""
    found = []
    if "spills" not in job.allowed:
        for line in log.splitlines():
            spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
            if spilled and spilled.groups() != ("0", "0"):
                found.append(line.strip())
    if "warnings" not in job.allowed:
        found += [line.strip() for line in log.splitlines() if re.search(r"\bC75\d\d\b", line)]
    return found


def usage(log):
    """One line for each kernel: registers, shared memory, spills."""
    lines, name, spill = [], "?", ""
    for line in log.splitlines():
        if match := re.search(r"(?:Compiling entry function|Function properties for) '?([\w$]+)'?", line):
            name = match[1]
        elif match := re.search(r"(\d+ bytes stack frame), (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spill = "" if (match[2], match[3]) == ("0", "0") else f", SPILLS {match[2]} and {match[3]} bytes"
        elif match := re.search(r"Used (.*)", line):
            lines.append(f"    {name}: {match[1]}{spill}")
            spill = ""
        elif line.strip() and "ptxas info" not in line:
            lines.append(f"    {line.strip()}")
    return "\n".join(lines)


# ---- archives ------------------------------------------------------------------------------------------------------


def pack(code):
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(code) + squeeze.flush()


def archive(modules, old):
    """An archive of (name, code), in the order of the names. What is the same in an old archive is packed as it is there."""
    modules, before = sorted(modules), packed_modules(old)
    packed = []
    for name, code in modules:
        blob = before.get(name)
        packed.append(blob if blob is not None and zlib.decompress(blob, -15) == code else pack(code))
    offset = 8 + sum(2 + len(name.encode()) + 12 for name, _ in modules)
    head = b"FRK1" + struct.pack("<I", len(modules))
    for (name, code), blob in zip(modules, packed):
        encoded = name.encode()
        head += struct.pack("<H", len(encoded)) + encoded + struct.pack("<III", offset, len(blob), len(code))
        offset += len(blob)
    return head + b"".join(packed)


def packed_modules(content):
    """The packed code in an archive by its module."""
    modules, at = {}, 8
    if content[:4] != b"FRK1":
        return modules
    for _ in range(struct.unpack_from("<I", content, 4)[0]):
        (length,) = struct.unpack_from("<H", content, at)
        name = content[at + 2 : at + 2 + length].decode()
        offset, packed, _ = struct.unpack_from("<III", content, at + 2 + length)
        modules[name] = content[offset : offset + packed]
        at += 2 + length + 12
    return modules


def unpack(content):
    """The code in an archive by its module: zlib's releases pack the same code into different bytes."""
    return {name: zlib.decompress(packed, -15) for name, packed in packed_modules(content).items()}


def read_archive(folder, arch):
    """The bytes of an archive; none where there is no such file."""
    path = os.path.join(folder, f"{arch}.bin")
    if not os.path.exists(path):
        return b""
    with open(path, "rb") as file:
        return file.read()


def write_or_compare(archives, folder, check):
    os.makedirs(folder, exist_ok=True)
    stale = []
    known = {f"{arch}.bin": content for arch, content in archives.items()}
    for name, content in known.items():
        path, old = os.path.join(folder, name), read_archive(folder, name.removesuffix(".bin"))
        # Left alone where only the packing differs, so that the repository does not grow for nothing.
        if unpack(old) == unpack(content):
            continue
        if check:
            stale.append(name)
        else:
            with open(path, "wb") as file:
                file.write(content)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".bin") and name not in known:
            if check:
                stale.append(name)
            else:
                os.remove(os.path.join(folder, name))
    if stale:
        raise BuildError(f"not what the sources make: {', '.join(stale)} in {folder}; run `cargo xtask cuda`")


MADE = "made.txt"
# The architecture that a check compiles again: the one with all kernels.
CHECKED = "90a"


def made_line(job, code, version):
    """What a module was made of, and what came of it."""
    return f"{job.name} {cache_key(job, version)} {hashlib.sha256(code).hexdigest()}"


def made_lines(jobs, codes, version):
    """The same of every module."""
    lines = [made_line(job, codes[job], version) for job in sorted(jobs, key=lambda job: job.name)]
    return "\n".join(lines) + "\n"


def unchanged(jobs, folder, version):
    """The code of the modules that the archives have as the sources make it."""
    path = os.path.join(folder, MADE)
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        made = set(file.read().splitlines())
    archives = {arch: unpack(read_archive(folder, arch)) for arch in {job.arch for job in jobs}}
    codes = {job: archives[job.arch].get(job.module, b"") for job in jobs}
    return {job: code for job, code in codes.items() if made_line(job, code, version) in made}


def check_made(jobs, folder, version):
    """Fails unless the archives are what was made, and of the sources as they are now."""
    path = os.path.join(folder, MADE)
    if not os.path.exists(path):
        raise BuildError(f"there is no {path}; run `cargo xtask cuda`")
    with open(path) as file:
        made = file.read()
    codes, archives = {}, {}
    for job in jobs:
        if job.arch not in archives:
            archives[job.arch] = unpack(read_archive(folder, job.arch))
        codes[job] = archives[job.arch].get(job.module, b"")
    if made != made_lines(jobs, codes, version) or sum(map(len, archives.values())) != len(jobs):
        raise BuildError(f"not what the sources make: {folder}; run `cargo xtask cuda`")
    return archives


def write_launches(check):
    """The parameters of kernels as Rust, or a failure where those that are there are others."""
    try:
        made = launches.text(read_jobs(), KERNELS)
    except launches.SignatureError as error:
        raise BuildError(str(error)) from error
    path = os.path.join(CUDA, launches.FILE)
    old = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            old = file.read()
    if made == old:
        return
    if check:
        raise BuildError(f"not the parameters of the kernels: {path}; run `cargo xtask cuda --launches`")
    with open(path, "w", encoding="utf-8") as file:
        file.write(made)


def build(arguments):
    whole = not arguments.only and not arguments.arch
    if whole:
        write_launches(arguments.check)
    if arguments.launches:
        return
    path = arguments.nvrtc or find_nvrtc()
    jobs = [
        job
        for job in read_jobs()
        if (not arguments.only or any(part in job.module for part in arguments.only))
        and (not arguments.arch or job.arch in arguments.arch)
    ]
    if not jobs:
        raise BuildError("no module of modules.txt has such a name")
    quick = whole and arguments.check and not arguments.all
    if quick:
        kept = check_made(jobs, arguments.out, nvrtc(path).version)
        jobs = [job for job in jobs if job.arch == CHECKED]
    start, spent, failures, codes = time.time(), 0.0, [], {}
    if whole and not arguments.check and not arguments.no_cache:
        codes = unchanged(jobs, arguments.out, nvrtc(path).version)
    changed = [job for job in jobs if job not in codes]
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs) as pool:
        # Sources with many instances take longest: they go first, so that no core idles at the end.
        order = sorted(changed, key=lambda job: -len(source_text(job.source)))
        running = {pool.submit(compile_job, path, job, not arguments.no_cache): job for job in order}
        for done in concurrent.futures.as_completed(running):
            job = running[done]
            try:
                result = done.result()
            except BuildError as error:
                failures.append(str(error))
                print(f"{job.name}: FAILED\n{error}", flush=True)
                continue
            codes[job] = result.code
            spent += result.seconds
            bad = complaints(job, result.log)
            if not result.cached or bad or arguments.verbose:
                state = "cached" if result.cached else f"{result.seconds:.1f} s"
                print(f"{job.name}: {len(result.code)} bytes, {state}", flush=True)
            if arguments.verbose and result.log:
                print(usage(result.log), flush=True)
            for line in bad:
                failures.append(f"{job.name}: {line}")
                print(f"    NOT ALLOWED: {line}", flush=True)
    if failures:
        raise BuildError("failed:\n" + "\n".join(failures))
    took = f"{time.time() - start:.0f} s, {spent:.0f} s of the processor"
    print(f"{len(changed)} of {len(jobs)} modules in {took}, with NVRTC {nvrtc(path).version}", flush=True)
    if quick:
        other = [job.name for job in jobs if kept[CHECKED][job.module] != codes[job]]
        if other:
            raise BuildError(f"not what the sources make: {', '.join(other)}; run `cargo xtask cuda`")
    if not whole or quick:
        return
    archives = {}
    for arch in sorted({job.arch for job in jobs}):
        modules = [(job.module, codes[job]) for job in jobs if job.arch == arch]
        archives[arch] = archive(modules, read_archive(arguments.out, arch))
        print(f"{arch}.bin: {len(archives[arch])} bytes", flush=True)
    write_or_compare(archives, arguments.out, arguments.check)
    if not arguments.check:
        with open(os.path.join(arguments.out, MADE), "w") as file:
            file.write(made_lines(jobs, codes, nvrtc(path).version))


def main():
    parser = argparse.ArgumentParser(description="compile the CUDA kernels of crates/tensor")
    parser.add_argument("--nvrtc", metavar="PATH", help="libnvrtc.so.12; otherwise that of the Python package")
    parser.add_argument("--check", action="store_true", help="write nothing; fail unless the archives are current")
    parser.add_argument("--all", action="store_true", help="check by compiling every architecture again")
    parser.add_argument("--launches", action="store_true", help="the parameters of kernels in Rust; no archives")
    parser.add_argument("--only", metavar="PART", action="append", help="modules with this in their name; no archives")
    parser.add_argument("--arch", action="append", help="this architecture alone; no archives")
    parser.add_argument("--jobs", type=int, default=2, help="compilations at a time (2)")
    parser.add_argument("--out", default=BUILT, metavar="DIR", help="folder of the archives")
    parser.add_argument("--no-cache", action="store_true", help="compile what was compiled before, too")
    parser.add_argument("--verbose", action="store_true", help="registers, shared memory and spills of each kernel")
    try:
        build(parser.parse_args())
    except BuildError as error:
        sys.exit(f"cuda: {error}")


if __name__ == "__main__":
    main()
