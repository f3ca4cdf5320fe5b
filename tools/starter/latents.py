"""Draws recipes, composes the pictures and keeps their latents and their captions' tokens.

    python3 tools/starter/latents.py recipes DATA_FOLDER STATE_FOLDER COUNT     (needs no GPU; writes recipes.pt)
    python3 tools/starter/latents.py pictures DATA_FOLDER STATE_FOLDER          (writes latents.pt)
"""

import pathlib
import sys

import torch

import captions
import model
from clip_bpe import END, LENGTH, START, Tokenizer
from common import autocast, device, keep, log

# A token no caption has: it stands for every token the model never saw.
UNKNOWN_ID = 49405


def tokens_of(tokenizer: Tokenizer, caption: str) -> list[int]:
    ids = []
    for piece in caption.split(captions.UNKNOWN):
        ids += tokenizer(piece)
        ids.append(UNKNOWN_ID)
    ids = ids[:-1][: LENGTH - 2]
    return [START, *ids] + [END] * (LENGTH - 1 - len(ids))


def draw(data: pathlib.Path, state: pathlib.Path, count: int) -> None:
    recipes, tokenizer = captions.load(data, 5), Tokenizer()
    # Sorted by how many layers they have, so that a batch has much the same work in all its pictures.
    drawn = sorted((recipes.draw() for _ in range(count)), key=lambda r: len(r["items"]))
    tokens = torch.tensor([tokens_of(tokenizer, r["caption"]) for r in drawn], dtype=torch.int32)
    keep({"drawn": drawn, "tokens": tokens}, state / "recipes.pt")
    log("things", len(recipes.things), "recipes", count, "such as", [r["caption"] for r in drawn[:: count // 40]])


def encode(data: pathlib.Path, state: pathlib.Path) -> None:
    from compose import Studio

    vae = model.Vae().to(device, memory_format=torch.channels_last)
    vae.load_state_dict(torch.load(state / "vae.pt", map_location=device))
    vae.eval().requires_grad_(False)
    recipes = captions.load(data, 5)
    studio = Studio(data, recipes.pictures, recipes.layers, device)
    kept = torch.load(state / "recipes.pt", weights_only=False)
    drawn, tokens, parts = kept["drawn"], kept["tokens"], []
    log("recipes", len(drawn))
    with torch.no_grad():
        for i in range(0, len(drawn), 128):
            x = studio.make(drawn[i : i + 128]).contiguous(memory_format=torch.channels_last)
            with autocast():
                parts.append((vae.encode(x)[0].float() * model.Vae.SCALE).to(torch.float16).contiguous())
            if i % 16384 == 0:
                log("picture", i)
    keep({"latents": torch.cat(parts), "tokens": tokens, "seen": torch.unique(tokens.long())}, state / "latents.pt")


if __name__ == "__main__":
    data, state = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    state.mkdir(parents=True, exist_ok=True)
    draw(data, state, int(sys.argv[4])) if sys.argv[1] == "recipes" else encode(data, state)
