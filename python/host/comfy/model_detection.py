"""Which network the weights of a file are, by their names and shapes.

Fresco recognises files itself; this is for packs that ask. Only `.shape` of a weight is read.
"""

import logging
import math

import comfy.supported_models
from comfy.utils import state_dict_prefix_replace  # noqa: F401
from fresco_host.placeholders import fallback

log = logging.getLogger("fresco")


def count_blocks(state_dict_keys, prefix_string):
    """How many numbers from zero on stand in the names where the text has braces."""
    count = 0
    while any(key.startswith(prefix_string.format(count)) for key in state_dict_keys):
        count += 1
    return count


def unet_prefix_from_state_dict(state_dict):
    """What stands before the names of the network in a file of several parts."""
    counts = {prefix: 0 for prefix in ("model.diffusion_model.", "model.model.", "net.")}
    for key in state_dict:
        for prefix in counts:
            if key.startswith(prefix):
                counts[prefix] += 1
                break
    top = max(counts, key=counts.get)
    return top if counts[top] > 5 else "model."


def calculate_transformer_depth(prefix, state_dict_keys, state_dict):
    """Depth of a block's transformer, size of its context, whether its ends are linear, and whether it knows time. None without one."""
    inside = f"{prefix}1.transformer_blocks."
    if not any(key.startswith(inside) for key in state_dict_keys):
        return None
    depth = count_blocks(state_dict_keys, inside + "{}")
    context = state_dict[f"{inside}0.attn2.to_k.weight"].shape[1]
    linear = len(state_dict[f"{prefix}1.proj_in.weight"].shape) == 2
    over_time = f"{prefix}1.time_stack.0.attn1.to_q.weight" in state_dict
    crossed = f"{prefix}1.time_stack.0.attn2.to_q.weight" in state_dict
    return depth, context, linear, over_time, crossed


class _Weights:
    """Names and shapes below a prefix."""

    def __init__(self, state_dict, prefix):
        self.state_dict, self.prefix = state_dict, prefix
        self.keys = [key for key in state_dict if key.startswith(prefix)]

    def has(self, name):
        return self.prefix + name in self.state_dict

    def shape(self, name):
        return tuple(self.state_dict[self.prefix + name].shape)

    def count(self, pattern):
        return count_blocks(self.keys, self.prefix + pattern)


def detect_unet_config(state_dict, key_prefix, metadata=None):
    """The settings of the network, or None for weights of another thing."""
    weights = _Weights(state_dict, key_prefix)
    for test, read in _TRANSFORMERS:
        if weights.has(test):
            made = read(weights)
            if made is not None:
                return made
    if weights.has("input_blocks.0.0.weight"):
        return _unet(weights)
    return None


def _unet(weights):
    model_channels, in_channels = weights.shape("input_blocks.0.0.weight")[:2]
    config = {
        "use_checkpoint": False, "image_size": 32, "use_spatial_transformer": True, "legacy": False, "adm_in_channels": None,
    }
    if weights.has("label_emb.0.0.weight"):
        config["num_classes"] = "sequential"
        config["adm_in_channels"] = weights.shape("label_emb.0.0.weight")[1]
    config.update(in_channels=in_channels, out_channels=weights.shape("out.2.weight")[0] if weights.has("out.2.weight") else 4)
    config["model_channels"] = model_channels
    blocks, mult, depths, depths_out = [], [], [], []
    context_dim, linear, temporal, crossed, temporal_res = None, False, False, False, False
    current_mult, current_blocks = 0, 0
    for i in range(weights.count("input_blocks.{}.")):
        if i == 0:
            continue
        block, out = f"input_blocks.{i}.", f"output_blocks.{weights.count('input_blocks.{}.') - i - 1}."
        if weights.has(f"{block}0.op.weight"):
            mult.append(current_mult)
            blocks.append(current_blocks)
            current_blocks = current_mult = 0
            found = calculate_transformer_depth(weights.prefix + out, weights.keys, weights.state_dict)
            depths_out.append(found[0] if found else 0)
            continue
        if weights.has(f"{block}0.in_layers.0.weight"):
            current_blocks += 1
            current_mult = weights.shape(f"{block}0.out_layers.3.weight")[0] // model_channels
            found = calculate_transformer_depth(weights.prefix + block, weights.keys, weights.state_dict)
            depths.append(found[0] if found else 0)
            if found and context_dim is None:
                _, context_dim, linear, temporal, crossed = found
            temporal_res = temporal_res or weights.has(f"{block}0.time_stack.emb_layers.1.weight")
        if weights.has(f"{out}0.in_layers.0.weight"):
            found = calculate_transformer_depth(weights.prefix + out, weights.keys, weights.state_dict)
            depths_out.append(found[0] if found else 0)
    mult.append(current_mult)
    blocks.append(current_blocks)
    # The outermost output block has no input block of its own number.
    last = weights.count("output_blocks.{}.") - 1
    found = calculate_transformer_depth(f"{weights.prefix}output_blocks.{last}.", weights.keys, weights.state_dict)
    if len(depths_out) < last + 1:
        depths_out.insert(0, found[0] if found else 0)
    if weights.has("middle_block.1.proj_in.weight"):
        middle = weights.count("middle_block.1.transformer_blocks.{}")
    else:
        middle = -1 if weights.has("middle_block.0.in_layers.0.weight") else -2
    config.update(
        num_res_blocks=blocks, transformer_depth=depths, transformer_depth_output=depths_out, channel_mult=mult,
        transformer_depth_middle=middle, use_linear_in_transformer=linear, context_dim=context_dim,
        use_temporal_resblock=temporal_res, use_temporal_attention=temporal,
    )
    if temporal:
        config.update(disable_temporal_crossattention=not crossed, video_kernel_size=[3, 1, 1], use_spatial_context=True,
                      merge_strategy="learned_with_images", merge_factor=0.0, extra_ff_mix_layer=True)
    return config


