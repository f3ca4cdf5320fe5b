"""Composes the training pictures and keeps their latents, in chunks, so that training can begin after the first.

    python3 tools/starter/latents.py DATA_FOLDER STATE_FOLDER [CHUNK]

Writes latents-0.pt and so on into STATE_FOLDER, or only the one that CHUNK says; those that are there are not made again.
"""

import json
import pathlib
import sys

import torch

import captions
import model
from clip_bpe import END, LENGTH, START, Tokenizer
from common import autocast, device, keep, log
from compose import Studio

# A token no caption has: it stands for every token the model never saw.
UNKNOWN_ID = 49405
CHUNKS, RECIPES = 4, 3072


def tokens_of(tokenizer: Tokenizer, caption: str) -> list[int]:
    ids = []
    for piece in caption.split(captions.UNKNOWN):
        ids += tokenizer(piece)
        ids.append(UNKNOWN_ID)
    ids = ids[:-1][: LENGTH - 2]
    return [START, *ids] + [END] * (LENGTH - 1 - len(ids))


def main() -> None:
    data, state = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    vae = model.Vae().to(device, memory_format=torch.channels_last)
    vae.load_state_dict(torch.load(state / "vae.pt", map_location=device))
    vae.eval().requires_grad_(False)
    things = captions.chosen(json.loads((data / "pack.json").read_text()))
    studio = Studio(things, (data / "pack.bin").read_bytes(), device)
    recipes, tokenizer = captions.Recipes(things, 5), Tokenizer()
    drawn = [recipes.draw() for _ in range(CHUNKS * RECIPES)]
    tokens = torch.tensor([tokens_of(tokenizer, r["caption"]) for r in drawn])
    log("things", len(things), "recipes", len(drawn), "such as", [r["caption"] for r in drawn[:24]])
    for chunk in [int(sys.argv[3])] if len(sys.argv) > 3 else range(CHUNKS):
        path = state / f"latents-{chunk}.pt"
        if path.exists():
            continue
        # Sorted by how many things they show, so that a batch has much the same work in all its pictures.
        order = sorted(range(chunk * RECIPES, (chunk + 1) * RECIPES), key=lambda i: len(drawn[i]["items"]))
        parts = []
        with torch.no_grad():
            for i in range(0, RECIPES, 4):
                x = studio.make([drawn[j] for j in order[i : i + 4]]).contiguous(memory_format=torch.channels_last)
                with autocast():
                    parts.append((vae.encode(x)[0].float() * model.Vae.SCALE).to(torch.bfloat16).contiguous())
                if i % 512 == 0:
                    log("chunk", chunk, "picture", i)
        keep({"latents": torch.cat(parts), "tokens": tokens[order], "seen": torch.unique(tokens)}, path)


if __name__ == "__main__":
    main()
