"""Imports packs, and reports what became of each."""

import importlib.util
import inspect
import logging
import os
import sys
import time
import traceback

from . import contract, fence, placeholders, speaker, state

log = logging.getLogger("fresco")


def prestart(packs):
    for pack in packs:
        script = os.path.join(pack["path"], "prestartup_script.py")
        if pack.get("file") or not os.path.isfile(script):
            continue
        _begin(pack["name"])
        try:
            spec = importlib.util.spec_from_file_location(script[:-3], script)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        except BaseException as error:
            print(f"Failed to execute startup-script: {script} / {error}", file=sys.stderr, flush=True)


def _begin(pack):
    """What follows is the work of this pack, or of the host itself."""
    speaker.speaks(pack)
    state.channel.event("importing", pack=pack)


async def load(packs, protected):
    import nodes
    import server

    protected = set(protected)
    _guard_installers()
    fence.watch(packs)
    prestart(packs)
    _begin(None)
    placeholders.import_libraries()
    placeholders.import_host()
    before = _host_functions()
    for pack in packs:
        _begin(pack["name"])
        report = await _load(pack, protected, nodes, server)
        state.channel.event("loaded", **report)
    speaker.speaks(None)
    server.PromptServer.instance._freeze()
    replaced = sorted(name for name, value in _host_functions().items() if before.get(name) is not value and name in before)
    if replaced:
        state.channel.event("replaced", names=", ".join(replaced[:40]))
    return {
        "classes": sorted(contract.classes),
        "routes": server.PromptServer.instance._route_list(),
        "folders": folder_table(),
        "on_prompt": len(server.PromptServer.instance.on_prompt_handlers),
        "web": sorted(nodes.EXTENSION_WEB_DIRS.items()),
        **_listed(),
    }


def _listed():
    """Samplers and schedules that packs added to the lists of the host."""
    samplers = sys.modules.get("comfy.samplers")
    if samplers is None:
        return {}
    from . import values
    from .channel import Outgoing

    encoder = values.Encoder(Outgoing())
    added = samplers._added()
    return {key: [[name, encoder.reference(thing)] for name, thing in things] for key, things in added.items()}


def _host_functions():
    """Functions and classes of the host by their full names: packs put their own in place of some."""
    import inspect as look

    found = {}
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if name.split(".")[0] not in ("comfy", "nodes", "server", "execution", "folder_paths", "latent_preview", "node_helpers"):
            continue
        for key, value in list(vars(module).items()):
            if not key.startswith("_") and (look.isfunction(value) or look.isclass(value)):
                found[f"{name}.{key}"] = value
    return found


def _guard_installers():
    """Packs that install something while they are imported are told the command instead."""
    import subprocess

    if state.hello.get("allow_pip"):
        return
    original = subprocess.Popen.__init__

    def guarded(self, args, *rest, **kwargs):
        words = args.split() if isinstance(args, str) else [str(part) for part in args] if isinstance(args, (list, tuple)) else []
        names = [os.path.basename(word) for word in words[:6]]
        installs = "install" in names or "install" in words
        if installs and any(name in ("pip", "pip3", "uv", "conda") for name in names):
            raise PermissionError(
                "a pack wants to install something, which Fresco does not do by itself; run it yourself: " + " ".join(words)
            )
        return original(self, args, *rest, **kwargs)

    if not getattr(subprocess.Popen.__init__, "fresco_guard", False):
        guarded.fresco_guard = True
        subprocess.Popen.__init__ = guarded


def folder_table():
    import folder_paths

    table = []
    for name, entry in list(folder_paths.folder_names_and_paths.items()):
        try:
            table.append([str(name), [str(path) for path in entry[0]], sorted(str(e) for e in entry[1])])
        except (TypeError, IndexError):
            continue
    return table


def _module_name(pack):
    path = pack["path"]
    return path[:-3] if pack.get("file") else path.replace(".", "_x_")


async def _load(pack, protected, nodes, server):
    started = time.monotonic()
    before = dict(nodes.NODE_CLASS_MAPPINGS)
    web_before = dict(nodes.EXTENSION_WEB_DIRS)
    report = {"pack": pack["name"], "ok": False, "error": None, "trace": None, "ignored": [], "overridden": [], "classes": []}
    web = {}
    module = None
    try:
        module = _import(pack)
        short = os.path.splitext(os.path.basename(pack["path"]))[0] if pack.get("file") else os.path.basename(pack["path"])
        home = os.path.dirname(pack["path"]) if pack.get("file") else pack["path"]
        nodes.LOADED_MODULE_DIRS[short] = os.path.abspath(home)
        _web(pack, module, short, home, web, nodes)
        await _register(pack, module, protected, before, report, nodes)
        report["ok"] = True
    except BaseException as error:
        report["error"] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        report["error"] += _other_python(pack)
        report["trace"] = traceback.format_exc()
        print(report["trace"], file=sys.stderr, flush=True)
        print(f"Cannot import {pack['path']} module for custom nodes: {error}", file=sys.stderr, flush=True)
    _added(pack, before, protected, report, nodes)
    for key, folder in nodes.EXTENSION_WEB_DIRS.items():
        if web_before.get(key) != folder:
            web[key] = folder
    report["web"] = [[key, os.path.abspath(folder)] for key, folder in web.items()]
    report["seconds"] = time.monotonic() - started
    return report