def _sd3(weights):
    patch = weights.shape("x_embedder.proj.weight")[2]
    depth = weights.shape("x_embedder.proj.weight")[0] // 64
    config = {
        "in_channels": weights.shape("x_embedder.proj.weight")[1], "patch_size": patch, "depth": depth, "input_size": None,
        "pos_embed_scaling_factor": None, "qkv_bias": weights.has("joint_blocks.0.context_block.attn.qkv.bias"),
    }
    if weights.has("final_layer.linear.weight"):
        config["out_channels"] = weights.shape("final_layer.linear.weight")[0] // patch**2
    if weights.has("y_embedder.mlp.0.weight"):
        config["adm_in_channels"] = weights.shape("y_embedder.mlp.0.weight")[1]
    if weights.has("context_embedder.weight"):
        out, taken = weights.shape("context_embedder.weight")
        config["context_embedder_config"] = {"target": "torch.nn.Linear", "params": {"in_features": taken, "out_features": out}}
    if weights.has("joint_blocks.0.context_block.attn.ln_q.weight"):
        config["qk_norm"] = "rms"
    if weights.has("pos_embed"):
        config["num_patches"] = weights.shape("pos_embed")[1]
        config["pos_embed_max_size"] = round(math.sqrt(config["num_patches"]))
    dual = [i for i in range(depth) if weights.has(f"joint_blocks.{i}.x_block.attn2.qkv.weight")]
    if dual:
        config["x_block_self_attn_layers"] = dual
    return config


