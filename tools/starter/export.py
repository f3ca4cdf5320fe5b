"""Makes the shipped files from what train.py left: the checkpoint and its preview decoder.

    python3 tools/starter/export.py STATE_FOLDER TARGET_FOLDER

The token table gets all its rows again: those of words the model never saw are all the one that stands for them. The preview
decoder, the colours of latents and the polished autoencoder are those of preview.pt (previews.py).
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

from latents import UNKNOWN_ID

TABLE = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"


def main() -> None:
    state, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    tensors = load_file(state / "trained.safetensors")
    seen = tensors.pop("seen").long()
    rows = tensors[TABLE].view(torch.uint8)
    table = rows[(seen == UNKNOWN_ID).nonzero()[0, 0]].repeat(49408, 1)
    table[seen] = rows
    tensors[TABLE] = table.view(torch.float8_e4m3fn)
    # Loaders take this name as the sign of a network that tells the velocity.
    tensors["v_pred"] = torch.zeros(1, dtype=torch.float16)
    meta = {
        "modelspec.title": "Fresco Starter", "modelspec.architecture": "fresco-starter", "modelspec.license": "MIT OR Apache-2.0",
        "modelspec.resolution": "256x256", "modelspec.prediction_type": "v",
    }  # fmt: skip
    (target / "checkpoints").mkdir(parents=True, exist_ok=True)
    (target / "vae_approx").mkdir(parents=True, exist_ok=True)
    kept = torch.load(state / "preview.pt", map_location="cpu")
    tensors |= {f"first_stage_model.{k}": v.to(torch.float16).contiguous() for k, v in kept["vae"].items()}
    meta["fresco.preview"] = "fresco-starter-preview"
    meta["fresco.latent_rgb"] = json.dumps([[round(v, 5) for v in row] for row in kept["rgb"]])
    small = {k: v.to(torch.float16).contiguous() for k, v in kept["small"].items()}
    title = {"modelspec.title": "Fresco Starter preview decoder", "modelspec.license": "MIT OR Apache-2.0"}
    save_file(small, target / "vae_approx/fresco-starter-preview.safetensors", metadata=title)
    path = target / "checkpoints/fresco-starter.safetensors"
    save_file(dict(sorted(tensors.items())), path, metadata=meta)
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
