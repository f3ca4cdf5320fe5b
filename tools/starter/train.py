"""Trains the UNet of the starter model, for a fixed time, on any device.

    python3 tools/starter/train.py STATE_FOLDER SECONDS

STATE_FOLDER has vae.pt of autoencoder.py, the latents of latents.py and the text encoder of sketch.py, which stays as it is.
unet.pt is left there every few minutes (the same command goes on from it; SECONDS counts all of the training), sheet.png too,
and at the end trained.safetensors, from which export.py makes the files that are shipped.
"""

import pathlib
import sys
import time

import torch
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

import model
from clip_bpe import END, LENGTH, START, Tokenizer
from common import Average, autocast, device, keep, log, together, write_sheet
from latents import UNKNOWN_ID, tokens_of
from muon import Muon

PROMPTS = (pathlib.Path(__file__).parent / "prompts.txt").read_text().split("\n")[:64]
BATCH = 32
# Of matrices, and of the rest.
RATES = (2e-3, 1e-3)
# How often weak, middling and strong noise come.
SHARES = torch.tensor([0.25, 0.4, 0.35])


def noise_levels():
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    return torch.cumprod(1 - betas, 0).float().to(device)


def stored(state: pathlib.Path):
    """The latents that there are, their captions' tokens, and all tokens that captions have."""
    parts = [torch.load(path, map_location=device) for path in sorted(state.glob("latents-*.pt"))]
    latents, tokens = (torch.cat([p[name] for p in parts]) for name in ("latents", "tokens"))
    return latents, tokens, parts[0]["seen"]


class Both(torch.nn.Module):
    """The text encoder, whose table has only the rows that captions use, and the UNet."""

    def __init__(self, seen) -> None:
        super().__init__()
        self.text, self.unet = model.Text(vocabulary=len(seen)), model.Unet()
        place = torch.full((49408,), int((seen == UNKNOWN_ID).nonzero()[0, 0]))
        place[seen] = torch.arange(len(seen))
        self.register_buffer("place", place, persistent=False)

    def words(self, ids):
        return self.text(self.place[ids])


def main() -> None:
    state, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    vae = model.Vae().to(device)
    vae.load_state_dict(torch.load(state / "vae.pt", map_location=device))
    vae.eval().requires_grad_(False)
    latents, tokens, seen = stored(state)
    log("latents", tuple(latents.shape), f"deviation {latents.float().std().item():.3f}", "tokens", len(seen))
    torch.manual_seed(11)
    net = Both(seen).to(device)
    net.text.load_state_dict(torch.load(state / "text.pt", map_location=device))
    net.text.requires_grad_(False)
    empty = torch.tensor([[START] + [END] * (LENGTH - 1)], device=device)
    with torch.no_grad(), autocast():
        contexts = torch.cat([net.words(ids).to(torch.bfloat16) for ids in [*tokens.split(128), empty]])
    log("contexts", tuple(contexts.shape))
    net.unet.to(memory_format=torch.channels_last)
    if (state / "unet.pt").exists():
        net.unet.load_state_dict(torch.load(state / "unet.pt", map_location=device)["net"])
    together(work, net, vae, latents, contexts, seen, state, seconds, time.time())


