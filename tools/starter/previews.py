"""Trains the small preview decoder on what the autoencoder makes, and fits the rough colours of latents, on a GPU.

    python3 tools/starter/previews.py DATA_FOLDER STATE_FOLDER SECONDS

Writes preview.pt into STATE_FOLDER; export.py takes it from there.
"""

import pathlib
import sys
import time

import torch
import torch.nn.functional as F

import captions
import model
from common import Average, autocast, device, keep, log, write_sheet
from compose import Studio


def main() -> None:
    data, state, seconds = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])
    torch.manual_seed(3)
    vae = model.Vae().to(device, memory_format=torch.channels_last).requires_grad_(False).eval()
    vae.load_state_dict(torch.load(state / "vae.pt", map_location=device))
    recipes = captions.load(data, 9)
    studio = Studio(data, recipes.pictures, recipes.layers, device)
    drawn = sorted((recipes.draw() for _ in range(4096)), key=lambda r: len(r["items"]))
    pictures = torch.cat([studio.make(drawn[i : i + 64]).to(torch.float16) for i in range(0, len(drawn), 64)])
    with torch.no_grad(), autocast():
        latents = torch.cat([vae.encode(p.float().contiguous(memory_format=torch.channels_last))[0].float() for p in pictures.split(64)]) * model.Vae.SCALE
    log("pictures", len(pictures))
    flat = torch.cat([latents[:512].permute(0, 2, 3, 1).reshape(-1, 4), torch.ones(latents[:512, 0].numel(), 1, device=device)], 1)
    rgb = torch.linalg.lstsq(flat, F.avg_pool2d(pictures[:512].float(), 8).permute(0, 2, 3, 1).reshape(-1, 3)).solution
    small = model.preview_decoder().to(device, memory_format=torch.channels_last)
    average = Average(small, 0.99)
    opt = torch.optim.AdamW(small.parameters(), lr=0.0, weight_decay=0.0)
    start, step = time.time(), 0
    while (progress := (time.time() - start) / seconds) < 1:
        for group in opt.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 30) * max(0.02, 1 - progress)
        pick = torch.randint(len(latents), (32,), device=device)
        z, want = latents[pick], pictures[pick].float()
        with autocast():
            made = small((z + 0.1 * torch.randn_like(z)).contiguous(memory_format=torch.channels_last)).float() * 2 - 1
        off = made - want
        loss = off.abs().mean() + 2 * F.avg_pool2d(off, 4).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        average.update()
        step += 1
        if step % 250 == 0:
            log(step, f"loss {loss.item():.4f} progress {progress:.2f}")
    kept = {k: v.cpu().contiguous() for k, v in average.net.state_dict().items()}
    keep({"vae": {k: v.cpu() for k, v in vae.state_dict().items()}, "small": kept, "rgb": rgb.cpu().tolist()}, state / "preview.pt")
    with torch.no_grad(), autocast():
        shown = average.net(latents[:: 4096 // 16][:16]).float()
    write_sheet(shown, state / "preview.png")
    log("steps", step)


if __name__ == "__main__":
    main()
