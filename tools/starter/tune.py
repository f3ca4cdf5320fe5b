"""A last pass over fewer pictures, on whatever there is (hours of a CPU will do): everyday things, mostly of one set.

    python3 tools/starter/tune.py DATA_FOLDER PARTS_FOLDER OUT_FOLDER SECONDS

Takes the parts of train.py and leaves parts of the same form, every few minutes and at the end. A small model that has seen
much for a short time draws blurred mixtures; one set of pictures and a falling rate make it settle.
"""

import copy
import json
import pathlib
import sys
import time
import types

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from safetensors.torch import load

import captions
import model
import train
from clip_bpe import END, LENGTH, START, Tokenizer
from compose import Studio
from train import log
from words import SYNONYMS

TABLE = "embeddings.token_embedding.weight"


def chosen(index: list[dict]) -> list[dict]:
    """One picture a thing: the flat one, else whichever there is."""
    rank = {"flat": 0, "noto": 1, "soft": 2, "3d": 3}
    best: dict[str, dict] = {}
    for entry in index:
        if entry["name"] not in best or rank[entry["set"]] < rank[best[entry["name"]]["set"]]:
            best[entry["name"]] = entry
    return [best[name] for name in sorted(best)]


def main() -> None:
    data, parts, out, seconds = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), float(sys.argv[4])
    out.mkdir(parents=True, exist_ok=True)
    args = types.SimpleNamespace(device="cuda" if torch.cuda.is_available() else "cpu", out=out, encode_batch=16)
    torch.manual_seed(11)
    torch.set_num_threads(2)
    tensors = load(b"".join(p.read_bytes() for p in sorted(parts.glob("part-*"))))
    seen = tensors.pop("seen").long()
    place = torch.full((49408,), int((seen == train.UNKNOWN_ID).nonzero()[0, 0]))
    place[seen] = torch.arange(len(seen))

    def part(prefix, net):
        net.load_state_dict({k[len(prefix) :]: v.float() for k, v in tensors.items() if k.startswith(prefix)})
        return net

    net = torch.nn.Module()
    # The table holds only the rows of words that captions have: the others do not change.
    net.text = part("cond_stage_model.transformer.text_model.", model.Text(vocabulary=len(seen)))
    net.unet = part("model.diffusion_model.", model.Unet()).to(memory_format=torch.channels_last)
    vae = part("first_stage_model.", model.Vae()).requires_grad_(False).eval()

    index = chosen(json.loads((data / "pack.json").read_text()))
    recipes, tokenizer = captions.Recipes(index, 5), Tokenizer()
    everyday = {name.replace("-", " ") for name in SYNONYMS}
    recipes.weights = [4.0 if n in everyday else 0.6 for n in recipes.names]
    store = data / "tune.pt"
    if store.exists():
        kept = torch.load(store)
        latents, ids = kept["latents"], kept["ids"]
    else:
        studio = Studio(index, (data / "pack.bin").read_bytes(), args.device)
        drawn = [recipes.draw() for _ in range(5600)]
        log("recipes", len(drawn))
        latents = train.make_latents(args, studio, vae, drawn)
        ids = place[torch.tensor([train.tokens_of(tokenizer, r["caption"]) for r in drawn])]
        torch.save({"latents": latents, "ids": ids}, store)
    log("latents", tuple(latents.shape))

    net.to(args.device)
    average = copy.deepcopy(net).requires_grad_(False)
    live, mine = list(net.parameters()), list(average.parameters())
    opt = torch.optim.AdamW(live, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    abar = train.noise_levels(args.device)
    snr = abar / (1 - abar)
    weight = snr.clamp(max=5) / snr
    empty = place[torch.tensor([START] + [END] * (LENGTH - 1))]

    def loss_of(z, t, noise, words):
        a = abar[t][:, None, None, None]
        # Plain products: what is called flash attention is slow backwards on a CPU.
        with torch.autocast(args.device, dtype=torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            made = net.unet(a.sqrt() * z + (1 - a).sqrt() * noise, t, net.text(words)).float()
        return ((made - noise).square().mean((1, 2, 3)) * weight[t]).mean()

    loss_of = torch.compile(loss_of)
    batch, step, mean, saved = 32, 0, None, time.time()
    start = time.time()
    while (progress := (time.time() - start) / seconds) < 1:
        for group in opt.param_groups:
            group["lr"] = 2.5e-4 * min(1, (step + 1) / 30) * (1 if progress < 0.2 else max(0.02, (1 - progress) / 0.8))
        pick = torch.randint(len(latents), (batch,))
        z = latents[pick].float()
        mirrored = torch.rand(batch, 1, 1, 1) < 0.25
        z = torch.where(mirrored, z.flip(3), z).contiguous(memory_format=torch.channels_last)
        words = torch.where(torch.rand(batch, 1) < 0.1, empty, ids[pick])
        # What a thing is gets decided while there is much noise.
        t = torch.where(torch.rand(batch) < 0.7, torch.randint(300, 1000, (batch,)), torch.randint(0, 1000, (batch,)))
        loss = loss_of(z, t, torch.randn_like(z), words)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(live, 1.0)
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(mine, live, 1 - min(0.99, (1 + step) / (10 + step)))
        step += 1
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if step == 1:
            start = time.time()
        if step % 20 == 0:
            log(step, f"loss {mean:.4f} progress {progress:.3f}")
        if time.time() - saved > 240 or step == 5:
            saved = time.time()
            save(args, average, vae, seen)
    save(args, average, vae, seen)
    log("steps", step)


def save(args, net, vae, seen) -> None:
    """As train.ship, with a table that is short already."""
    full = copy.copy(net)
    table = net.text.embeddings["token_embedding"]
    wide = torch.nn.Embedding(49408, table.weight.shape[1])
    with torch.no_grad():
        wide.weight.zero_()
        wide.weight[seen] = table.weight
    full.text.embeddings["token_embedding"] = wide
    train.ship(args, full, vae, seen)
    full.text.embeddings["token_embedding"] = table


if __name__ == "__main__":
    main()
