"""Names of text encoders of OpenCLIP as those of the library transformers; `comfy.utils` has these under its name."""


def transformers_convert(sd, prefix_from, prefix_to, number):
    """Names of a text encoder of OpenCLIP as those of the library transformers; joined projections are taken apart."""
    for theirs, ours in (
        ("positional_embedding", "embeddings.position_embedding.weight"), ("token_embedding.weight", "embeddings.token_embedding.weight"),
        ("ln_final.weight", "final_layer_norm.weight"), ("ln_final.bias", "final_layer_norm.bias"),
    ):
        if prefix_from + theirs in sd:
            sd[f"{prefix_to}{ours}"] = sd.pop(prefix_from + theirs)
    names = {
        "ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2", "attn.out_proj": "self_attn.out_proj",
    }
    for layer in range(number):
        block, made = f"{prefix_from}transformer.resblocks.{layer}.", f"{prefix_to}encoder.layers.{layer}."
        for theirs, ours in names.items():
            for part in ("weight", "bias"):
                if f"{block}{theirs}.{part}" in sd:
                    sd[f"{made}{ours}.{part}"] = sd.pop(f"{block}{theirs}.{part}")
        for part in ("weight", "bias"):
            if f"{block}attn.in_proj_{part}" not in sd:
                continue
            joined = sd.pop(f"{block}attn.in_proj_{part}")
            rows = joined.shape[0] // 3
            for i, name in enumerate(("q_proj", "k_proj", "v_proj")):
                sd[f"{made}self_attn.{name}.{part}"] = joined[rows * i : rows * (i + 1)]
    return sd


def clip_text_transformers_convert(sd, prefix_from, prefix_to):
    sd = transformers_convert(sd, prefix_from, f"{prefix_to}text_model.", 32)
    if f"{prefix_from}text_projection.weight" in sd:
        sd[f"{prefix_to}text_projection.weight"] = sd.pop(f"{prefix_from}text_projection.weight")
    if f"{prefix_from}text_projection" in sd:
        projection = sd.pop(f"{prefix_from}text_projection")
        sd[f"{prefix_to}text_projection.weight"] = projection.transpose(0, 1).contiguous()
    return sd