def _flux(weights):
    guidance = weights.has("distilled_guidance_layer.norms.0.scale") or weights.has("distilled_guidance_layer.0.norms.0.scale")
    if not weights.has("img_in.weight") and not guidance:
        return None
    config = {
        "axes_dim": [16, 56, 56], "theta": 10000, "qkv_bias": True, "depth": weights.count("double_blocks.{}."),
        "depth_single_blocks": weights.count("single_blocks.{}."), "image_model": "flux",
    }
    if weights.has("img_in.weight"):
        hidden, taken = weights.shape("img_in.weight")
        config.update(patch_size=2, in_channels=taken // 4, out_channels=16, hidden_size=hidden, num_heads=hidden // 128)
    if weights.has("double_stream_modulation_img.lin.weight"):
        config.update(
            image_model="flux2", axes_dim=[32, 32, 32, 32], theta=2000, qkv_bias=False, patch_size=1,
            in_channels=weights.shape("img_in.weight")[1], out_channels=weights.shape("img_in.weight")[1],
        )
    if weights.has("txt_in.weight"):
        config["context_in_dim"] = weights.shape("txt_in.weight")[1]
    if weights.has("vector_in.in_layer.weight"):
        config["vec_in_dim"] = weights.shape("vector_in.in_layer.weight")[1]
    config["guidance_embed"] = weights.has("guidance_in.in_layer.weight")
    if guidance:
        radiance = weights.has("nerf_final_layer.norm.scale") or weights.has("nerf_final_layer_conv.norm.scale")
        config.update(image_model="chroma_radiance" if radiance else "chroma", guidance_embed=False)
    return config


def _wan(weights):
    dim = weights.shape("head.modulation")[-1]
    config = {
        "image_model": "wan2.1", "dim": dim, "num_heads": dim // 128, "ffn_dim": weights.shape("blocks.0.ffn.0.weight")[0],
        "num_layers": weights.count("blocks.{}."), "patch_size": (1, 2, 2), "freq_dim": 256, "window_size": (-1, -1), "qk_norm": True,
        "cross_attn_norm": True, "eps": 1e-6, "out_dim": weights.shape("head.head.weight")[0] // 4,
        "in_dim": weights.shape("patch_embedding.weight")[1],
    }
    kinds = (
        ("vace_patch_embedding.weight", "vace"),
        ("control_adapter.conv.weight", "camera" if weights.has("img_emb.proj.0.bias") else "camera_2.2"),
        ("casual_audio_encoder.encoder.final_linear.weight", "s2v"), ("audio_proj.audio_proj_glob_1.layer.bias", "humo"),
        ("face_adapter.fuser_blocks.0.k_norm.weight", "animate"), ("img_emb.proj.0.bias", "i2v"),
    )
    config["model_type"] = next((kind for name, kind in kinds if weights.has(name)), "t2v")
    return config


def _hunyuan_video(weights):
    hidden, channels = weights.shape("img_in.proj.weight")[:2]
    patch = list(weights.shape("img_in.proj.weight")[2:])
    config = {
        "image_model": "hunyuan_video", "in_channels": channels, "patch_size": patch, "hidden_size": hidden, "num_heads": hidden // 128,
        "out_channels": weights.shape("final_layer.linear.weight")[0] // math.prod(patch), "axes_dim": [16, 56, 56], "theta": 256,
        "mlp_ratio": 4.0, "qkv_bias": True, "depth": weights.count("double_blocks.{}."),
        "depth_single_blocks": weights.count("single_blocks.{}."), "guidance_embed": weights.has("guidance_in.in_layer.weight"),
        "context_in_dim": weights.shape("txt_in.input_embedder.weight")[1] if weights.has("txt_in.input_embedder.weight") else None,
        "vec_in_dim": weights.shape("vector_in.in_layer.weight")[1] if weights.has("vector_in.in_layer.weight") else None,
    }
    if weights.has("vision_in.proj.0.weight"):
        config["vision_in_dim"] = weights.shape("vision_in.proj.0.weight")[0]
    return config


def _lumina(weights):
    dim = weights.shape("noise_refiner.0.attention_norm1.weight")[0] if weights.has("noise_refiner.0.attention_norm1.weight") else (
        weights.shape("cap_embedder.1.weight")[0]
    )
    return {
        "image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": dim, "cap_feat_dim": weights.shape("cap_embedder.1.weight")[1],
        "n_layers": weights.count("layers.{}."), "qk_norm": True,
    }


def _named(image_model, blocks=None, key="image_model", **more):
    def read(weights):
        config = {key: image_model, **more}
        if blocks is not None:
            config["num_layers"] = weights.count(blocks)
        return config

    return read


def _ltxv(weights):
    if weights.has("pos_embed.proj.bias"):
        # The same name in files of PixArt by diffusers.
        return None
    both = weights.has("audio_adaln_single.linear.weight")
    return {"image_model": "ltxav" if both else "ltxv", "num_layers": weights.count("transformer_blocks.{}.")}


def _cascade(weights):
    if weights.has("clip_txt_mapper.weight"):
        return {"stable_cascade_stage": "c", "in_channels": 16}
    return {"stable_cascade_stage": "b", "in_channels": 4} if weights.has("clip_mapper.weight") else None


def _qwen(weights):
    return {
        "image_model": "qwen_image", "in_channels": weights.shape("img_in.weight")[1],
        "num_layers": weights.count("transformer_blocks.{}."),
    }


def _pixart(weights):
    alpha = weights.has("ar_embedder.mlp.0.weight")
    return {"image_model": "pixart_alpha" if alpha else "pixart_sigma", "depth": weights.count("blocks.{}.")}


def _hydit(weights):
    made = {"image_model": "hydit" if weights.has("extra_embedder.0.weight") else "hydit1", "depth": weights.count("blocks.{}.")}
    if weights.has("extra_embedder.0.weight") and weights.shape("extra_embedder.0.weight")[1] == 3968:
        made.update(size_cond=True, use_style_cond=True, image_model="hydit1")
    return made


def _cosmos(weights):
    return {"image_model": "cosmos", "in_channels": weights.shape("x_embedder.proj.1.weight")[1] // 4 - 1}


def _predict2(weights):
    return {"image_model": "cosmos_predict2", "in_channels": weights.shape("x_embedder.proj.1.weight")[1] // 4 - 1}


# The weight that only this network has, in the order in which files are asked.
_TRANSFORMERS = (
    ("joint_blocks.0.context_block.attn.qkv.weight", _sd3), ("clf.1.weight", _cascade),
    ("transformer.rotary_pos_emb.inv_freq", _named("dit1.0", key="audio_model")),
    (
        "double_layers.0.attn.w1q.weight",
        lambda weights: {"n_layers": weights.count("double_layers.{}.") + weights.count("single_layers.{}."),
                         "n_double_layers": weights.count("double_layers.{}."),
                         "cond_seq_dim": weights.shape("cond_seq_linear.weight")[1]},
    ),
    ("mlp_t5.0.weight", _hydit), ("txt_in.individual_token_refiner.blocks.0.norm1.weight", _hunyuan_video),
    ("double_blocks.0.img_attn.norm.key_norm.scale", _flux), ("t5_yproj.weight", _named("mochi_preview", "blocks.{}.")),
    ("adaln_single.emb.timestep_embedder.linear_1.bias", _ltxv), ("genre_embedder.weight", _named("ace", key="audio_model")),
    ("t_block.1.weight", _pixart), ("blocks.block0.blocks.0.block.attn.to_q.0.weight", _cosmos), ("cap_embedder.1.weight", _lumina),
    ("head.modulation", _wan), ("latent_in.weight", _named("hunyuan3d2")), ("t_embedder.mlp.2.weight", _named("hunyuan3d2_1")),
    ("caption_projection.0.linear.weight", _named("hidream", in_channels=16)), ("blocks.0.mlp.layer1.weight", _predict2),
    ("time_caption_embed.timestep_embedder.linear_1.bias", _named("omnigen2", "layers.{}.")), ("txt_norm.weight", _qwen),
    ("visual_transformer_blocks.0.cross_attention.key_norm.weight", _named("kandinsky5", "visual_transformer_blocks.{}.")),
)


def model_config_from_unet_config(unet_config, state_dict=None):
    for family in comfy.supported_models.models:
        if family.matches(unet_config, state_dict):
            return family(unet_config)
    log.error("no match %s", unet_config)
    return None


def model_config_from_unet(state_dict, unet_key_prefix, use_base_if_no_match=False, metadata=None):
    """The family of a file's network, with its settings; None for one that the host does not know."""
    unet_config = detect_unet_config(state_dict, unet_key_prefix, metadata=metadata)
    if unet_config is None:
        return None
    found = model_config_from_unet_config(unet_config, state_dict)
    if found is None and use_base_if_no_match:
        found = comfy.supported_models.BASE(unet_config)
    marked = f"{unet_key_prefix}scaled_fp8"
    if found is not None and marked in state_dict:
        found.scaled_fp8 = state_dict[marked].dtype
    return found


def top_candidate(state_dict, candidates):
    counts = {prefix: sum(key.startswith(prefix) for key in state_dict) for prefix in candidates}
    top = max(counts, key=counts.get)
    return top, counts[top]


# Files of the library diffusers


def convert_config(unet_config):
    """Settings of the old kind, with a depth for each level, as those with a depth for each block."""
    made = dict(unet_config)
    blocks, mult = made.get("num_res_blocks"), made["channel_mult"]
    if isinstance(blocks, int):
        blocks = [blocks] * len(mult)
    if "attention_resolutions" in made:
        at = made.pop("attention_resolutions")
        depth, middle = made.get("transformer_depth"), made.pop("transformer_depth_middle", None)
        depth = [depth] * len(mult) if isinstance(depth, int) else depth
        middle = depth[-1] if middle is None else middle
        inward, outward, scale = [], [], 1
        for level in range(len(mult)):
            here = depth[level] if scale in at else 0
            inward += [here] * blocks[level]
            outward += [here] * (blocks[level] + 1)
            scale *= 2
        made.update(transformer_depth=inward, transformer_depth_output=outward, transformer_depth_middle=middle)
    made["num_res_blocks"] = blocks
    return made


def _diffusers_settings():
    """Settings of UNets that exist, by which files of diffusers are known."""
    plain = {
        "use_checkpoint": False, "image_size": 32, "out_channels": 4, "use_spatial_transformer": True, "legacy": False, "in_channels": 4,
        "use_temporal_attention": False, "use_temporal_resblock": False,
    }
    deep = {
        **plain, "num_classes": "sequential", "adm_in_channels": 2816, "model_channels": 320, "num_res_blocks": [2, 2, 2],
        "channel_mult": [1, 2, 4], "use_linear_in_transformer": True, "context_dim": 2048, "num_head_channels": 64,
    }

    def xl(one, two, **more):
        return {
            **deep, "transformer_depth": [0, 0, one, one, two, two], "transformer_depth_middle": two,
            "transformer_depth_output": [0, 0, 0, one, one, one, two, two, two], **more,
        }

    four = {
        **plain, "model_channels": 320, "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4],
        "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0], "transformer_depth_middle": 1,
        "transformer_depth_output": [1] * 9 + [0] * 3,
    }
    refiner = {
        **plain, "num_classes": "sequential", "adm_in_channels": 2560, "model_channels": 384, "num_res_blocks": [2, 2, 2, 2],
        "transformer_depth": [0, 0, 4, 4, 4, 4, 0, 0], "channel_mult": [1, 2, 4, 4], "transformer_depth_middle": 4,
        "use_linear_in_transformer": True, "context_dim": 1280, "num_head_channels": 64,
        "transformer_depth_output": [0, 0, 0, 4, 4, 4, 4, 4, 4, 0, 0, 0],
    }
    first = {**four, "adm_in_channels": None, "use_linear_in_transformer": False, "context_dim": 768, "num_heads": 8}
    second = {**four, "adm_in_channels": None, "use_linear_in_transformer": True, "context_dim": 1024, "num_head_channels": 64}
    clipped = {**second, "num_classes": "sequential"}
    made = [xl(2, 10), refiner, second, {**clipped, "adm_in_channels": 1536}, {**clipped, "adm_in_channels": 2048}, first]
    made += [xl(2, 4), xl(1, 2), xl(2, 10, in_channels=9), xl(2, 10, in_channels=8)]
    made += [{**each, "in_channels": count} for each in (first, second) for count in (9, 8)]
    return made


def unet_config_from_diffusers_unet(state_dict, dtype=None):
    """The settings of a UNet in a file of diffusers; None for one that is none of those that exist."""
    depths, context = [], None
    for level in range(count_blocks(state_dict, "down_blocks.{}")):
        attended = count_blocks(state_dict, f"down_blocks.{level}.attentions.{{}}")
        for i in range(attended):
            inside = f"down_blocks.{level}.attentions.{i}.transformer_blocks."
            depths.append(count_blocks(state_dict, inside + "{}"))
            if depths[-1] > 0:
                context = state_dict[f"{inside}0.attn2.to_k.weight"].shape[1]
        if attended == 0:
            depths += [0] * count_blocks(state_dict, f"down_blocks.{level}.resnets.{{}}")
    if "conv_in.weight" not in state_dict:
        return None
    seen = {"transformer_depth": depths, "context_dim": context, "adm_in_channels": None}
    seen["model_channels"], seen["in_channels"] = state_dict["conv_in.weight"].shape[:2]
    for name in ("class_embedding", "add_embedding"):
        if f"{name}.linear_1.weight" in state_dict:
            seen["adm_in_channels"] = state_dict[f"{name}.linear_1.weight"].shape[1]
            break
    for settings in _diffusers_settings():
        if all(settings.get(key) == value for key, value in seen.items()):
            return convert_config({**settings, "dtype": dtype})
    return None


def model_config_from_diffusers_unet(state_dict):
    unet_config = unet_config_from_diffusers_unet(state_dict)
    return None if unet_config is None else model_config_from_unet_config(unet_config)


__getattr__ = fallback(__name__)
