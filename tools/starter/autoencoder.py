"""Trains the autoencoder of the starter model on composed pictures, on a GPU.

    python3 tools/starter/autoencoder.py DATA_FOLDER STATE_FOLDER SECONDS [POOL]

Leaves vae.pt in STATE_FOLDER and recon.png: pictures beside what came back.
"""

import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import captions
import model
from common import Average, autocast, device, keep, log, write_sheet
from compose import Studio

BATCH, RATE = 32, 1.2e-3


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


class Critic(nn.Module):
    """Tells real patches from made ones; what its layers see also serves as a measure of likeness."""

    def __init__(self, n: int = 64) -> None:
        super().__init__()
        widths = [3, n, 2 * n, 4 * n, 4 * n]
        strides = [2, 2, 2, 1]
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(a, b, 4 if s == 2 else 3, s, 1), nn.GroupNorm(8, b) if i else nn.Identity(), nn.LeakyReLU(0.2)) for i, (a, b, s) in enumerate(zip(widths, widths[1:], strides))]
        )
        self.last = nn.Conv2d(4 * n, 1, 3, padding=1)

    def forward(self, x):
        seen = []
        for layer in self.layers:
            x = layer(x)
            seen.append(x)
        return self.last(x), seen


def main() -> None:
    data, state, seconds = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])
    size = int(sys.argv[4]) if len(sys.argv) > 4 else 24576
    state.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(20261115)
    recipes = captions.load(data, 3)
    studio = Studio(data, recipes.pictures, recipes.layers, device)
    log("pictures", len(recipes.pictures), "things", len(recipes.things))
    drawn = sorted((recipes.draw() for _ in range(size)), key=lambda r: len(r["items"]))
    log("recipes", size)
    pool = torch.cat([((studio.make(drawn[i : i + 128]) + 1) * 127.5).round().to(torch.uint8) for i in range(0, size, 128)])
    log("pool", tuple(pool.shape))
    del studio
    write_sheet(pool[torch.randperm(size)[:64]].float() / 255, state / "data.png")
    vae = model.Vae().to(device, memory_format=torch.channels_last)
    # What looks across a whole picture stays without effect, so that other sizes work as well.
    for half in (vae.encoder, vae.decoder):
        nn.init.zeros_(half.mid["attn_1"].proj_out.weight)
        nn.init.zeros_(half.mid["attn_1"].proj_out.bias)
        half.mid["attn_1"].requires_grad_(False)
    critic = Critic().to(device, memory_format=torch.channels_last)
    average = Average(vae, 0.998)
    live = [p for p in vae.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(live, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=device == "cuda")
    opt_critic = torch.optim.AdamW(critic.parameters(), lr=4e-4, betas=(0.5, 0.9), weight_decay=0.0, fused=device == "cuda")

    def there_and_back(x, strength, noise):
        mean, _ = vae.encode(x)
        around = mean.float().std((0, 2, 3), keepdim=True).detach()
        return mean, vae.decode(mean + (strength * around * noise).to(mean.dtype))

    quick = torch.compile(there_and_back) if device == "cuda" else there_and_back
    step, start, sums = 0, None, torch.zeros(4, device=device)
    spoken = time.time()
    while (progress := 0.0 if start is None else (time.time() - start) / seconds) < 1:
        for group in opt.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 200) * (1 if progress < 0.4 else max(0.01, (1 - progress) / 0.6))
        x = pool[torch.randint(size, (BATCH,), device=device)].float() / 127.5 - 1
        x = torch.where(torch.rand(BATCH, 1, 1, 1, device=device) < 0.5, x, x.flip(3)).contiguous(memory_format=torch.channels_last)
        strength = 0.18 * torch.rand(BATCH, 1, 1, 1, device=device)
        with autocast():
            mean, y = quick(x, strength, torch.randn(BATCH, 4, x.shape[2] // 8, x.shape[3] // 8, device=device))
        mean, y = mean.float(), y.float()
        near = likeness(y, x)
        # The first three channels lean towards the colours: they cannot be forgotten, and latents stay picture-like.
        lean = (mean[:, :3] - 1.5 * F.avg_pool2d(x, 8)).square().mean()
        loss = near + 0.02 * lean + 0.003 * mean[:, 3].square().mean()
        if step % 4 == 0:
            # Latents shrunk to half are those of the picture shrunk to half: such latents are easier to draw in.
            with autocast():
                small = vae.decode(F.avg_pool2d(mean, 2).contiguous(memory_format=torch.channels_last)).float()
            loss = loss + 0.25 * (small - F.avg_pool2d(x, 2)).abs().mean()
        fight = progress > 0.4
        if fight:
            critic.requires_grad_(False)
            with autocast():
                verdict, seen = critic(y)
                with torch.no_grad():
                    _, wanted = critic(x)
            alike = sum((a.float() - b.float()).abs().mean() / b.float().abs().mean() for a, b in zip(seen, wanted)) / len(seen)
            on = min(1, (progress - 0.4) / 0.1)
            loss = loss + on * (0.08 * alike - 0.012 * verdict.float().mean())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(live, 1.0)
        opt.step()
        average.update()
        if progress > 0.36:
            critic.requires_grad_(True)
            with autocast():
                real, made = critic(x)[0].float(), critic(y.detach())[0].float()
            doubt = F.relu(1 - real).mean() + F.relu(1 + made).mean()
            opt_critic.zero_grad(set_to_none=True)
            doubt.backward()
            opt_critic.step()
            sums[2] += doubt.detach()
        sums[0] += near.detach()
        sums[1] += (y - x).detach().abs().mean() * 127.5
        sums[3] += 1
        step += 1
        if start is None and step == 3:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.time()
            log("compiled")
        if step % 50 == 0 and time.time() - spoken > 15:
            spoken = time.time()
            s = (sums / sums[3]).tolist()
            sums.zero_()
            log(step, f"likeness {s[0]:.4f} of 255: {s[1]:.2f} critic {s[2]:.3f} progress {progress:.3f}")
    vae = average.net
    with torch.no_grad(), autocast():
        z = torch.cat([vae.encode((pool[i : i + 64].float() / 127.5 - 1).contiguous(memory_format=torch.channels_last))[0].float() for i in range(0, min(size, 4096), 64)])
    log("latents: mean", z.mean((0, 2, 3)).tolist(), "deviation", z.std((0, 2, 3)).tolist())
    # Encoding is exact: next to no variance.
    vae.quant_conv.weight.data[4:] = 0
    vae.quant_conv.bias.data[4:] = -14
    vae.standardise(z.mean((0, 2, 3)), z.std((0, 2, 3)))
    keep(vae.state_dict(), state / "vae.pt")
    look(vae, pool, state)
    log("steps", step)


@torch.no_grad()
def look(vae, pool, state) -> None:
    torch.manual_seed(5)
    x = pool[torch.randint(len(pool), (24,), device=device)].float() / 127.5 - 1
    y = torch.cat([vae.decode(vae.encode(p.contiguous(memory_format=torch.channels_last))[0]) for p in x.split(8)])
    log("error of 255:", [round(e, 2) for e in ((y - x).abs().mean((0, 2, 3)) * 127.5).tolist()])
    write_sheet((torch.stack([x, y], 1).flatten(0, 1) + 1) / 2, state / "recon.png", half=False)


if __name__ == "__main__":
    main()