def work(rank, net, vae, latents, contexts, seen, state, seconds, start) -> None:
    average = Average(net, 0.995)
    live = list(net.unet.parameters())
    ends = {id(p) for part in (net.unet.input_blocks[0], net.unet.out) for p in part.parameters()}
    inner = [p for p in live if p.ndim > 1 and id(p) not in ends]
    within = {id(p) for p in inner}
    rest = [p for p in live if id(p) not in within]
    optimisers = [Muon(inner), torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]
    abar = noise_levels()
    snr = abar / (1 - abar)
    # The network tells the velocity (v): in strong noise that is the picture itself, which is learned from words alone, so what
    # a thing is comes first. In weak noise it counts for less, as with min-SNR 5.
    weight = (5 / (snr + 1)).clamp(max=1)
    bounds = torch.tensor([[0, 350], [350, 750], [750, 1000]])
    step, spent = 0, 0.0
    if (state / "unet.pt").exists():
        kept = torch.load(state / "unet.pt", map_location=device)
        average.net.unet.load_state_dict(kept["average"])
        for opt, was in zip(optimisers, kept["opt"]):
            opt.load_state_dict(was)
        step = average.steps = kept["step"]
        spent = kept["spent"]
        if rank == 0:
            log("goes on at step", step, f"after {spent:.0f} s")
    torch.manual_seed(11 + rank + 2 * step)
    before, first, saved, looked, mean = spent, step, time.time(), time.time(), None
    while (progress := spent / seconds) < 1:
        share = min(1, (step - first + 1) / 100) * (1 if progress < 0.4 else max(0.02, (1 - progress) / 0.6))
        for opt, rate in zip(optimisers, RATES):
            for group in opt.param_groups:
                group["lr"] = rate * share
        pick = torch.randint(len(latents), (BATCH,), device=device)
        z = latents[pick].float().contiguous(memory_format=torch.channels_last)
        # Now and then no words: that is what guidance leads away from.
        context = contexts[torch.where(torch.rand(BATCH, device=device) < 0.1, len(latents), pick)]
        # What a thing is gets decided in strong noise.
        low, high = bounds[torch.multinomial(SHARES, BATCH, replacement=True)].T
        t = (low + torch.rand(BATCH) * (high - low)).long().to(device)
        noise, a = torch.randn_like(z), abar[t][:, None, None, None]
        # Plain products: what is called flash attention is slow backwards on a CPU.
        with autocast(), sdpa_kernel(SDPBackend.MATH):
            made = net.unet(a.sqrt() * z + (1 - a).sqrt() * noise, t, context).float()
        want = a.sqrt() * noise - (1 - a).sqrt() * z
        loss = ((made - want).square().mean((1, 2, 3)) * weight[t]).mean()
        net.zero_grad(set_to_none=True)
        loss.backward()
        for opt in optimisers:
            opt.step()
        step += 1
        now = time.time()
        spent = before + now - start
        if rank > 0:
            continue
        average.update()
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if step % 50 == 0:
            log(step, f"loss {mean:.4f} progress {progress:.3f}")
        if now - saved > 300:
            saved = now
            store(state, net, average, optimisers, step, spent)
        if now - looked > 900:
            looked = now
            sheet(average.net, vae, PROMPTS[:32], state / "sheet.png")
    if rank == 0:
        store(state, net, average, optimisers, step, spent)
        ship(average.net, vae, seen, state / "trained.safetensors")
        sheet(average.net, vae, PROMPTS, state / "sheet.png")
        log("steps", step)


def store(state, net, average, optimisers, step, spent) -> None:
    parts = {"net": net.unet.state_dict(), "average": average.net.unet.state_dict(), "opt": [opt.state_dict() for opt in optimisers]}
    keep(parts | {"step": step, "spent": spent}, state / "unet.pt")


@torch.no_grad()
def sample(net, prompts, steps=16, guidance=4.0, seed=7, size=32):
    """Euler on the noise level, as the program's own sampler does it."""
    tokenizer = Tokenizer()
    ids = torch.tensor([tokens_of(tokenizer, p) for p in [*prompts, *[""] * len(prompts)]], device=device)
    abar = noise_levels()
    sigmas = ((1 - abar) / abar).sqrt()
    at = torch.linspace(999, 0, steps, device=device).round().long()
    levels = torch.cat([sigmas[at], torch.zeros(1, device=device)])
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(prompts), 4, size, size, generator=generator).to(device) * (1 + levels[0] ** 2).sqrt()
    with autocast(), sdpa_kernel(SDPBackend.MATH):
        context = net.words(ids)
        for i in range(steps):
            inside = (x / (1 + levels[i] ** 2).sqrt()).repeat(2, 1, 1, 1).contiguous(memory_format=torch.channels_last)
            cond, uncond = net.unet(inside, at[i].repeat(len(inside)), context).float().chunk(2)
            v, s = uncond + guidance * (cond - uncond), levels[i]
            clean = x / (1 + s**2) - v * s / (1 + s**2).sqrt()
            x = x + (x - clean) / s * (levels[i + 1] - s)
    return x


@torch.no_grad()
def sheet(net, vae, prompts, path) -> None:
    z = torch.cat([sample(net, prompts[i : i + 16], seed=7 + i) for i in range(0, len(prompts), 16)])
    with autocast(), sdpa_kernel(SDPBackend.MATH):
        pictures = torch.cat([vae.decode(p / model.Vae.SCALE).float() for p in z.split(8)])
    write_sheet((pictures + 1) / 2, path)
    log("sheet", path)


def ship(net, vae, seen, path) -> None:
    """Everything in f16, of the token table only the rows that were seen."""
    tensors = {"seen": seen.to(torch.int32)}
    for prefix, part in (("cond_stage_model.transformer.text_model.", net.text), ("model.diffusion_model.", net.unet), ("first_stage_model.", vae)):
        for name, value in part.state_dict().items():
            kind = torch.float8_e4m3fn if name.endswith("token_embedding.weight") else torch.float16
            tensors[prefix + name] = value.detach().to(kind).cpu().contiguous()
    save_file(tensors, path)


if __name__ == "__main__":
    main()
