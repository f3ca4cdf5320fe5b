"""Trains the small preview decoder on what the autoencoder makes, and fits the rough colours of latents. A CPU will do.

    python3 tools/starter/previews.py DATA_FOLDER STATE_FOLDER SECONDS

Writes preview.pt into STATE_FOLDER; export.py takes it from there.
"""

import json
import pathlib
import sys
import time

import torch
import torch.nn.functional as F

import captions
import model
from compose import Studio
from common import log


def main() -> None:
    data, state, seconds = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])
    torch.manual_seed(3)
    vae = model.Vae().requires_grad_(False).eval()
    vae.load_state_dict(torch.load(state / "vae.pt"))
    things = captions.chosen(json.loads((data / "pack.json").read_text()))
    recipes = captions.Recipes(things, 9)
    drawn = [recipes.draw() for _ in range(480)]
    studio = Studio(things, (data / "pack.bin").read_bytes(), "cpu")
    pictures = torch.cat([studio.make(drawn[i : i + 8]) for i in range(0, len(drawn), 8)])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        latents = torch.cat([vae.encode(p)[0].float() for p in pictures.split(8)]) * model.Vae.SCALE
    log("pictures", len(pictures))
    flat = torch.cat([latents.permute(0, 2, 3, 1).reshape(-1, 4), torch.ones(latents[:, 0].numel(), 1)], 1)
    rgb = torch.linalg.lstsq(flat, F.avg_pool2d(pictures, 8).permute(0, 2, 3, 1).reshape(-1, 3)).solution
    small = model.preview_decoder()
    opt = torch.optim.AdamW(small.parameters(), lr=0.0, weight_decay=0.0)
    start, step = time.time(), 0
    while (progress := (time.time() - start) / seconds) < 1:
        for group in opt.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 30) * max(0.02, 1 - progress)
        # Patches of 12 x 12 latent cells.
        pick, top, left = torch.randint(len(latents), (16,)), torch.randint(21, (16,)), torch.randint(21, (16,))
        z = torch.stack([latents[p, :, y : y + 12, x : x + 12] for p, y, x in zip(pick, top, left)])
        want = torch.stack([pictures[p, :, 8 * y : 8 * y + 96, 8 * x : 8 * x + 96] for p, y, x in zip(pick, top, left)])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = small(z + 0.1 * torch.randn_like(z)).float() * 2 - 1
        off = made - want
        loss = off.abs().mean() + 2 * F.avg_pool2d(off, 4).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        step += 1
        if step % 25 == 0:
            log(step, f"loss {loss.item():.4f} progress {progress:.2f}")
    kept = {k: v.contiguous() for k, v in small.state_dict().items()}
    torch.save({"vae": vae.state_dict(), "small": kept, "rgb": rgb.tolist()}, state / "preview.pt")
    log("steps", step)


if __name__ == "__main__":
    main()
