"""Trains text encoder and UNet of the starter model together, for a fixed time, on a GPU.

    python3 tools/starter/train.py STATE_FOLDER SECONDS

STATE_FOLDER has vae.pt of autoencoder.py and latents.pt of latents.py. Every few minutes sheet.png, at the end
trained.safetensors, from which export.py makes the files that are shipped.
"""

import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import model
from clip_bpe import END, LENGTH, START, Tokenizer
from common import Average, autocast, device, keep, log, write_sheet
from latents import UNKNOWN_ID, tokens_of
from muon import Muon

PROMPTS = (pathlib.Path(__file__).parent / "prompts.txt").read_text().split("\n")[:64]
BATCH = 256
# Of matrices, and of the rest.
RATES = (1.6e-3, 8e-4)
# How often weak, middling and strong noise come.
SHARES = torch.tensor([0.27, 0.40, 0.33])
BOUNDS = torch.tensor([[0, 350], [350, 750], [750, 1000]])


def noise_levels():
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    return torch.cumprod(1 - betas, 0).float().to(device)


class Sketch(nn.Module):
    """Reads the picture's 8 x 8 cells off the words, without noise or UNet: what a thing looks like is learned many times faster
    that way. Only a help while training; it is not kept."""

    def __init__(self, n: int = 256) -> None:
        super().__init__()
        self.cells = nn.Parameter(torch.randn(64, n) * 0.3)
        self.q, self.k, self.v, self.out = (nn.Linear(n, n, bias=False) for _ in range(4))
        self.norm, self.mlp = nn.LayerNorm(n), nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n))
        self.last = nn.Linear(n, 64)

    def forward(self, words):
        b = words.shape[0]
        q = self.q(self.cells)[None].expand(b, -1, -1).reshape(b, 64, 8, 32).transpose(1, 2)
        k, v = (p(words).view(b, -1, 8, 32).transpose(1, 2) for p in (self.k, self.v))
        h = self.cells + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, 64, 256))
        h = h + self.mlp(self.norm(h))
        return self.last(h).view(-1, 8, 8, 4, 4, 4).permute(0, 3, 1, 4, 2, 5).reshape(-1, 4, 32, 32)


class Both(nn.Module):
    """The text encoder, whose table has only the rows that captions use, and the UNet."""

    def __init__(self, seen) -> None:
        super().__init__()
        self.text, self.unet = model.Text(vocabulary=len(seen)), model.Unet()
        place = torch.full((49408,), int((seen == UNKNOWN_ID).nonzero()[0, 0]))
        place[seen.cpu()] = torch.arange(len(seen))
        self.register_buffer("place", place, persistent=False)

    def words(self, ids):
        return self.text(self.place[ids])


