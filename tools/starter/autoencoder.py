"""Trains the autoencoder of the starter model on patches of the packed pictures. A CPU with bf16 matrices will do.

    python3 tools/starter/autoencoder.py DATA_FOLDER STATE_FOLDER SECONDS [BEGUN]

Leaves rough.pt in STATE_FOLDER every few minutes, vae.pt at the end, and recon.png: pictures beside what came back. After a
break, BEGUN says which share of SECONDS was done: training goes on from rough.pt.
"""

import json
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import model
from compose import Studio
from common import Average, autocast, device, log, write_sheet
from words import COLOURS

# Patches of the flat set are the most frequent: its pictures are what the model draws.
FLAT = 0.6


def edges(x):
    return x[..., 1:, :] - x[..., :-1, :], x[..., :, 1:] - x[..., :, :-1]


def likeness(made, real):
    """Pixels, edges at two sizes, and colours: without the last, the rarer colours are learned late or never."""
    off = made - real
    loss = off.abs().mean()
    for edge in edges(off):
        loss = loss + 0.7 * edge.abs().mean()
    half = F.avg_pool2d(off, 2)
    for edge in edges(half):
        loss = loss + 0.3 * edge.abs().mean()
    patch = F.avg_pool2d(off, 4)
    tint = torch.stack([patch[:, 0] - patch[:, 1], patch[:, 1] - patch[:, 2], patch[:, 2] - patch[:, 0]], 1)
    return loss + patch.abs().mean() + 2 * patch.square().mean() + 0.7 * tint.abs().mean() + 2 * tint.square().mean()


class Patches:
    """Squares cut from pictures of both sizes that recipes use, some in other colours, on white and on other grounds."""

    def __init__(self, studio: Studio, index: list[dict]) -> None:
        self.studio = studio
        flat = torch.tensor([e["set"] == "flat" for e in index])
        self.weights = torch.where(flat, FLAT / flat.sum(), (1 - FLAT) / (~flat).sum())
        self.whole = studio.pictures
        self.half = torch.cat([F.avg_pool2d(p.float(), 2).to(torch.uint8) for p in studio.pictures.split(64)])

    def draw(self, count: int, size: int):
        pick = torch.multinomial(self.weights, count, replacement=True)
        cut = []
        for i in pick.tolist():
            source = self.half if torch.rand(()) < 0.3 and size <= 128 else self.whole
            room = source.shape[-1] - size
            # Out to the edge too, where there is nothing but ground.
            top, left = (torch.randint(0, room + 1, ()) for _ in range(2))
            cut.append(source[i, :, top : top + size, left : left + size])
        rgba = torch.stack(cut).float() / 255
        target = torch.where(torch.rand(count) < 0.35, torch.randint(len(COLOURS), (count,)), -1)
        rgb = self.studio.recoloured(rgba[:, :3], pick, target)
        ground = torch.where(torch.rand(count) < 0.2, torch.randint(len(COLOURS), (count,)), -1)
        ground = self.studio.backgrounds[ground][:, :, None, None]
        x = ground * (1 - rgba[:, 3:]) + rgb * rgba[:, 3:]
        return x * 2 - 1


def main() -> None:
    data, state, seconds = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])
    state.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(20261115)
    index = json.loads((data / "pack.json").read_text())
    studio = Studio(index, (data / "pack.bin").read_bytes(), "cpu")
    patches = Patches(studio, index)
    log("pictures", len(index))
    vae = model.Vae()
    begun = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    if begun:
        vae.load_state_dict(torch.load(state / "rough.pt"))
    vae.to(device)
    # Patches are smaller than pictures, so what looks across a whole picture stays as it begins: without effect.
    for half in (vae.encoder, vae.decoder):
        torch.nn.init.zeros_(half.mid["attn_1"].proj_out.weight)
        torch.nn.init.zeros_(half.mid["attn_1"].proj_out.bias)
        half.mid["attn_1"].requires_grad_(False)
    average = Average(vae, 0.995)
    live = [p for p in vae.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(live, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    start, step, kept = time.time() - begun * seconds, 0, time.time()
    while (progress := (time.time() - start) / seconds) < 1:
        for group in opt.param_groups:
            group["lr"] = 1.5e-3 * min(1, (step + 1) / 100) * (1 if progress < 0.4 else max(0.01, (1 - progress) / 0.6))
        # Small patches teach shapes quickly; norms see whole pictures, so whole pictures come last.
        x = patches.draw(*((32, 64) if progress < 0.6 else (8, 128) if progress < 0.72 else (3, 256))).to(device)
        with autocast(), sdpa_kernel(SDPBackend.MATH):
            mean, _ = vae.encode(x)
            y = vae.decode(mean + 0.08 * torch.randn_like(mean)).float()
        mean = mean.float()
        # The first three channels lean towards the colours: they cannot be forgotten, and latents stay picture-like.
        lean = (mean[:, :3] - 1.5 * F.avg_pool2d(x, 8)).square().mean()
        loss = likeness(y, x) + 0.03 * lean + 0.003 * mean[:, 3].square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(live, 1.0)
        opt.step()
        average.update()
        step += 1
        if step % 50 == 0:
            off = ((y - x).detach().abs().mean((0, 2, 3)) * 127.5).tolist()
            log(step, f"loss {loss.item():.4f} progress {progress:.3f} of 255:", [round(e, 2) for e in off])
        if time.time() - kept > 180:
            kept = time.time()
            torch.save(average.net.state_dict(), state / "rough.pt")
            look(average.net, patches, state)
    vae = average.net
    with torch.no_grad(), autocast(), sdpa_kernel(SDPBackend.MATH):
        z = torch.cat([vae.encode(patches.draw(16, 256).to(device))[0].float() for _ in range(24)])
    log("latents: mean", z.mean((0, 2, 3)).tolist(), "deviation", z.std((0, 2, 3)).tolist())
    vae.standardise(z.mean((0, 2, 3)), z.std((0, 2, 3)))
    torch.save(vae.state_dict(), state / "vae.pt")
    look(vae, patches, state)
    log("steps", step)


@torch.no_grad()
def look(vae, patches, state) -> None:
    generator = torch.get_rng_state()
    torch.manual_seed(5)
    x = patches.draw(24, 256).to(device)
    torch.set_rng_state(generator)
    with sdpa_kernel(SDPBackend.MATH):
        y = torch.cat([vae.decode(vae.encode(p)[0]) for p in x.split(8)])
    log("error of 255:", [round(e, 2) for e in ((y - x).abs().mean((0, 2, 3)) * 127.5).tolist()])
    write_sheet((torch.stack([x, y], 1).flatten(0, 1) + 1) / 2, state / "recon.png")


if __name__ == "__main__":
    main()
