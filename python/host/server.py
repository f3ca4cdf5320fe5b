"""The host's server as packs see it: routes are kept here and served to the engine, messages go to it."""

import asyncio
import base64
import inspect
import logging
import os
import types
import uuid

from fresco_host import limits, state

try:
    from aiohttp import web
except ImportError:
    web = None


class BinaryEventTypes:
    PREVIEW_IMAGE = 1
    UNENCODED_PREVIEW_IMAGE = 2
    TEXT = 3
    PREVIEW_IMAGE_WITH_METADATA = 4


class _NoRoutes:
    """Stands for the route table where aiohttp is not installed: packs load, their routes do not exist."""

    def __init__(self):
        self.wanted = []

    def __iter__(self):
        return iter(())

    def _decorate(self, method):
        def route(path, **kwargs):
            def keep(handler):
                self.wanted.append((method, path))
                return handler

            return keep

        return route

    def __getattr__(self, name):
        if name in ("get", "post", "put", "patch", "delete", "head", "view", "static"):
            return self._decorate(name)
        if name == "route":
            return lambda method, path, **kwargs: self._decorate(method)(path)
        raise AttributeError(name)


class _Socket:
    """A client of the engine."""

    def __init__(self, server, client):
        self.server, self.client = server, client
        self.closed = False

    async def send_json(self, message):
        self.server.send_sync(message.get("type"), message.get("data"), self.client)

    async def send_bytes(self, data):
        self.server._binary(int.from_bytes(data[:4], "big"), data[4:], self.client)


class _Sockets(dict):
    """The clients that are known here: the one whose prompt runs."""

    def __init__(self, server):
        super().__init__()
        self.server = server

    def __contains__(self, client):
        return client is not None and client == state.client_id

    def __missing__(self, client):
        return _Socket(self.server, client)

    def get(self, client, default=None):
        return self[client] if client in self else default

    def __iter__(self):
        return iter([state.client_id] if state.client_id else [])

    def __len__(self):
        return 1 if state.client_id else 0

    def keys(self):
        return list(self)

    def items(self):
        return [(client, self[client]) for client in self]

    def values(self):
        return [self[client] for client in self]


