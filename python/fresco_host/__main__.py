"""A worker process: `python -m fresco_host`. The channel to the engine is standard input."""

import asyncio
import contextvars
import faulthandler
import logging
import os
import platform
import signal
import socket
import sys
import threading

from . import PROTOCOL, callbacks, contract, fence, limits, state, values
from .channel import Channel


def _open_channel():
    """The socket that the engine gave; standard input is nothing from then on."""
    port = os.environ.pop("FRESCO_PORT", None)
    if port is not None:
        sock = socket.create_connection(("127.0.0.1", int(port)))
        sock.sendall(os.environ.pop("FRESCO_SECRET", "").encode())
        return sock
    copy = os.dup(0)
    os.set_inheritable(copy, False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return socket.socket(fileno=copy)


def _live_as_long_as_the_engine():
    faulthandler.enable()
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, ValueError, OSError):
        pass
    if sys.platform.startswith("linux"):
        try:
            import ctypes

            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("500")
        except (OSError, AttributeError):
            pass


def _versions():
    import importlib.metadata

    def version(name):
        try:
            return importlib.metadata.version(name)
        except Exception:
            return None

    return {
        "protocol": PROTOCOL,
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": version("torch"),
        "numpy": version("numpy"),
        "aiohttp": version("aiohttp"),
        "pillow": version("pillow"),
    }


class Worker:
    def __init__(self, channel):
        self.channel = channel
        channel.on_call = self.call
        channel.on_event = self.event
        self.tasks = {}

    # On the reading thread

    def event(self, method, asked, number, segment):
        if method == "release":
            for reference, count in asked.get("values", ()):
                values.drop(reference, count)
            for instance in asked.get("instances", ()):
                contract.instances.pop(instance, None)
        elif method == "interrupt":
            contract.interrupter.interrupt(asked.get("prompt"))
            for prompt, task in list(self.tasks.values()):
                if prompt == asked.get("prompt"):
                    state.node_loop.call_soon_threadsafe(task.cancel)
        elif method == "written":
            self.channel.warm.done(asked.get("file"))
        elif method == "stop":
            callbacks.stop(asked.get("callback"))
        elif method == "shrink":
            # Between two nodes.
            state.node_loop.call_soon_threadsafe(_shrink)
        elif method == "shutdown":
            os._exit(0)

    def call(self, method, asked, number, segment):
        if method == "callback":
            callbacks.start(asked, segment, number)
            return
        on_nodes = method in ("call", "changed", "lazy")
        loop = state.node_loop if on_nodes else state.server_loop
        loop.call_soon_threadsafe(self._start, loop, method, asked, number, segment)

    # On the loop of the question

    def _start(self, loop, method, asked, number, segment):
        context = contextvars.copy_context()
        # Kept: the loop itself holds tasks weakly.
        task = loop.create_task(self._answer(method, asked, number, segment), context=context) if sys.version_info >= (
            3,
            11,
        ) else loop.create_task(self._answer(method, asked, number, segment))
        self.tasks[number] = (asked.get("prompt"), task)
        task.add_done_callback(lambda _: self.tasks.pop(number, None))

    async def _answer(self, method, asked, number, segment):
        call = state.Call(
            number, asked.get("prompt", ""), asked.get("node", ""), asked.get("index", 0), asked.get("class", "")
        )
        try:
            if method == "call":
                state.current.set(call)
                state.latest = call
                state.client_id = asked.get("client") or None
                state.last_prompt_id, state.last_node_id = call.prompt_id, asked.get("display", call.node_id)
                body, out, handles = await contract.run(asked, segment, call)
                self.channel.reply(number, body, out)
                del handles
                return
            self.channel.reply(number, await self._other(method, asked, segment, call))
        except asyncio.CancelledError as error:
            self.channel.error(number, contract.error_body(error))
        except BaseException as error:
            self.channel.error(number, contract.error_body(error))

    async def _other(self, method, asked, segment, call):
        if method == "hello":
            return self._hello(asked)
        if method == "load":
            from . import loader

            return await loader.load(asked["packs"], asked["protected"])
        if method == "describe":
            import folder_paths

            with folder_paths.cache_helper:
                return contract.describe_both(asked["class"])
        if method == "match":
            return contract.match(asked["received"], asked["declared"])
        if method == "validate":
            return await contract.validate(asked, segment, call)
        if method == "changed":
            state.current.set(call)
            return await contract.changed(asked, segment, call)
        if method == "lazy":
            state.current.set(call)
            return await contract.lazy(asked, segment, call)
        if method == "on_prompt":
            import server

            return server.PromptServer.instance.trigger_on_prompt(asked["json"])
        if method == "http":
            import server

            return await server.PromptServer.instance._listen(asked["path"])
        if method == "state":
            return {"held": values.held(), "instances": len(contract.instances)}
        raise ValueError(f"unknown question {method!r}")

    def _hello(self, asked):
        state.hello = asked
        if asked.get("memory_limit"):
            try:
                import resource

                resource.setrlimit(resource.RLIMIT_DATA, (asked["memory_limit"], asked["memory_limit"]))
            except (ImportError, ValueError, OSError) as error:
                logging.getLogger("fresco").warning("memory of packs cannot be limited here: %s", error)
        import folder_paths

        folder_paths._setup(asked)
        main = sys.modules["__main__"]
        main.__file__ = os.path.join(asked["base"], "main.py")
        # Names of the host win over equally named modules of packs.
        import comfy.cli_args
        import comfy.model_management
        import comfy.sample
        import comfy.sd
        import comfy.utils
        import execution
        import latent_preview
        import nodes
        import server

        server.PromptServer(state.server_loop)
        nodes._setup(asked.get("builtin") or [])
        return _versions()


def _shrink():
    """Gives memory back that is only kept for later."""
    import gc

    management = sys.modules.get("comfy.model_management")
    if management is not None:
        management._release()
    gc.collect()
    contract.tell_memory()


def _node_thread():
    loop = asyncio.new_event_loop()
    state.node_loop = loop
    state.node_thread = threading.current_thread()
    asyncio.set_event_loop(loop)
    loop.run_forever()


def main():
    _live_as_long_as_the_engine()
    fence.setup()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    channel = state.channel = Channel(_open_channel())
    if hasattr(os, "register_at_fork"):
        # A copy that a pack makes must not keep the channel open when this process ends.
        os.register_at_fork(after_in_child=lambda: os.close(channel.sock.detach()))
    Worker(channel)
    limits.setup()
    from . import placeholders, without_torch

    placeholders.install()
    without_torch.install()

    async def serve():
        state.server_loop = asyncio.get_running_loop()
        state.server_thread = threading.current_thread()
        threading.Thread(target=_node_thread, name="nodes", daemon=True).start()
        while state.node_loop is None:
            await asyncio.sleep(0.001)

        def read():
            channel.serve()
            os._exit(0)

        threading.Thread(target=read, name="channel", daemon=True).start()
        await asyncio.Event().wait()

    asyncio.run(serve())


main()