def main() -> None:
    state, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    vae = model.Vae().to(device, memory_format=torch.channels_last)
    vae.load_state_dict(torch.load(state / "vae.pt", map_location=device))
    vae.eval().requires_grad_(False)
    stored = torch.load(state / "latents.pt", map_location=device)
    latents, tokens, seen = stored["latents"], stored["tokens"], stored["seen"]
    log("latents", tuple(latents.shape), f"deviation {latents[:2048].float().std().item():.3f}", "tokens", len(seen))
    torch.manual_seed(11)
    net = Both(seen).to(device)
    net.unet.to(memory_format=torch.channels_last)
    sketch = Sketch().to(device)
    average = Average(net, 0.9992)
    ends = {id(p) for part in (net.unet.input_blocks[0], net.unet.out, net.text.embeddings) for p in part.parameters()}
    inner = [p for p in net.parameters() if p.ndim > 1 and id(p) not in ends]
    within = {id(p) for p in inner}
    rest = [p for p in [*net.parameters(), *sketch.parameters()] if id(p) not in within]
    optimisers = [Muon(inner), torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=device == "cuda")]
    abar = noise_levels()
    snr = abar / (1 - abar)
    # The network tells the velocity (v): in strong noise that is the picture itself, which is learned from words alone, so what
    # a thing is comes first. In weak noise it counts for less, as with min-SNR 5.
    weight = (5 / (snr + 1)).clamp(max=1)
    empty = net.place[torch.tensor([START] + [END] * (LENGTH - 1), device=device)]
    tokens = net.place[tokens.long()]
    log("parameters", [round(sum(p.numel() for p in m.parameters()) / 1e6, 2) for m in (net.unet, net.text, vae)])

    def losses(z, ids, t, noise):
        a = abar[t][:, None, None, None]
        words = net.text(ids)
        made = net.unet(a.sqrt() * z + (1 - a).sqrt() * noise, t, words).float()
        want = a.sqrt() * noise - (1 - a).sqrt() * z
        drawn = ((made - want).square().mean((1, 2, 3)) * weight[t]).mean()
        return drawn, (sketch(words).float() - z).square().mean()

    quick = torch.compile(losses) if device == "cuda" else losses
    shares, bounds = SHARES.to(device), BOUNDS.to(device)
    step, start, sums, spoken, looked = 0, None, torch.zeros(3, device=device), time.time(), time.time()
    while (progress := 0.0 if start is None else (time.time() - start) / seconds) < 1:
        share = min(1, (step + 1) / 200) * (1 if progress < 0.3 else max(0.01, (1 - progress) / 0.7))
        for opt, rate in zip(optimisers, RATES):
            for group in opt.param_groups:
                group["lr"] = rate * share
        pick = torch.randint(len(latents), (BATCH,), device=device)
        z = latents[pick].float().contiguous(memory_format=torch.channels_last)
        # Now and then no words: that is what guidance leads away from.
        ids = torch.where(torch.rand(BATCH, 1, device=device) < 0.1, empty, tokens[pick])
        low, high = bounds[torch.multinomial(shares, BATCH, replacement=True)].T
        t = (low + torch.rand(BATCH, device=device) * (high - low)).long()
        with autocast():
            drawn, rough = quick(z, ids, t, torch.randn_like(z))
        for opt in optimisers:
            opt.zero_grad(set_to_none=True)
        (drawn + 0.15 * rough).backward()
        for opt in optimisers:
            opt.step()
        average.update()
        sums += torch.stack([drawn.detach(), rough.detach(), torch.ones_like(rough)])
        step += 1
        if start is None and step == 3:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.time()
            log("compiled")
        if step % 50 == 0 and time.time() - spoken > 20:
            spoken = time.time()
            s = (sums / sums[2]).tolist()
            sums.zero_()
            log(step, f"loss {s[0]:.4f} sketch {s[1]:.4f} progress {progress:.3f} steps/s {step / (time.time() - start):.2f}")
            if not s[0] < 100:
                raise SystemExit("diverged")
        if time.time() - looked > 150:
            looked = time.time()
            sheet(average.net, vae, PROMPTS[:32], state / "sheet.png")
            ship(average.net, vae, seen, state / "partly.safetensors")
    ship(average.net, vae, seen, state / "trained.safetensors")
    sheet(average.net, vae, PROMPTS, state / "sheet.png")
    log("steps", step)


@torch.no_grad()
def sample(net, prompts, steps=20, guidance=3.5, seed=7, size=32):
    """Euler on the noise level, as the program's own sampler does it."""
    tokenizer = Tokenizer()
    ids = torch.tensor([tokens_of(tokenizer, p) for p in [*prompts, *[""] * len(prompts)]], device=device)
    abar = noise_levels()
    sigmas = ((1 - abar) / abar).sqrt()
    at = torch.linspace(999, 0, steps, device=device).round().long()
    levels = torch.cat([sigmas[at], torch.zeros(1, device=device)])
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(prompts), 4, size, size, generator=generator).to(device) * (1 + levels[0] ** 2).sqrt()
    with autocast():
        context = net.words(ids)
        for i in range(steps):
            inside = (x / (1 + levels[i] ** 2).sqrt()).repeat(2, 1, 1, 1).contiguous(memory_format=torch.channels_last)
            cond, uncond = net.unet(inside, at[i].repeat(len(inside)), context).float().chunk(2)
            v, s = uncond + guidance * (cond - uncond), levels[i]
            clean = x / (1 + s**2) - v * s / (1 + s**2).sqrt()
            x = x + (x - clean) / s * (levels[i + 1] - s)
    return x


@torch.no_grad()
def sheet(net, vae, prompts, path, **how) -> None:
    z = sample(net, prompts, **how)
    with autocast():
        pictures = torch.cat([vae.decode(p.contiguous(memory_format=torch.channels_last) / model.Vae.SCALE).float() for p in z.split(16)])
    part = path.with_suffix(".part.png")
    write_sheet((pictures + 1) / 2, part)
    part.rename(path)
    log("sheet", path.name)


def ship(net, vae, seen, path) -> None:
    """Everything in f16, of the token table only the rows that were seen."""
    tensors = {"seen": seen.to(torch.int32).cpu()}
    for prefix, part in (("cond_stage_model.transformer.text_model.", net.text), ("model.diffusion_model.", net.unet), ("first_stage_model.", vae)):
        for name, value in part.state_dict().items():
            kind = torch.float8_e4m3fn if name.endswith("token_embedding.weight") else torch.float16
            tensors[prefix + name] = value.detach().to(kind).cpu().contiguous()
    part = path.with_suffix(".part")
    save_file(tensors, part)
    part.rename(path)


if __name__ == "__main__":
    main()
