"""Names of a UNet's weights in files of diffusers, beside those that the original files have."""

ATTENTIONS = {f"{part}.{kind}" for part in ("proj_in", "proj_out", "norm") for kind in ("weight", "bias")}
TRANSFORMER = (
    {f"{part}.{kind}" for part in ("norm1", "norm2", "norm3", "ff.net.0.proj", "ff.net.2") for kind in ("weight", "bias")}
    | {f"{attention}.{part}.weight" for attention in ("attn1", "attn2") for part in ("to_q", "to_k", "to_v", "to_out.0")}
    | {f"{attention}.to_out.0.bias" for attention in ("attn1", "attn2")}
)
_RESNET = {
    "in_layers.0": "norm1", "in_layers.2": "conv1", "emb_layers.1": "time_emb_proj", "out_layers.0": "norm2", "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
RESNET = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in _RESNET.items() for kind in ("weight", "bias")}
_BASIC = (
    ("label_emb.0.0", "class_embedding.linear_1"), ("label_emb.0.2", "class_embedding.linear_2"),
    ("label_emb.0.0", "add_embedding.linear_1"), ("label_emb.0.2", "add_embedding.linear_2"), ("input_blocks.0.0", "conv_in"),
    ("out.0", "conv_norm_out"), ("out.2", "conv_out"), ("time_embed.0", "time_embedding.linear_1"),
    ("time_embed.2", "time_embedding.linear_2"),
)
BASIC = {(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in _BASIC for kind in ("weight", "bias")}


def unet_to_diffusers(unet_config):
    """Names of diffusers with those of the original, for a UNet of this shape; none if it is no such UNet."""
    if "num_res_blocks" not in unet_config:
        return {}
    counts, levels = unet_config["num_res_blocks"], len(unet_config["channel_mult"])
    down, up = list(unet_config["transformer_depth"]), list(unet_config["transformer_depth_output"])
    names = {}

    def resnet(theirs, ours):
        names.update((f"{theirs}.{value}", f"{ours}.{key}") for key, value in RESNET.items())

    def attention(theirs, ours, depth):
        names.update((f"{theirs}.{part}", f"{ours}.{part}") for part in ATTENTIONS)
        for block in range(depth):
            place = f"transformer_blocks.{block}"
            names.update((f"{theirs}.{place}.{part}", f"{ours}.{place}.{part}") for part in TRANSFORMER)

    for level in range(levels):
        # Each level has its blocks and one that halves the size.
        first = 1 + sum(counts[:level]) + level
        for block in range(counts[level]):
            resnet(f"down_blocks.{level}.resnets.{block}", f"input_blocks.{first + block}.0")
            depth = down.pop(0) if down else 0
            if depth > 0:
                attention(f"down_blocks.{level}.attentions.{block}", f"input_blocks.{first + block}.1", depth)
        for kind in ("weight", "bias"):
            names[f"down_blocks.{level}.downsamplers.0.conv.{kind}"] = f"input_blocks.{first + counts[level]}.0.op.{kind}"
    middle = unet_config.get("transformer_depth_middle") or 0
    if middle >= 0:
        attention("mid_block.attentions.0", "middle_block.1", middle)
    for block, place in enumerate((0, 2)):
        resnet(f"mid_block.resnets.{block}", f"middle_block.{place}")
    counts = list(reversed(counts))
    for level in range(levels):
        first = sum(counts[:level]) + level
        blocks = counts[level] + 1
        for block in range(blocks):
            parts = 1
            resnet(f"up_blocks.{level}.resnets.{block}", f"output_blocks.{first + block}.0")
            depth = up.pop() if up else 0
            if depth > 0:
                attention(f"up_blocks.{level}.attentions.{block}", f"output_blocks.{first + block}.1", depth)
                parts = 2
            if block == blocks - 1:
                for kind in ("weight", "bias"):
                    names[f"up_blocks.{level}.upsamplers.0.conv.{kind}"] = f"output_blocks.{first + block}.{parts}.conv.{kind}"
    names.update((theirs, ours) for ours, theirs in BASIC)
    return names