class PromptServer:
    instance = None

    def __init__(self, loop):
        PromptServer.instance = self
        self.loop = loop
        self.messages = None
        self.supports = ["custom_nodes_from_web"]
        self.sockets = _Sockets(self)
        self.sockets_metadata = {}
        self.web_root = os.path.join(state.hello.get("base", ""), "web")
        self.address = state.hello.get("address", "127.0.0.1")
        self.port = state.hello.get("port", 8188)
        self.on_prompt_handlers = []
        self.user_manager = types.SimpleNamespace(
            get_request_user_id=lambda request: "default",
            get_request_user_filepath=self._user_file,
            users={"default": "default"},
        )
        self._frozen = False
        self._socket = None
        self._session = None
        from execution import PromptQueue

        self.prompt_queue = PromptQueue(self)
        if web is None:
            self.routes = _NoRoutes()
            self.app = types.SimpleNamespace(add_routes=lambda routes: None, router=types.SimpleNamespace(frozen=False), frozen=False)
        else:
            self.routes = web.RouteTableDef()
            self.app = web.Application(client_max_size=1 << 40, middlewares=[_remember_client])

    @property
    def client_id(self):
        return state.client_id

    @client_id.setter
    def client_id(self, value):
        state.client_id = value

    @property
    def number(self):
        from execution import _ask

        return _ask("number")

    @number.setter
    def number(self, value):
        # The engine counts by itself.
        return None

    @property
    def last_node_id(self):
        return state.last_node_id

    @property
    def last_prompt_id(self):
        return state.last_prompt_id

    @property
    def client_session(self):
        if self._session is None and web is not None:
            from aiohttp import ClientSession

            self._session = ClientSession()
        return self._session

    def _user_file(self, request, file, type="userdata", create_dir=True):
        root = os.path.join(state.hello.get("user", ""), "default")
        return os.path.join(root, file) if file else root

    # Messages

    def send_sync(self, event, data, sid=None):
        from fresco_host.values import plain_json

        if isinstance(event, int):
            self._binary(event, data, sid)
            return
        call = state.call()
        if isinstance(data, (bytes, bytearray)):
            data = base64.b64encode(data).decode()
        try:
            data = plain_json(data)
        except TypeError as error:
            logging.getLogger("fresco").warning("the message %s was not sent: %s", event, error)
            return
        state.channel.event("send", event=event, data=data, sid=sid, call=call.number if call else 0)

    def _binary(self, event, data, sid):
        from comfy.utils import _encode_preview
        from fresco_host.values import plain_json

        if event == BinaryEventTypes.UNENCODED_PREVIEW_IMAGE:
            kind, picture = _encode_preview(data)
            event, data = BinaryEventTypes.PREVIEW_IMAGE, _number(2 if kind == "PNG" else 1) + base64.b64decode(picture)
        elif event == BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA and isinstance(data, tuple):
            kind, picture = _encode_preview(data[0])
            about = dict(data[1]) if len(data) > 1 and isinstance(data[1], dict) else {}
            about.setdefault("image_type", "image/png" if kind == "PNG" else "image/jpeg")
            about = json.dumps(plain_json(about)).encode()
            data = _number(len(about)) + about + base64.b64decode(picture)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            logging.getLogger("fresco").warning("a message of kind %s was not sent: it has no bytes", event)
            return
        state.channel.event("bytes", event=int(event), content=base64.b64encode(bytes(data)).decode(), sid=sid)

    async def send(self, event, data, sid=None):
        self.send_sync(event, data, sid)

    async def send_json(self, event, data, sid=None):
        self.send_sync(event, data, sid)

    async def send_bytes(self, event, data, sid=None):
        self.send_sync(event, data, sid)

    async def send_image(self, image_data, sid=None):
        self._binary(BinaryEventTypes.UNENCODED_PREVIEW_IMAGE, image_data, sid)

    async def send_image_with_metadata(self, image_data, metadata=None, sid=None):
        self._binary(BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA, (image_data, metadata or {}), sid)

    def encode_bytes(self, event, data):
        return int(event).to_bytes(4, "big") + bytes(data)

    def send_progress_text(self, text, node_id, sid=None):
        call = state.call()
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        state.channel.event("text", call=call.number if call else 0, node=node_id, text=text)

    def queue_updated(self):
        return None

    def get_queue_info(self):
        return {"exec_info": {"queue_remaining": self.prompt_queue.get_tasks_remaining()}}

    # Prompts

    def add_on_prompt_handler(self, handler):
        self.on_prompt_handlers.append(handler)

    def trigger_on_prompt(self, json_data):
        for handler in self.on_prompt_handlers:
            try:
                changed = limits.within(limits.CHECK, handler, json_data)
                if changed is not None:
                    json_data = changed
            except Exception:
                logging.getLogger("fresco").warning("a handler of prompts failed", exc_info=True)
        return json_data

    # Routes

    def add_routes(self):
        return None

    async def setup(self):
        return None

    def _freeze(self):
        """After the packs: routes of the table also stand under /api."""
        if web is None:
            if self.routes.wanted:
                logging.getLogger("fresco").warning(
                    "%d routes of packs do not exist: aiohttp is not installed", len(self.routes.wanted)
                )
            return
        doubled = web.RouteTableDef()
        for route in self.routes:
            if isinstance(route, web.RouteDef):
                doubled.route(route.method, "/api" + route.path)(route.handler)
        self.app.add_routes(doubled)
        self.app.add_routes(self.routes)

    def _route_list(self):
        if web is None:
            return []
        found = []
        for resource in self.app.router.resources():
            info = resource.get_info()
            if "prefix" in info:
                found.append(["GET", info["prefix"] + "/{rest:.*}"])
                continue
            pattern = info.get("path") or info.get("formatter") or ""
            if "pattern" in info:
                pattern = _open_ended(resource, pattern)
            found.extend([route.method, pattern] for route in resource)
        return found

    async def _listen(self, path):
        if web is None:
            raise RuntimeError("aiohttp is not installed")
        runner = web.AppRunner(self.app, access_log=None)
        await runner.setup()
        if os.name == "nt":
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            return site._server.sockets[0].getsockname()[1]
        site = web.UnixSite(runner, path)
        await site.start()
        os.chmod(path, 0o600)
        return path


def _number(value):
    return value.to_bytes(4, "big")


def _open_ended(resource, formatter):
    """The formatter of a path with parameters, where those that span segments keep their pattern."""
    text = formatter
    pattern = resource.get_info()["pattern"].pattern
    for name in resource.get_info()["pattern"].groupindex:
        if f"(?P<{name}>.*" in pattern or f"(?P<{name}>.+" in pattern:
            text = text.replace("{%s}" % name, "{%s:.*}" % name)
    return text


if web is not None:

    @web.middleware
    async def _remember_client(request, handler):
        client = request.headers.get("X-Fresco-Client")
        if client:
            request = request.clone(remote=client)
        answer = handler(request)
        return await answer if inspect.isawaitable(answer) else answer


import json  # noqa: E402  packs take these from here

import execution  # noqa: E402
import folder_paths  # noqa: E402
import nodes  # noqa: E402

try:
    import aiohttp
except ImportError:
    aiohttp = None

__all__ = ["PromptServer", "BinaryEventTypes", "web", "uuid", "aiohttp", "json", "asyncio", "os", "nodes", "execution", "folder_paths"]
