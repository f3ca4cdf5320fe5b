"""Trains the starter model: autoencoder, latents, diffusion. One process, one GPU, a fixed time.

    python3 tools/starter/train.py DATA_FOLDER STATE_FOLDER [--deadline 470] [--vae-seconds 58]

DATA_FOLDER has pack.bin and pack.json of prep.py. What is done is kept in STATE_FOLDER (vae.pt, unet.pt, average.pt): the same
command goes on from there after a break.
The result is STATE_FOLDER/out/part-*: f16 tensors with the rows of the token table that captions use; export.py makes the
files that are shipped. --small runs everything for seconds on a CPU, to find mistakes before a GPU is paid for.
"""

import argparse
import copy
import json
import multiprocessing
import os
import pathlib
import time

import torch
import torch.nn.functional as F

import captions
import model
from clip_bpe import END, LENGTH, START, Tokenizer
from compose import Studio

PROMPTS = (pathlib.Path(__file__).parent / "prompts.txt").read_text().split("\n")[:64]
# A token no caption has: it stands for every token the model never saw.
UNKNOWN_ID = 49405
PART = 16_000_000
# A second try after a crash counts its time from the first one's start.
T0 = float(os.environ.get("STARTED", time.time()))


def log(*what) -> None:
    print(f"[{time.time() - T0:7.1f}]", *what, flush=True)


def tokens_of(tokenizer: Tokenizer, caption: str) -> list[int]:
    ids = []
    for piece in caption.split(captions.UNKNOWN):
        ids += tokenizer(piece)
        ids.append(UNKNOWN_ID)
    ids = ids[:-1][: LENGTH - 2]
    return [START, *ids] + [END] * (LENGTH - 1 - len(ids))


def draw_recipes(job):
    index, seed, count = job
    recipes, tokenizer = captions.Recipes(index, seed), Tokenizer()
    drawn = [recipes.draw() for _ in range(count)]
    for recipe in drawn:
        recipe["tokens"] = tokens_of(tokenizer, recipe["caption"])
    return drawn


def autocast(args):
    return torch.autocast(args.device, dtype=torch.bfloat16, cache_enabled=False)


def repeated(args, body):
    """`body` as one CUDA graph, which saves the cost of starting a thousand kernels."""
    if args.device != "cuda" or args.no_graph:
        return body
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()
    torch.cuda.synchronize()

    turns = 0

    def replay():
        nonlocal turns
        graph.replay()
        turns += 1
        # Without this the clock that ends a phase would run far ahead of the GPU.
        if turns % 2 == 0:
            torch.cuda.synchronize()
        return out

    return replay


def optimiser(args, groups):
    """AdamW whose rate can change inside a graph; `factor` of a group scales it."""
    cuda = args.device == "cuda"
    opt = torch.optim.AdamW(groups, lr=torch.tensor(0.0, device="cuda") if cuda else 0.0, betas=(0.9, 0.985), fused=cuda, capturable=cuda)

    def rate(value: float) -> None:
        for group in opt.param_groups:
            if cuda:
                group["lr"].fill_(value * group["factor"])
            else:
                group["lr"] = value * group["factor"]

    for group in opt.param_groups:
        if cuda:
            group["lr"] = torch.tensor(0.0, device="cuda")
    return opt, rate


class Average:
    """A running mean of weights."""

    def __init__(self, net, decay: float) -> None:
        self.net, self.decay, self.steps = copy.deepcopy(net).requires_grad_(False), decay, 0
        self.mine, self.live = list(self.net.parameters()), list(net.parameters())

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.mine, self.live, 1 - decay)


# --- Autoencoder ---------------------------------------------------------------------------------------------------


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


