"""comfy.model_detection, comfy.supported_models and comfy.model_base, as data."""

import comfy.latent_formats
import comfy.model_base as base
import comfy.model_detection as detection
import comfy.model_sampling as levels
import comfy.supported_models as families
import comfy.utils
from comfy.supported_models_base import BASE, ClipTarget


class Weight:
    def __init__(self, *shape):
        self.shape = shape


def unet(depths, depths_out, middle, context, channels=320, taken=4, adm=None, linear=True, mult=(1, 2, 4)):
    """Names and shapes of a UNet, from the names that files of diffusers have."""
    config = {
        "num_res_blocks": [2] * len(mult), "channel_mult": list(mult), "transformer_depth": depths,
        "transformer_depth_output": depths_out, "transformer_depth_middle": middle,
    }
    made = {}
    for theirs, name in comfy.utils.unet_to_diffusers(config).items():
        if "label_emb" in name or ("downsamplers" in theirs and f"down_blocks.{len(mult) - 1}." in theirs):
            continue
        if "upsamplers" in theirs and f"up_blocks.{len(mult) - 1}." in theirs:
            continue
        level = (int(name.split(".")[1]) - 1) // 3 if name.startswith("input_blocks") else 0
        width = channels * mult[max(level, 0)]
        shape = (width, context) if "attn2.to_k" in name else (width, width) if "proj_in.weight" in name and linear else (width, width, 1, 1)
        made[f"model.diffusion_model.{name}"] = Weight(*shape)
    made["model.diffusion_model.input_blocks.0.0.weight"] = Weight(channels, taken, 3, 3)
    if adm is not None:
        made["model.diffusion_model.label_emb.0.0.weight"] = Weight(4 * channels, adm)
    return made


SDXL = ([0, 0, 2, 2, 10, 10], [0, 0, 0, 2, 2, 2, 10, 10, 10], 10, 2048)
SD = ([1] * 6 + [0] * 2, [1] * 9 + [0] * 3, 1)


def family(weights, prefix="model.diffusion_model."):
    found = detection.model_config_from_unet(weights, prefix)
    return None if found is None else type(found).__name__


def check_networks_with_convolutions():
    xl = unet(*SDXL, adm=2816)
    assert detection.unet_prefix_from_state_dict(xl) == "model.diffusion_model."
    config = detection.detect_unet_config(xl, "model.diffusion_model.")
    wanted = {
        "model_channels": 320, "in_channels": 4, "num_res_blocks": [2, 2, 2], "channel_mult": [1, 2, 4], "transformer_depth": SDXL[0],
        "transformer_depth_output": SDXL[1], "transformer_depth_middle": 10, "context_dim": 2048, "adm_in_channels": 2816,
        "use_linear_in_transformer": True, "use_temporal_attention": False,
    }
    assert {key: config[key] for key in wanted} == wanted, config
    assert family(xl) == "SDXL" and family(unet(*SDXL, adm=2816, taken=8)) == "SDXL_instructpix2pix"
    four = {"mult": (1, 2, 4, 4)}
    assert family(unet(*SD, 768, linear=False, **four)) == "SD15" and family(unet(*SD, 768, linear=False, taken=9, **four)) == "SD15"
    assert family(unet(*SD, 1024, **four)) == "SD20" and family(unet(*SD, 1024, adm=2048, **four)) == "SD21UnclipH"
    refined = ([0, 0, 4, 4, 4, 4, 0, 0], [0] * 3 + [4] * 6 + [0] * 3, 4, 1280)
    assert family(unet(*refined, channels=384, adm=2560, **four)) == "SDXLRefiner"
    assert family(unet([0, 0, 2, 2, 4, 4], [0, 0, 0, 2, 2, 2, 4, 4, 4], 4, 2048, adm=2816)) == "SSD1B"
    assert family({"something.else": Weight(1)}) is None


