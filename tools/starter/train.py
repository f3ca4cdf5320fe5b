"""Trains the starter model in steps that resume: autoencoder, latents, diffusion, preview decoder, export.

    python3 tools/starter/train.py DATA_FOLDER STATE_FOLDER [--vae-seconds 130] [--unet-seconds 1000] ...

DATA_FOLDER has pack.bin and pack.json of prep.py. STATE_FOLDER keeps what is done; run the same command again after a break
and it goes on from there. Needs torch with CUDA (bf16); --small is a quick run of everything on a CPU, to find mistakes.
"""

import argparse
import copy
import json
import math
import multiprocessing
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


def fast(function, args):
    # A part that does not compile runs as it is, only slower.
    torch._dynamo.config.suppress_errors = True
    return torch.compile(function) if args.compile else function


def autocast(args):
    return torch.autocast(args.device, dtype=torch.bfloat16)


def schedule(progress: float) -> float:
    """Full, then falling to a hundredth over the second half."""
    return 1.0 if progress < 0.5 else max(0.01, 2 * (1 - progress))


# --- Autoencoder ---------------------------------------------------------------------------------------------------


def edges(x):
    return x[..., 1:, :] - x[..., :-1, :], x[..., :, 1:] - x[..., :, :-1]


def likeness(made, real):
    loss = (made - real).abs().mean()
    for a, b in zip(edges(made), edges(real)):
        loss = loss + (a - b).abs().mean()
    half_made, half_real = F.avg_pool2d(made, 2), F.avg_pool2d(real, 2)
    for a, b in zip(edges(half_made), edges(half_real)):
        loss = loss + 0.5 * (a - b).abs().mean()
    return loss


def train_vae(args, studio, recipes, state):
    vae = model.Vae().to(args.device, memory_format=torch.channels_last)
    average = copy.deepcopy(vae)
    opt = torch.optim.AdamW(vae.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=1e-4, fused=args.device == "cuda")

    def loss_of(x):
        mean, logvar = vae.encode(x)
        logvar = logvar.clamp(-20, 6)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        return likeness(vae.decode(z).float(), x) + 2e-4 * kl.float(), kl

    loss_of = fast(loss_of, args)
    # A few thousand pictures made once: making them costs more than a step.
    store = torch.cat([studio.make(recipes[i : i + 128]).to(torch.bfloat16) for i in range(0, args.vae_pictures, 128)])
    log("vae: pictures", tuple(store.shape))
    start, step = None, 0
    while True:
        progress = 0.0 if start is None else (time.time() - start) / args.vae_seconds
        if progress >= 1:
            break
        lr = 1e-3 * schedule(progress) * min(1, (step + 1) / 100)
        for group in opt.param_groups:
            group["lr"] = lr
        x = store[torch.randint(len(store), (args.vae_batch,), device=args.device)].float().contiguous(memory_format=torch.channels_last)
        with autocast(args):
            loss, kl = loss_of(x)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        opt.step()
        decay = min(0.998, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(vae.parameters()), 1 - decay)
        step += 1
        if start is None and step >= args.warm:
            start = time.time()
        if step % args.report == 0:
            log("vae", step, f"loss {loss.item():.4f} kl {kl.item():.2f} lr {lr:.1e}")
    average.eval()
    with torch.no_grad(), autocast(args):
        z = torch.cat([average.encode(store[i : i + 256].float())[0].float() for i in range(0, min(len(store), 4096), 256)])
    average.standardise(z.mean((0, 2, 3)), z.std((0, 2, 3)))
    with torch.no_grad(), autocast(args):
        x = store[:256].float()
        mean, logvar = average.encode(x)
        error = (average.decode(mean).float() - x).abs().mean()
        log(f"vae: steps {step}, mean error {error.item() * 127.5:.2f} of 255, latent deviation {(mean * model.Vae.SCALE).float().std().item():.3f}")
    torch.save(average.state_dict(), state / "vae.pt")
    return average


# --- Diffusion -----------------------------------------------------------------------------------------------------


def noise_levels(device):
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    return torch.cumprod(1 - betas, 0).float().to(device)