def _import(pack):
    name = _module_name(pack)
    place = pack["path"] if pack.get("file") else os.path.join(pack["path"], "__init__.py")
    if not os.path.isfile(place):
        raise ImportError(f"the folder has no __init__.py: {pack['path']}")
    spec = importlib.util.spec_from_file_location(name, place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _web(pack, module, short, home, web, nodes):
    if not pack.get("file"):
        project, folder = project_settings(home)
        if folder and os.path.isdir(os.path.join(home, folder)):
            log.info("Automatically register web folder %s for %s", folder, project or short)
            web[project or short] = os.path.join(home, folder)
    folder = getattr(module, "WEB_DIRECTORY", None)
    if folder is not None:
        folder = os.path.abspath(os.path.join(home, folder))
        if os.path.isdir(folder):
            web[short] = folder
    nodes.EXTENSION_WEB_DIRS.update(web)


def _other_python(pack):
    """What a pack that failed says about the Python that it needs, if this is not one."""
    import re

    path = os.path.join(pack["path"], "pyproject.toml")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(r"^\s*requires-python\s*=\s*[\"']([^\"']+)[\"']", file.read(), re.M)
    except OSError:
        return ""
    if found is None:
        return ""
    here = sys.version_info[:3]
    for rule in found.group(1).split(","):
        part = re.match(r"\s*(>=|<=|==|!=|~=|>|<)\s*([0-9]+(?:\.[0-9]+)*)", rule)
        if part is None:
            continue
        wanted = tuple(int(number) for number in part.group(2).split("."))
        ours = here[: len(wanted)]
        fits = {
            ">=": ours >= wanted, "<=": ours <= wanted, "==": ours == wanted, "!=": ours != wanted, ">": ours > wanted,
            "<": ours < wanted, "~=": ours >= wanted and ours[:1] == wanted[:1],
        }[part.group(1)]
        if not fits:
            have = ".".join(map(str, here))
            return f" (the pack needs Python {found.group(1)}, and this is {have}; name another with --python)"
    return ""


def project_settings(home):
    """`project.name` and `tool.comfy.web` of a pack's pyproject.toml."""
    path = os.path.join(home, "pyproject.toml")
    if not os.path.isfile(path):
        return None, ""
    try:
        import tomllib

        with open(path, "rb") as file:
            content = tomllib.load(file)
        name = content.get("project", {}).get("name")
        web = content.get("tool", {}).get("comfy", {}).get("web", "")
        return name, web if isinstance(web, str) else ""
    except ImportError:
        # Python 3.10 has no reader for it; these two lines are found without.
        return _plain_settings(path)
    except Exception as error:
        log.warning("cannot read %s: %s", path, error)
        return None, ""


def _plain_settings(path):
    import re

    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    found = {}
    for section, key in (("project", "name"), ("tool.comfy", "web")):
        part = re.search(r"^\[" + re.escape(section) + r"\]\s*$(.*?)(?=^\[|\Z)", text, re.M | re.S)
        value = re.search(r"^\s*" + key + r"\s*=\s*[\"']([^\"']*)[\"']", part.group(1), re.M) if part else None
        found[key] = value.group(1) if value else None
    return found["name"], found["web"] or ""


async def _register(pack, module, protected, before, report, nodes):
    mappings = getattr(module, "NODE_CLASS_MAPPINGS", None)
    if mappings is not None:
        for name, cls in dict(mappings).items():
            _add(pack, str(name), cls, protected, before, report, nodes)
        names = getattr(module, "NODE_DISPLAY_NAME_MAPPINGS", None)
        if names is not None:
            nodes.NODE_DISPLAY_NAME_MAPPINGS.update(names)
        return
    entry = getattr(module, "comfy_entrypoint", None)
    if entry is None:
        raise ImportError("the pack has neither NODE_CLASS_MAPPINGS nor comfy_entrypoint")
    if not callable(entry):
        raise ImportError("comfy_entrypoint is not a function")
    from comfy_api.latest import ComfyExtension

    extension = await entry() if inspect.iscoroutinefunction(entry) else entry()
    if not isinstance(extension, ComfyExtension):
        raise ImportError("comfy_entrypoint gave no ComfyExtension")
    await extension.on_load()
    listed = await extension.get_node_list()
    if not isinstance(listed, list):
        raise ImportError("get_node_list gave no list")
    for cls in listed:
        schema = cls.GET_SCHEMA()
        _add(pack, schema.node_id, cls, protected, before, report, nodes)
        if schema.display_name is not None:
            nodes.NODE_DISPLAY_NAME_MAPPINGS[schema.node_id] = schema.display_name


def _add(pack, name, cls, protected, before, report, nodes):
    if name in protected:
        report["ignored"].append(name)
        return
    if name in contract.classes:
        report["overridden"].append([name, contract.modules.get(name, "")])
    nodes.NODE_CLASS_MAPPINGS[name] = cls
    contract.classes[name] = cls
    contract.modules[name] = pack["module"]
    report["classes"].append(name)
    try:
        cls.RELATIVE_PYTHON_MODULE = pack["module"]
    except (AttributeError, TypeError):
        pass


def _added(pack, before, protected, report, nodes):
    """Classes that the pack wrote into the host's table itself."""
    for name, cls in list(nodes.NODE_CLASS_MAPPINGS.items()):
        if contract.classes.get(name) is cls or before.get(name) is cls:
            continue
        if name in protected:
            nodes.NODE_CLASS_MAPPINGS[name] = before[name] if name in before else cls
            report["ignored"].append(name)
            continue
        _add(pack, name, cls, set(), before, report, nodes)


