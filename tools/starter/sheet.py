"""Draws the contact sheet with the program itself: every line of a prompt file, one picture each.

    python3 tools/starter/sheet.py SERVER SHEET.png [--cfg 5] [--steps 20] [--seed 7] [--captions]
"""

import argparse
import io
import json
import pathlib
import time
import urllib.parse
import urllib.request

from PIL import Image, ImageDraw

HERE = pathlib.Path(__file__).parent


def call(url: str, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    return urllib.request.urlopen(request).read()


def prompt(text: str, seed: int, args) -> dict:
    def node(kind, **inputs):
        return {"class_type": kind, "inputs": inputs}

    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="fresco-starter.safetensors"),
        "2": node("CLIPTextEncode", clip=["1", 1], text=text),
        "3": node("CLIPTextEncode", clip=["1", 1], text=""),
        "4": node("EmptyLatentImage", width=256, height=256, batch_size=1),
        "5": node(
            "KSampler", model=["1", 0], positive=["2", 0], negative=["3", 0], latent_image=["4", 0], seed=seed, steps=args.steps,
            cfg=args.cfg, sampler_name=args.sampler, scheduler=args.scheduler, denoise=1.0,
        ),  # fmt: skip
        "6": node("VAEDecode", samples=["5", 0], vae=["1", 2]),
        "7": node("SaveImage", images=["6", 0], filename_prefix="sheet"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("target")
    parser.add_argument("--prompts", type=pathlib.Path, default=HERE / "prompts.txt")
    parser.add_argument("--cfg", type=float, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--sampler", default="euler")
    parser.add_argument("--scheduler", default="normal")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--captions", action="store_true")
    args = parser.parse_args()
    lines = [line for line in args.prompts.read_text().splitlines() if line.strip()]
    start = time.time()
    ids = [json.loads(call(f"{args.server}/prompt", {"prompt": prompt(t, args.seed + i, args)}))["prompt_id"] for i, t in enumerate(lines)]
    line = 14 if args.captions else 0
    cell = args.size + 2
    sheet = Image.new("RGB", (8 * cell, -(-len(lines) // 8) * (cell + line)), "white")
    for i, (job, text) in enumerate(zip(ids, lines)):
        while job not in (history := json.loads(call(f"{args.server}/history/{job}"))):
            time.sleep(0.1)
        file = history[job]["outputs"]["7"]["images"][0]
        picture = Image.open(io.BytesIO(call(f"{args.server}/view?{urllib.parse.urlencode(file)}")))
        at = (i % 8 * cell, i // 8 * (cell + line))
        sheet.paste(picture.resize((args.size, args.size), Image.LANCZOS), at)
        if line:
            ImageDraw.Draw(sheet).text((at[0] + 2, at[1] + args.size + 1), text[:24], fill="black")
    sheet.save(args.target)
    print(len(lines), "pictures in", round(time.time() - start, 1), "s")


if __name__ == "__main__":
    main()