def check_transformers():
    flux = {
        "double_blocks.0.img_attn.norm.key_norm.scale": Weight(128), "img_in.weight": Weight(3072, 64), "txt_in.weight": Weight(3072, 4096),
        "double_blocks.1.x": Weight(1), "single_blocks.0.x": Weight(1),
    }
    dev = {**flux, "guidance_in.in_layer.weight": Weight(3072, 256)}
    assert (family(dev, ""), family(flux, "")) == ("Flux", "FluxSchnell")
    assert family({**dev, "img_in.weight": Weight(3072, 384)}, "") == "FluxInpaint"
    made = detection.model_config_from_unet(dev, "")
    assert isinstance(made, families.Flux) and (made.unet_config["depth"], made.unet_config["depth_single_blocks"]) == (2, 1)
    assert made.model_type({}, "") is base.ModelType.FLUX and isinstance(made.latent_format, comfy.latent_formats.Flux)
    wan = {
        "head.modulation": Weight(1, 2, 1536), "head.head.weight": Weight(64, 1536), "patch_embedding.weight": Weight(1536, 16, 1, 2, 2),
        "blocks.0.ffn.0.weight": Weight(8960, 1536),
    }
    assert family(wan, "") == "WAN21_T2V"
    image = {**wan, "patch_embedding.weight": Weight(1536, 36, 1, 2, 2), "img_emb.proj.0.bias": Weight(1280)}
    assert family(image, "") == "WAN21_I2V"
    assert family({**wan, "head.head.weight": Weight(192, 1536)}, "") == "WAN22_T2V"
    assert family({**wan, "vace_patch_embedding.weight": Weight(1)}, "") == "WAN21_Vace"
    lumina = {"cap_embedder.1.weight": Weight(2304, 2304)}
    assert (family(lumina, ""), family({"cap_embedder.1.weight": Weight(3840, 2560)}, "")) == ("Lumina2", "ZImage")
    assert family({"txt_norm.weight": Weight(1), "img_in.weight": Weight(3072, 64)}, "") == "QwenImage"
    sd3 = {"joint_blocks.0.context_block.attn.qkv.weight": Weight(1), "x_embedder.proj.weight": Weight(1536, 16, 2, 2)}
    assert family(sd3, "") == "SD3" and detection.detect_unet_config(sd3, "")["depth"] == 24
    assert family({"clf.1.weight": Weight(1), "clip_txt_mapper.weight": Weight(1)}, "") == "Stable_Cascade_C"


def check_files_of_diffusers():
    file = {"conv_in.weight": Weight(320, 4, 3, 3), "add_embedding.linear_1.weight": Weight(1280, 2816)}
    for level, depth in enumerate((0, 2, 10)):
        for i in range(2):
            file[f"down_blocks.{level}.resnets.{i}.conv1.weight"] = Weight(1)
            for block in range(depth):
                file[f"down_blocks.{level}.attentions.{i}.transformer_blocks.{block}.attn2.to_k.weight"] = Weight(640, 2048)
    config = detection.unet_config_from_diffusers_unet(file, "a type")
    assert config["transformer_depth_output"] == SDXL[1] and config["dtype"] == "a type"
    assert type(detection.model_config_from_diffusers_unet(file)).__name__ == "SDXL"
    assert detection.unet_config_from_diffusers_unet({"conv_in.weight": Weight(7, 4, 3, 3)}) is None
    old = {"num_res_blocks": 2, "channel_mult": [1, 2, 4], "attention_resolutions": [2, 4], "transformer_depth": [0, 2, 10]}
    new = detection.convert_config(old)
    assert (new["transformer_depth"], new["transformer_depth_middle"], new["num_res_blocks"]) == (SDXL[0], 10, [2, 2, 2])
    assert detection.count_blocks(["a.0.x", "a.1.y", "a.3.z"], "a.{}.") == 2


