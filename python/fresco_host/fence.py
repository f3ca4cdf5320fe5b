"""Where packs write. What they write outside of the folders that are for them is told by name; with --fence-packs it is
refused: here for Python's own functions, with words, and by the system (Landlock) for everything else in the process and
its children."""

import json
import os
import struct
import sys
import tempfile

from . import state

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of Python that change something on disk, with the places of paths among their arguments.
_EVENTS = {
    "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
    "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "shutil.rmtree": (0,), "shutil.move": (0, 1),
}
# What the system can be told to refuse: everything that changes files, by the number of its version.
_RIGHTS = {1: 0x1FF2, 2: 0x2000, 3: 0x4000}

_allowed = []
_strict = [False]
_told = set()
# Packs by their folders, so that the one that writes can be found among the callers.
_packs = {}


def _caches():
    home = os.path.expanduser("~")
    named = ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR")
    found = [os.environ[name] for name in named if os.environ.get(name)]
    return found + [os.path.join(home, name) for name in (".cache", ".triton", ".nv", ".config/matplotlib", "Library/Caches")]


def setup():
    """Before anything else starts: the system's fence holds for threads that begin after it."""
    try:
        told = json.loads(os.environ.pop("FRESCO_FENCE", "") or "{}")
    except ValueError:
        told = {}
    folders = [*told.get("folders", ()), *_caches(), tempfile.gettempdir(), "/dev", "/proc"]
    for folder in folders:
        for form in {os.path.abspath(folder), os.path.realpath(folder)}:
            if form not in _allowed:
                _allowed.append(form)
    _strict[0] = bool(told.get("strict"))
    if _strict[0]:
        _close_off()


def watch(packs):
    """From now on, what these packs write is looked at."""
    for pack in packs:
        _packs[os.path.realpath(pack["path"])] = pack["name"]
        _packs[os.path.abspath(pack["path"])] = pack["name"]
    if not _watching:
        _watching.append(True)
        sys.addaudithook(_look)


_watching = []


def _look(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if isinstance(mode, str):
            if not set(mode) & set("wax+"):
                return
        elif not isinstance(flags, int) or not flags & _WRITES:
            return
        _check(path)
    elif event in _EVENTS:
        for place in _EVENTS[event]:
            if place < len(arguments):
                _check(arguments[place])


def _check(path):
    if isinstance(path, int) or path is None:
        return
    try:
        path = os.fsdecode(path)
        place = os.path.abspath(path)
    except (TypeError, ValueError, OSError):
        return
    if "__pycache__" in place or _inside(place):
        return
    # Links lead somewhere else.
    place = os.path.realpath(place)
    if _inside(place):
        return
    pack = _writer()
    if pack is None:
        return
    mark = (pack, place)
    if mark not in _told and len(_told) < 1000:
        _told.add(mark)
        state.channel.event("outside", pack=pack, path=place, refused=_strict[0])
    if _strict[0]:
        raise PermissionError(
            f"the pack {pack} may not write {place}: with --fence-packs packs write to output, temp, input, user, models, "
            "custom_nodes, caches and the system's folder for temporary files only"
        )


def _inside(place):
    return any(place == folder or place.startswith(folder.rstrip(os.sep) + os.sep) for folder in _allowed)


def _writer():
    """The pack among the callers; else the one whose node runs."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        for folder, pack in _packs.items():
            if name == folder or name.startswith(folder + os.sep):
                return pack
        frame = frame.f_back
    call = state.current.get()
    if call is None or not call.class_name:
        return None
    from . import contract

    return contract.modules.get(call.class_name, "").removeprefix("custom_nodes.") or None


def _close_off():
    """Asks the system to refuse writes elsewhere, from this thread on and in all that it starts."""
    if not sys.platform.startswith("linux"):
        _say("the system cannot fence in packs here; what their Python code writes is still looked at")
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    syscall = libc.syscall
    syscall.restype = ctypes.c_long
    create, add, restrict = 444, 445, 446
    version = syscall(ctypes.c_long(create), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 1:
        _say("this system has no Landlock; what the Python code of packs writes is still looked at")
        return
    rights = sum(bits for since, bits in _RIGHTS.items() if since <= version)
    attributes = ctypes.create_string_buffer(struct.pack("=Q", rights), 8)
    ruleset = syscall(ctypes.c_long(create), attributes, ctypes.c_size_t(8), ctypes.c_uint(0))
    if ruleset < 0:
        _say("Landlock does not work here: " + os.strerror(ctypes.get_errno()))
        return
    for folder in _allowed:
        try:
            os.makedirs(folder, exist_ok=True)
            place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place), 12)
        syscall(ctypes.c_long(add), ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0))
        os.close(place)
    libc.prctl(38, 1, 0, 0, 0)
    if syscall(ctypes.c_long(restrict), ctypes.c_int(ruleset), ctypes.c_uint(0)) < 0:
        _say("Landlock does not work here: " + os.strerror(ctypes.get_errno()))
    os.close(ruleset)


def _say(text):
    print(text, file=sys.stderr, flush=True)