def train_vae(args, studio, recipes, state):
    vae = model.Vae().to(args.device, memory_format=torch.channels_last)
    average = Average(vae, 0.995)
    opt, rate = optimiser(args, [{"params": list(vae.parameters()), "weight_decay": 0.0, "factor": 1.0}])
    store = torch.cat([studio.make(recipes[i : i + 128]).to(torch.bfloat16) for i in range(0, args.vae_pictures, 128)])
    log("vae: pictures", tuple(store.shape))

    def step_of(batch: int, size: int):
        span = torch.arange(size, device=args.device)

        def body():
            pick = torch.randint(len(store), (batch, 1, 1, 1), device=args.device)
            top, left = (torch.randint(256 - size + 1, (batch, 1), device=args.device) for _ in range(2))
            rows, columns = (top + span)[:, None, :, None], (left + span)[:, None, None, :]
            x = store[pick, torch.arange(3, device=args.device)[None, :, None, None], rows, columns].float()
            x = x.contiguous(memory_format=torch.channels_last)
            opt.zero_grad(set_to_none=True)
            with autocast(args):
                mean, _ = vae.encode(x)
                y = vae.decode(mean + 0.08 * torch.randn_like(mean)).float()
            mean = mean.float()
            # The first three channels lean towards the colours: they cannot be forgotten, and latents stay picture-like.
            lean = (mean[:, :3] - 1.5 * F.avg_pool2d(x, 8)).square().mean()
            loss = likeness(y, x) + 0.03 * lean + 0.003 * mean[:, 3].square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
            opt.step()
            return loss.detach(), (y - x).detach().abs().mean((0, 2, 3)) * 127.5

        return body

    steps = 0
    for phase, (batch, size, part, top) in enumerate(((args.vae_batch, 128, 0.7, 1e-3), (args.vae_batch // 3 or 1, 256, 0.3, 5e-4))):
        rate(1e-4)
        run = repeated(args, step_of(batch, size))
        start, seconds = time.time(), args.vae_seconds * part
        while True:
            progress = (time.time() - start) / seconds
            # The last phase may take longer while a colour is still far off: everything after builds on these latents.
            if progress >= 1 and (phase == 0 or progress >= 2.5 or max(error.tolist()) < 5.5):
                break
            fall = max(0.3, 1 - progress * 0.7) if phase == 0 else max(0.05, 1 - progress)
            rate(top * fall * min(1, (steps + 1) / 100))
            loss, error = run()
            average.update()
            steps += 1
            if steps % args.report == 0:
                log("vae", size, steps, f"loss {loss.item():.4f} error", [round(e, 2) for e in error.tolist()])
    vae = average.net.eval()
    with torch.no_grad(), autocast(args):
        z = torch.cat([vae.encode(store[i : i + 256].float())[0].float() for i in range(0, min(len(store), 4096), 256)])
    vae.standardise(z.mean((0, 2, 3)), z.std((0, 2, 3)))
    torch.save(vae.state_dict(), state / "vae.pt")
    with torch.no_grad():
        x = studio.make(recipes[-32:])
        y = torch.cat([vae.decode(vae.encode(p)[0]) for p in x.split(8)])
        log("vae: steps", steps, "error of 255:", [round(e, 2) for e in ((y - x).abs().mean((0, 2, 3)) * 127.5).tolist()])
        write_sheet((torch.stack([x, y], 1).flatten(0, 1) + 1) / 2, args.out / "recon.png")
    return vae


# --- Diffusion -----------------------------------------------------------------------------------------------------


def noise_levels(device):
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    return torch.cumprod(1 - betas, 0).float().to(device)


class Both(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text, self.unet = model.Text(), model.Unet()


def make_latents(args, studio, vae, recipes):
    parts = []
    with torch.no_grad(), autocast(args):
        for i in range(0, len(recipes), args.encode_batch):
            x = studio.make(recipes[i : i + args.encode_batch]).contiguous(memory_format=torch.channels_last)
            parts.append((vae.encode(x)[0] * model.Vae.SCALE).to(torch.bfloat16).contiguous())
    return torch.cat(parts)


def train_unet(args, latents, tokens, seen, vae, state):
    net = Both()
    net.to(args.device)
    net.unet.to(memory_format=torch.channels_last)
    average = Average(net, 0.9985)
    text = list(net.text.parameters())
    unet = [p for p in net.unet.parameters() if p.ndim > 1]
    rest = [p for p in net.unet.parameters() if p.ndim <= 1]
    opt, rate = optimiser(args, [
        {"params": unet, "weight_decay": 0.01, "factor": 1.0}, {"params": rest, "weight_decay": 0.0, "factor": 1.0},
        {"params": text, "weight_decay": 0.0, "factor": 1.0},
    ])  # fmt: skip
    everything = list(net.parameters())
    abar = noise_levels(args.device)
    snr = abar / (1 - abar)
    weight = snr.clamp(max=5) / snr
    empty = torch.tensor([START] + [END] * (LENGTH - 1), device=args.device)

    def body():
        pick = torch.randint(len(latents), (args.batch,), device=args.device)
        z = latents[pick].float().contiguous(memory_format=torch.channels_last)
        ids = torch.where((torch.rand(args.batch, 1, device=args.device) < 0.1), empty, tokens[pick].long())
        t = torch.randint(1000, (args.batch,), device=args.device)
        noise = torch.randn_like(z)
        a = abar[t][:, None, None, None]
        opt.zero_grad(set_to_none=True)
        with autocast(args):
            made = net.unet(a.sqrt() * z + (1 - a).sqrt() * noise, t, net.text(ids)).float()
        each = (made - noise).square().mean((1, 2, 3))
        loss = (each * weight[t]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(everything, 1.0)
        opt.step()
        return loss.detach(), each.detach().mean()

    step, saved = 0, state / "unet.pt"
    if saved.exists():
        kept = torch.load(saved, map_location=args.device)
        net.load_state_dict(kept["net"])
        average.net.load_state_dict(kept["average"])
        opt.load_state_dict(kept["opt"])
        step = average.steps = kept["step"]
        log("unet: goes on at step", step)
    rate(1e-5)
    run = repeated(args, body)
    start, half = time.time(), False
    seconds = max(1.0, args.deadline - (start - T0) - args.closing)
    log(f"unet: {seconds:.0f} s")
    while (progress := (time.time() - start) / seconds) < 1:
        rate(args.lr * min(1, (step + 1) / 250) * (1 if progress < 0.4 else max(0.005, (1 - progress) / 0.6)))
        loss, plain = run()
        average.update()
        step += 1
        if step % args.report == 0:
            log("unet", step, f"loss {loss.item():.4f} plain {plain.item():.4f} progress {progress:.3f}")
        if progress > 0.55 and not half:
            half = True
            ship(args, average.net, vae, seen)
            sheet(args, average.net, vae, args.out / "sheet-half.png")
    if args.device == "cuda":
        torch.cuda.synchronize()
    log("unet: steps", step)
    ship(args, average.net, vae, seen)
    log("shipped")
    return average.net, net, opt, step


@torch.no_grad()
def sample(args, net, prompts, steps=25, guidance=5.0, seed=7, size=32):
    """Euler on the noise level, as the program's own sampler does it."""
    tokenizer = Tokenizer()
    ids = torch.tensor([tokens_of(tokenizer, p) for p in [*prompts, *[""] * len(prompts)]], device=args.device)
    abar = noise_levels(args.device)
    sigmas = ((1 - abar) / abar).sqrt()
    at = torch.linspace(999, 0, steps, device=args.device).round().long()
    levels = torch.cat([sigmas[at], torch.zeros(1, device=args.device)])
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(prompts), 4, size, size, generator=generator).to(args.device) * (1 + levels[0] ** 2).sqrt()
    with autocast(args):
        context = net.text(ids)
    for i in range(steps):
        with autocast(args):
            inside = (x / (1 + levels[i] ** 2).sqrt()).repeat(2, 1, 1, 1)
            made = net.unet(inside, at[i].repeat(len(inside)), context).float()
        cond, uncond = made.chunk(2)
        x = x + (uncond + guidance * (cond - uncond)) * (levels[i + 1] - levels[i])
    return x


def write_sheet(pictures, path):
    """Eight in a row, half size."""
    from torchvision.io import write_png
    from torchvision.utils import make_grid

    small = F.avg_pool2d(pictures.float().cpu(), 2)
    write_png((make_grid(small, 8, padding=2, pad_value=0.8).clamp(0, 1) * 255).to(torch.uint8), str(path), compression_level=9)


def sheet(args, net, vae, path):
    z = sample(args, net, PROMPTS[: args.sheet_prompts])
    with torch.no_grad(), autocast(args):
        pictures = torch.cat([vae.decode(p / model.Vae.SCALE).float() for p in z.split(16)])
    write_sheet((pictures + 1) / 2, path)
    log("sheet", path)


def ship(args, net, vae, seen) -> None:
    """Everything in f16, of the token table only the rows that were seen, in files of 16 MB."""
    from safetensors.torch import save

    tensors = {"seen": seen.to(torch.int32)}
    for prefix, part in (("cond_stage_model.transformer.text_model.", net.text), ("model.diffusion_model.", net.unet), ("first_stage_model.", vae)):
        for name, value in part.state_dict().items():
            value = value.detach()
            if name.endswith("token_embedding.weight"):
                value = value[seen.to(value.device)].to(torch.float8_e4m3fn)
            else:
                value = value.to(torch.float16)
            tensors[prefix + name] = value.cpu().contiguous()
    data = save(tensors)
    for i in range(0, len(data), PART):
        (args.out / f"part-{i // PART:02}").write_bytes(data[i : i + PART])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("state", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    for name, value in [("deadline", 470), ("closing", 14), ("vae-seconds", 58), ("lr", 6e-4)]:
        parser.add_argument(f"--{name}", type=float, default=value)
    for name, value in [("recipes", 65536), ("batch", 256), ("vae-batch", 96), ("encode-batch", 512), ("vae-pictures", 6144)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    args.device = "cpu" if args.small else "cuda"
    args.report, args.sheet_prompts = 200, 64
    if args.small:
        args.recipes, args.batch, args.vae_batch, args.encode_batch, args.vae_pictures = 96, 4, 3, 32, 96
        args.vae_seconds, args.deadline, args.report, args.sheet_prompts = 8, 75, 2, 4
    args.out = args.out or args.state / "out"
    args.out.mkdir(parents=True, exist_ok=True)
    args.state.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(20261115)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True

    index = json.loads((args.data / "pack.json").read_text())
    if args.small:
        index = index[:200]
    jobs = 16
    pool = multiprocessing.get_context("spawn").Pool(min(jobs, multiprocessing.cpu_count()))
    drawing = pool.map_async(draw_recipes, [(index, 1000 + i, args.recipes // jobs) for i in range(jobs)], chunksize=1)
    studio = Studio(index, (args.data / "pack.bin").read_bytes(), args.device)
    log("pictures", len(index))
    recipes = [recipe for part in drawing.get() for recipe in part]
    pool.terminate()
    tokens = torch.tensor([r["tokens"] for r in recipes], dtype=torch.int32, device=args.device)
    seen = torch.unique(tokens).cpu().long()
    log("recipes", len(recipes), "tokens", len(seen), "such as", [r["caption"] for r in recipes[:12]])
    state = args.state
    if (state / "vae.pt").exists():
        vae = model.Vae().to(args.device, memory_format=torch.channels_last)
        vae.load_state_dict(torch.load(state / "vae.pt", map_location=args.device))
    else:
        vae = train_vae(args, studio, recipes, state)
    vae.eval().requires_grad_(False)
    latents = make_latents(args, studio, vae, recipes)
    log("latents", tuple(latents.shape), f"deviation {latents.float().std().item():.3f}")
    average, net, opt, step = train_unet(args, latents, tokens, seen, vae, state)
    sheet(args, average, vae, args.out / "sheet.png")
    kept = {"net": net.state_dict(), "average": average.state_dict(), "opt": opt.state_dict(), "step": step}
    torch.save(kept, state / "unet.part")
    (state / "unet.part").rename(state / "unet.pt")
    log("done")


if __name__ == "__main__":
    main()