class Both(torch.nn.Module):
    def __init__(self, args) -> None:
        super().__init__()
        self.text, self.unet = model.Text(), model.Unet()


def make_latents(args, studio, vae, recipes):
    encode = fast(lambda x: vae.encode(x)[0], args)
    parts = []
    with torch.no_grad(), autocast(args):
        for i in range(0, len(recipes), args.encode_batch):
            part = recipes[i : i + args.encode_batch]
            x = studio.make(part + part[: args.encode_batch - len(part)]).contiguous(memory_format=torch.channels_last)
            parts.append((encode(x)[: len(part)] * model.Vae.SCALE).to(torch.bfloat16))
    return torch.cat(parts)


def train_unet(args, latents, tokens, vae, state):
    net = Both(args).to(args.device)
    net.unet.to(memory_format=torch.channels_last)
    average = copy.deepcopy(net)
    table = {id(p) for p in net.text.embeddings.parameters()}
    decayed = [p for p in net.parameters() if p.ndim > 1 and id(p) not in table]
    rest = [p for p in net.parameters() if p.ndim <= 1 or id(p) in table]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=4e-4, betas=(0.9, 0.99), fused=args.device == "cuda")
    abar = noise_levels(args.device)
    snr = abar / (1 - abar)
    weight = snr.clamp(max=5) / snr
    empty = torch.tensor([START] + [END] * (LENGTH - 1), device=args.device)
    spent, step = 0.0, 0
    saved = state / "unet.pt"
    if saved.exists():
        kept = torch.load(saved, map_location=args.device)
        net.load_state_dict(kept["net"])
        average.load_state_dict(kept["average"])
        opt.load_state_dict(kept["opt"])
        spent, step = kept["spent"], kept["step"]
        log("unet: resumed at step", step)

    def loss_of(z, t, noise, ids):
        a = abar[t][:, None, None, None]
        x = a.sqrt() * z + (1 - a).sqrt() * noise
        made = net.unet(x, t, net.text(ids)).float()
        each = (made - noise).square().mean((1, 2, 3))
        return (each * weight[t]).mean(), each.mean()

    loss_of = fast(loss_of, args)
    start, last, seen = None, time.time(), spent
    while True:
        now = 0.0 if start is None else time.time() - start
        progress = (seen + now) / args.unet_seconds
        if progress >= 1:
            break
        lr = args.lr * schedule(progress) * min(1, (step + 1) / 300)
        for group in opt.param_groups:
            group["lr"] = lr
        pick = torch.randint(len(latents), (args.batch,), device=args.device)
        z = latents[pick].float().contiguous(memory_format=torch.channels_last)
        ids = tokens[pick].long()
        ids = torch.where((torch.rand(args.batch, device=args.device) < 0.1)[:, None], empty, ids)
        t = torch.randint(1000, (args.batch,), device=args.device)
        with autocast(args):
            loss, plain = loss_of(z, t, torch.randn_like(z), ids)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        decay = min(0.9995, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 1 - decay)
        step += 1
        if start is None and step >= args.warm:
            start = time.time()
            log("unet: warm")
        if step % args.report == 0:
            log("unet", step, f"loss {loss.item():.4f} plain {plain.item():.4f} lr {lr:.1e} progress {progress:.3f}")
        if start is not None and time.time() - last > args.sheet_seconds:
            last = time.time()
            sheet(args, average, vae, state / f"sheet-{step}.png")
            kept = {"net": net.state_dict(), "average": average.state_dict(), "opt": opt.state_dict(), "step": step}
            torch.save(kept | {"spent": seen + time.time() - start}, saved.with_suffix(".part"))
            saved.with_suffix(".part").rename(saved)
    log("unet: steps", step)
    torch.save({"average": average.state_dict(), "step": step}, state / "average.pt")
    return average


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
    from torchvision.io import write_png
    from torchvision.utils import make_grid

    small = F.avg_pool2d(pictures.float().cpu(), 2)
    write_png((make_grid(small, 8, padding=2, pad_value=0.8).clamp(0, 1) * 255).to(torch.uint8), str(path), compression_level=9)


