"""Teaches the text encoder to sketch: after this, its last 64 states are the 8 x 8 cells of the picture that was asked for.

    python3 tools/starter/sketch.py STATE_FOLDER SECONDS

CLIP pads every prompt to 77 tokens, and the padding sees the words before it. Here the last 64 of them learn, by plain
regression, to hold what lies in each cell of the picture (4 x 4 latent pixels of 4 channels, through a linear map that is not
kept). That needs neither noise nor UNet, so it is learned many times faster than by diffusion alone; the UNet then finds in
its cross-attention a sketch to follow and learns how to draw instead of what. Leaves text.pt and sketch.png in STATE_FOLDER; the same command
goes on from a text.pt that is there.
"""

import pathlib
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import model
from clip_bpe import END, LENGTH, START, Tokenizer
from common import Average, autocast, device, keep, log, together, write_sheet
from latents import tokens_of
from muon import Muon
from train import PROMPTS, Both, stored

BATCH = 64
RATES = (2e-3, 1.2e-3)


class Sketcher(torch.nn.Module):
    def __init__(self, both: Both) -> None:
        super().__init__()
        self.text, self.head = both.text, torch.nn.Linear(256, 64)
        self.register_buffer("place", both.place, persistent=False)

    def forward(self, ids):
        """Latents, as (n, 4, 32, 32)."""
        cells = self.head(self.text(self.place[ids])[:, -64:].float())
        return cells.view(-1, 8, 8, 4, 4, 4).permute(0, 3, 1, 4, 2, 5).reshape(-1, 4, 32, 32)


def main() -> None:
    state, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    torch.manual_seed(21)
    latents, tokens, seen = stored(state)
    net = Sketcher(Both(seen)).to(device)
    if (state / "text.pt").exists():
        net.text.load_state_dict(torch.load(state / "text.pt", map_location=device))
        fit(net, latents, tokens)
        log("goes on with text.pt")
    together(work, net, latents, tokens, state, seconds, time.time())


def work(rank, net, latents, tokens, state, seconds, start) -> None:
    torch.manual_seed(21 + rank)
    empty = torch.tensor([START] + [END] * (LENGTH - 1), device=device)
    average = Average(net, 0.995)
    tables = {id(p) for p in net.text.embeddings.parameters()}
    inner = [p for p in net.text.parameters() if p.ndim > 1 and id(p) not in tables]
    within = {id(p) for p in inner}
    rest = [p for p in net.parameters() if id(p) not in within]
    optimisers = [Muon(inner), torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]
    quick = torch.compile(net)
    step, mean, looked = 0, None, time.time()
    while (progress := (time.time() - start) / seconds) < 1:
        share = min(1, (step + 1) / 60) * (1 if progress < 0.3 else max(0.02, (1 - progress) / 0.7))
        for opt, rate in zip(optimisers, RATES):
            for group in opt.param_groups:
                group["lr"] = rate * share
        pick = torch.randint(len(latents), (BATCH,), device=device)
        ids = torch.where(torch.rand(BATCH, 1, device=device) < 0.04, empty, tokens[pick])
        with autocast(), sdpa_kernel(SDPBackend.MATH):
            made = quick(ids)
        loss = (made.float() - latents[pick].float()).square().mean()
        net.zero_grad(set_to_none=True)
        loss.backward()
        for opt in optimisers:
            opt.step()
        step += 1
        if rank > 0:
            continue
        average.update()
        mean = loss.item() if mean is None else 0.97 * mean + 0.03 * loss.item()
        if step % 50 == 0:
            log(step, f"loss {mean:.4f} progress {progress:.3f}")
        if time.time() - looked > 240:
            looked = time.time()
            keep(average.net.text.state_dict(), state / "text.pt")
            look(average.net, state, PROMPTS[:32])
    if rank == 0:
        keep(average.net.text.state_dict(), state / "text.pt")
        look(average.net, state, PROMPTS)
        log("steps", step)


@torch.no_grad()
def fit(net, latents, tokens) -> None:
    """The map from states to cells that suits the text encoder as it is, by least squares."""
    pick = torch.randperm(len(latents), device=device)[:768]
    with autocast():
        states = torch.cat([net.text(net.place[ids])[:, -64:].float() for ids in tokens[pick].split(64)]).flatten(0, 1)
    cells = latents[pick].float().view(-1, 4, 8, 4, 8, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 64)
    states = torch.cat([states, torch.ones_like(states[:, :1])], 1)
    square = states.T @ states + torch.eye(states.shape[1], device=device)
    found = torch.linalg.solve(square, states.T @ cells)
    log(f"cells from states: off by {(states @ found - cells).square().mean().item():.4f}")
    net.head.weight.copy_(found[:-1].T)
    net.head.bias.copy_(found[-1])


@torch.no_grad()
def look(net, state, prompts) -> None:
    vae = model.Vae().to(device, memory_format=torch.channels_last)
    vae.load_state_dict(torch.load(state / "vae.pt", map_location=device))
    tokenizer = Tokenizer()
    ids = torch.tensor([tokens_of(tokenizer, p) for p in prompts], device=device)
    with autocast():
        z = net(ids).float()
        pictures = [vae.decode(p.contiguous(memory_format=torch.channels_last) / model.Vae.SCALE).float() for p in z.split(4)]
    write_sheet((torch.cat(pictures) + 1) / 2, state / "sketch.png")


if __name__ == "__main__":
    main()
