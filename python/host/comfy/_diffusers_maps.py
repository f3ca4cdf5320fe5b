"""How files of the library diffusers name the weights of a network; `comfy.utils` has these under its name."""


def _both(names):
    return {f"{name}.{part}" for name in names for part in ("weight", "bias")}


UNET_MAP_ATTENTIONS = _both(["proj_in", "proj_out", "norm"])
TRANSFORMER_BLOCKS = _both(["norm1", "norm2", "norm3", "attn1.to_out.0", "attn2.to_out.0", "ff.net.0.proj", "ff.net.2"]) | {
    f"attn{place}.to_{part}.weight" for place in (1, 2) for part in "qkv"
}
_RESNET = {
    "in_layers.0": "norm1", "in_layers.2": "conv1", "emb_layers.1": "time_emb_proj", "out_layers.0": "norm2",
    "out_layers.3": "conv2", "skip_connection": "conv_shortcut",
}
UNET_MAP_RESNET = {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in _RESNET.items() for part in ("weight", "bias")}
_BASIC = (
    ("label_emb.0.0", "class_embedding.linear_1"), ("label_emb.0.2", "class_embedding.linear_2"),
    ("label_emb.0.0", "add_embedding.linear_1"), ("label_emb.0.2", "add_embedding.linear_2"), ("input_blocks.0.0", "conv_in"),
    ("out.0", "conv_norm_out"), ("out.2", "conv_out"), ("time_embed.0", "time_embedding.linear_1"),
    ("time_embed.2", "time_embedding.linear_2"),
)
UNET_MAP_BASIC = {(f"{ours}.{part}", f"{theirs}.{part}") for ours, theirs in _BASIC for part in ("weight", "bias")}


def unet_to_diffusers(unet_config):
    """The name of each weight in a UNet by its name in diffusers."""
    if "num_res_blocks" not in unet_config:
        return {}
    blocks = unet_config["num_res_blocks"]
    levels = len(unet_config["channel_mult"])
    depths, depths_out = list(unet_config["transformer_depth"]), list(unet_config["transformer_depth_output"])
    middle = unet_config.get("transformer_depth_middle")
    made = {}

    def resnet(theirs, ours):
        for inner, name in UNET_MAP_RESNET.items():
            made[f"{theirs}.{name}"] = f"{ours}.{inner}"

    def attention(theirs, ours, depth):
        for name in UNET_MAP_ATTENTIONS:
            made[f"{theirs}.{name}"] = f"{ours}.{name}"
        for block in range(depth):
            for name in TRANSFORMER_BLOCKS:
                made[f"{theirs}.transformer_blocks.{block}.{name}"] = f"{ours}.transformer_blocks.{block}.{name}"

    place = 1
    for level in range(levels):
        for i in range(blocks[level]):
            resnet(f"down_blocks.{level}.resnets.{i}", f"input_blocks.{place}.0")
            depth = depths.pop(0)
            if depth > 0:
                attention(f"down_blocks.{level}.attentions.{i}", f"input_blocks.{place}.1", depth)
            place += 1
        for part in ("weight", "bias"):
            made[f"down_blocks.{level}.downsamplers.0.conv.{part}"] = f"input_blocks.{place}.0.op.{part}"
        place += 1
    if middle is not None:
        attention("mid_block.attentions.0", "middle_block.1", middle)
        for i, ours in enumerate((0, 2)):
            resnet(f"mid_block.resnets.{i}", f"middle_block.{ours}")
    place = 0
    for level, count in enumerate(reversed(blocks)):
        for i in range(count + 1):
            inside = 1
            resnet(f"up_blocks.{level}.resnets.{i}", f"output_blocks.{place}.0")
            depth = depths_out.pop()
            if depth > 0:
                attention(f"up_blocks.{level}.attentions.{i}", f"output_blocks.{place}.1", depth)
                inside += 1
            if i == count:
                for part in ("weight", "bias"):
                    made[f"up_blocks.{level}.upsamplers.0.conv.{part}"] = f"output_blocks.{place}.{inside}.conv.{part}"
            place += 1
    for ours, theirs in UNET_MAP_BASIC:
        made[theirs] = ours
    return made


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
