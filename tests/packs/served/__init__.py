"""Routes, handlers of prompts, and static files, as packs with pages of their own have."""

import os

from aiohttp import web
from server import PromptServer

routes = PromptServer.instance.routes


@routes.get("/served/hello")
async def hello(request):
    return web.json_response({"name": request.query.get("name"), "remote": request.remote})


@routes.post("/served/echo")
async def echo(request):
    return web.json_response({"got": await request.json()})


@routes.post("/served/upload")
async def upload(request):
    form = await request.post()
    content = form["file"].file.read()
    return web.json_response({"name": form["file"].filename, "size": len(content), "word": form["word"]})


@routes.patch("/served/item/{number:\\d+}")
async def change(request):
    return web.Response(status=202, text="changed " + request.match_info["number"])


@routes.get("/served/item/{number}")
async def item(request):
    if request.match_info["number"] == "0":
        raise web.HTTPNotFound(text="no such item")
    return web.Response(text=request.match_info["number"])


@routes.get("/served/stream")
async def stream(request):
    answer = web.StreamResponse()
    await answer.prepare(request)
    for part in (b"one ", b"two ", b"three"):
        await answer.write(part)
    return answer


@routes.get("/served/file")
async def file(request):
    return web.FileResponse(__file__)


@routes.get("/served/socket")
async def socket(request):
    answer = web.WebSocketResponse()
    await answer.prepare(request)
    await answer.send_json({"hello": request.query.get("name"), "from": request.remote})
    async for message in answer:
        if message.type == web.WSMsgType.BINARY:
            await answer.send_bytes(bytes(reversed(message.data)))
        elif message.data == "end":
            await answer.close()
        else:
            await answer.send_json({"echo": message.data})
    return answer


PromptServer.instance.app.add_routes([web.static("/served_static", os.path.dirname(__file__))])


def first(data):
    data["prompt"]["1"]["inputs"]["a"] += 10
    return data


def second(data):
    raise ValueError("this handler fails")


def third(data):
    data["prompt"]["1"]["inputs"]["a"] *= 2
    return data


for handler in (first, second, third):
    PromptServer.instance.add_on_prompt_handler(handler)
NODE_CLASS_MAPPINGS = {}