def check_families_are_data():
    assert families.SDXL in families.models and families.models.index(families.SDXL_instructpix2pix) < families.models.index(families.SDXL)
    assert families.supported_models_base.BASE is BASE and issubclass(families.SSD1B, families.SDXL)
    made = families.SD15({"in_channels": 9})
    assert made.unet_config == {"in_channels": 9, "num_heads": 8, "num_head_channels": -1} and made.inpaint_model()
    assert made.process_unet_state_dict_for_saving({"a": 1}) == {"model.diffusion_model.a": 1}
    assert families.SD3({}).sampling_settings == {"shift": 3.0} and families.SD3({}).vae_key_prefix == ["first_stage_model."]
    assert ClipTarget("words", "network").tokenizer == "words"
    try:
        made.get_model({}, "")
    except RuntimeError as error:
        assert "SD15.get_model" in str(error)
    else:
        raise AssertionError("a network was made")

    class Own(families.SDXL):
        unet_config = {"context_dim": 4096}

    assert Own.matches({"context_dim": 4096, "more": 1}) and not Own.matches({})


def check_networks_by_class():
    assert issubclass(base.SDXL_instructpix2pix, base.SDXL) and issubclass(base.WAN21_Vace, base.WAN21)
    assert not issubclass(base.SDXLRefiner, base.SDXL) and issubclass(base.SV3D_u, base.SVD_img2vid)
    for name in ("SD15_instructpix2pix", "HunyuanVideoSkyreelsI2V", "WAN21_Camera", "Anima", "Flux", "SD3", "StableCascade_B"):
        assert issubclass(getattr(base, name), base.BaseModel), name


class Settings:
    def __init__(self, **settings):
        self.sampling_settings = settings


def check_ways_of_sampling():
    made = base.model_sampling(Settings(), base.ModelType.EPS)
    assert isinstance(made, levels.EPS) and isinstance(made, levels.ModelSamplingDiscrete)
    assert abs(float(made._list[999]) - 14.6146412) < 1e-4 and abs(made._list[0] - 0.0291671585) < 1e-7
    flow = base.model_sampling(Settings(shift=3.0), base.ModelType.FLOW)
    assert isinstance(flow, levels.CONST) and abs(flow._list[499] - 0.75) < 1e-9
    flux = base.model_sampling(Settings(shift=1.15), base.ModelType.FLUX)
    assert isinstance(flux, levels.ModelSamplingFlux)
    # Even steps from 0.00085 to 0.012: the product of what remains, by hand.
    even = base.model_sampling(Settings(beta_schedule="sqrt_linear", linear_start=0.00085, linear_end=0.012), base.ModelType.EPS)
    kept = 1.0
    for i in range(1000):
        kept *= 1 - (0.00085 + (0.012 - 0.00085) * i / 999)
    assert abs(even._list[999] - ((1 - kept) / kept) ** 0.5) < 1e-6
    assert even.fresco_describe()["betas"] == "sqrt_linear" and "betas" not in made.fresco_describe()
    even._register_schedule(given_betas=[0.01] * 10)
    assert abs(even._list[9] - ((1 - 0.99**10) / 0.99**10) ** 0.5) < 1e-9
    try:
        even.fresco_describe()
    except RuntimeError as error:
        assert "betas of its own" in str(error)
    else:
        raise AssertionError("Fresco would sample with other noise levels")


def check_few_steps():
    from comfy_extras.nodes_model_advanced import LCM, ModelSamplingDiscreteDistilled

    class Few(ModelSamplingDiscreteDistilled, LCM):
        pass

    made, whole = Few(Settings()), levels.ModelSamplingDiscrete(Settings())
    assert len(made._list) == 50 and abs(made._list[49] - whole._list[999]) < 1e-9 and abs(made._list[0] - whole._list[19]) < 1e-9
    assert made.timestep(whole._list[999]) == 999 and made.timestep(whole._list[19]) == 19
    assert abs(made.sigma(999) - whole._list[999]) < 1e-4
    described = made.fresco_describe()
    assert (described["spacing"], described["prediction"]) == ("ModelSamplingDiscreteDistilled", "LCM")
    # At the first timestep there is only the picture's share that the boundary leaves.
    scaled = 19 * 10.0
    expected = 0.25 / (scaled**2 + 0.25) * 2.0 + scaled / (scaled**2 + 0.25) ** 0.5 * (2.0 - 0.5 * whole._list[19])
    assert abs(made.calculate_denoised(whole._list[19], 0.5, 2.0) - expected) < 1e-6