def sheet(args, net, vae, path, **options):
    z = sample(args, net, PROMPTS[: args.sheet_prompts], **options)
    with torch.no_grad(), autocast(args):
        pictures = torch.cat([vae.decode(p / model.Vae.SCALE).float() for p in z.split(16)])
    write_sheet((pictures + 1) / 2, path)
    log("sheet", path)


# --- Preview decoder, decoder polish -------------------------------------------------------------------------------


def train_decoders(args, studio, recipes, vae, state):
    """The preview decoder; and the decoder of the autoencoder once more, on latents a little off, as sampling gives them."""
    small = model.preview_decoder().to(args.device, memory_format=torch.channels_last)
    vae.requires_grad_(False)
    vae.decoder.requires_grad_(True)
    vae.post_quant_conv.requires_grad_(True)
    ours = [p for p in vae.parameters() if p.requires_grad]
    opt = torch.optim.AdamW([{"params": ours, "top": 2e-4}, {"params": small.parameters(), "top": 2e-3}], weight_decay=0, fused=args.device == "cuda")
    store = torch.cat([studio.make(recipes[i : i + 128]).to(torch.bfloat16) for i in range(0, args.vae_pictures, 128)])

    def loss_of(x, noise):
        z = vae.encode(x)[0].detach()
        made = vae.decode(z + noise).float()
        rough = small((z + noise) * model.Vae.SCALE).float() * 2 - 1
        return likeness(made, x), likeness(rough, x)

    loss_of = fast(loss_of, args)
    averages = [[p.detach().clone() for p in ours], [p.detach().clone() for p in small.parameters()]]
    start, step = None, 0
    while True:
        progress = 0.0 if start is None else (time.time() - start) / args.decoder_seconds
        if progress >= 1:
            break
        for group in opt.param_groups:
            group["lr"] = group["top"] * min(1, (step + 1) / 100) * max(0.01, 1 - progress)
        x = store[torch.randint(len(store), (args.vae_batch,), device=args.device)].float().contiguous(memory_format=torch.channels_last)
        noise = torch.randn(len(x), 4, x.shape[2] // 8, x.shape[3] // 8, device=args.device)
        noise = noise * torch.rand(len(x), 1, 1, 1, device=args.device) * 0.12 / model.Vae.SCALE
        with autocast(args):
            loss, rough = loss_of(x, noise)
        opt.zero_grad(set_to_none=True)
        (loss + rough).backward()
        torch.nn.utils.clip_grad_norm_(ours, 1.0)
        opt.step()
        decay = min(0.995, (1 + step) / (10 + step))
        with torch.no_grad():
            for average, live in zip(averages, (ours, list(small.parameters()))):
                torch._foreach_lerp_(average, [p.detach() for p in live], 1 - decay)
        step += 1
        if start is None and step >= args.warm:
            start = time.time()
        if step % args.report == 0:
            log("decoders", step, f"loss {loss.item():.4f} preview {rough.item():.4f}")
    with torch.no_grad():
        for average, live in zip(averages, (ours, list(small.parameters()))):
            for a, p in zip(average, live):
                p.copy_(a)
        # Rough colours straight from the latent: least squares.
        x = store[:2048].float()
        with autocast(args):
            z = torch.cat([vae.encode(p)[0].float() for p in x.split(256)]) * model.Vae.SCALE
        flat = torch.cat([z.permute(0, 2, 3, 1).reshape(-1, 4), torch.ones(z[:, 0].numel(), 1, device=z.device)], 1)
        want = F.avg_pool2d(x, 8).permute(0, 2, 3, 1).reshape(-1, 3)
        factors = torch.linalg.lstsq(flat.cpu(), want.cpu()).solution
    log("decoders: steps", step)
    torch.save({"vae": vae.state_dict(), "small": small.state_dict(), "rgb": factors.tolist()}, state / "decoders.pt")
    return vae, small, factors.tolist()


# --- Export --------------------------------------------------------------------------------------------------------


def export(net, vae, small, factors, seen, state, steps):
    from safetensors.torch import save_file

    tensors = {}
    table = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
    for prefix, part in (("cond_stage_model.transformer.text_model.", net.text), ("model.diffusion_model.", net.unet), ("first_stage_model.", vae)):
        for name, value in part.state_dict().items():
            tensors[prefix + name] = value.detach().cpu().float().contiguous()
    rows = tensors[table]
    unseen = torch.ones(len(rows), dtype=torch.bool)
    unseen[seen] = False
    rows[unseen] = rows[UNKNOWN_ID].clone()
    tensors = {k: v.to(torch.float8_e4m3fn if k == table else torch.float16) for k, v in tensors.items()}
    meta = {
        "modelspec.title": "Fresco Starter", "modelspec.architecture": "fresco-starter", "modelspec.license": "MIT OR Apache-2.0",
        "modelspec.resolution": "256x256", "modelspec.prediction_type": "epsilon", "fresco.preview": "fresco-starter-preview",
        "fresco.latent_rgb": json.dumps([[round(v, 5) for v in row] for row in factors]), "fresco.steps": str(steps),
    }  # fmt: skip
    save_file(dict(sorted(tensors.items())), state / "fresco-starter.safetensors", metadata=meta)
    preview = {k: v.detach().cpu().to(torch.float16).contiguous() for k, v in small.state_dict().items()}
    save_file(preview, state / "fresco-starter-preview.safetensors", metadata={"modelspec.title": "Fresco Starter preview decoder"})
    log("exported", (state / "fresco-starter.safetensors").stat().st_size, "bytes")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("state", type=pathlib.Path)
    for name, value in [("vae-seconds", 130), ("unet-seconds", 1000), ("decoder-seconds", 60), ("sheet-seconds", 120)]:
        parser.add_argument(f"--{name}", type=float, default=value)
    for name, value in [("recipes", 163840), ("batch", 256), ("vae-batch", 64), ("encode-batch", 512), ("vae-pictures", 12288)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    args.device = "cpu" if args.small else "cuda"
    args.compile, args.warm, args.report, args.sheet_prompts = not args.small, 10, 200, 64
    if args.small:
        args.recipes, args.batch, args.vae_batch, args.encode_batch, args.vae_pictures = 96, 4, 2, 32, 128
        args.vae_seconds, args.unet_seconds, args.decoder_seconds, args.sheet_seconds = 8, 12, 6, 9
        args.warm, args.report, args.sheet_prompts = 1, 2, 4
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
    log("recipes", len(recipes), "such as", [r["caption"] for r in recipes[:12]])
    tokens = torch.tensor([r["tokens"] for r in recipes], dtype=torch.int32, device=args.device)
    seen = torch.unique(tokens).cpu().long()
    log("tokens seen", len(seen))
    state = args.state
    if args.small:
        write_sheet((studio.make(recipes[:64]) + 1) / 2, state / "data.png")
        (state / "data.txt").write_text("\n".join(r["caption"] for r in recipes[:64]))

    if (state / "vae.pt").exists():
        vae = model.Vae().to(args.device)
        vae.load_state_dict(torch.load(state / "vae.pt", map_location=args.device))
    else:
        vae = train_vae(args, studio, recipes, state)
    vae.eval().requires_grad_(False)

    if (state / "average.pt").exists():
        net = Both(args).to(args.device)
        kept = torch.load(state / "average.pt", map_location=args.device)
        net.load_state_dict(kept["average"])
    else:
        latents = make_latents(args, studio, vae, recipes)
        log("latents", tuple(latents.shape), f"deviation {latents.float().std().item():.3f}")
        net = train_unet(args, latents, tokens, vae, state)
        kept = {"step": torch.load(state / "average.pt", map_location="cpu")["step"]}
    sheet(args, net, vae, state / "sheet-final.png")
    vae, small, factors = train_decoders(args, studio, recipes, vae, state)
    sheet(args, net, vae, state / "sheet-polished.png")
    export(net, vae, small, factors, seen, state, kept["step"])
    (state / "done").write_text("done")


T0 = time.time()
if __name__ == "__main__":
    main()
