"""The families of models that the host knows, in the order in which a file is compared with them.

What they say here is data: Fresco recognises and loads files itself.
"""

import comfy.latent_formats as formats
from comfy import model_base, supported_models_base
from comfy.supported_models_base import BASE, _types
from fresco_host.placeholders import fallback

models = []
_BRAIN_FIRST = _types("bfloat16 float16 float32")
_BRAIN = _types("bfloat16 float32")


def _family(name, parent=BASE, listed=True, **facts):
    made = type(name, (parent,), {"__module__": __name__, **facts})
    if listed:
        models.append(made)
    return made


# Networks with convolutions

_SD15_HEADS = {"num_heads": 8, "num_head_channels": -1}
_SD15 = {
    "context_dim": 768, "model_channels": 320, "use_linear_in_transformer": False, "adm_in_channels": None,
    "use_temporal_attention": False,
}
_SD20 = {
    "context_dim": 1024, "model_channels": 320, "use_linear_in_transformer": True, "adm_in_channels": None,
    "use_temporal_attention": False,
}
_SDXL = {
    "model_channels": 320, "use_linear_in_transformer": True, "transformer_depth": [0, 0, 2, 2, 10, 10], "context_dim": 2048,
    "adm_in_channels": 2816, "use_temporal_attention": False,
}
_SVD = {
    "model_channels": 320, "in_channels": 8, "use_linear_in_transformer": True, "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "context_dim": 1024, "adm_in_channels": 768, "use_temporal_attention": True, "use_temporal_resblock": True,
}


class SD15(BASE):
    unet_config = _SD15
    unet_extra_config = _SD15_HEADS
    latent_format = formats.SD15
    memory_usage_factor = 1.0


class SD20(BASE):
    unet_config = _SD20
    unet_extra_config = {"num_heads": -1, "num_head_channels": 64, "attn_precision": (_types("float32") or [None])[0]}
    latent_format = formats.SD15
    memory_usage_factor = 1.0

    def model_type(self, state_dict, prefix=""):
        # Files of 2.1 predict the velocity; their last norms show it.
        if self.unet_config["in_channels"] == 4:
            out = state_dict.get(f"{prefix}output_blocks.11.1.transformer_blocks.0.norm1.bias")
            if out is not None and float(out.float().std(unbiased=False)) > 0.09:
                return model_base.ModelType.V_PREDICTION
        return model_base.ModelType.EPS


class SDXL(BASE):
    unet_config = _SDXL
    latent_format = formats.SDXL
    memory_usage_factor = 0.8
    fresco_base = "SDXL"

    def model_type(self, state_dict, prefix=""):
        if "edm_mean" in state_dict and "edm_std" in state_dict:
            self.latent_format = formats.SDXL_Playground_2_5()
            self.sampling_settings.update(sigma_data=0.5, sigma_max=80.0, sigma_min=0.002)
            return model_base.ModelType.EDM
        if "edm_vpred.sigma_max" in state_dict:
            self.sampling_settings["sigma_max"] = float(state_dict["edm_vpred.sigma_max"].item())
            if "edm_vpred.sigma_min" in state_dict:
                self.sampling_settings["sigma_min"] = float(state_dict["edm_vpred.sigma_min"].item())
            return model_base.ModelType.V_PREDICTION_EDM
        if "v_pred" in state_dict:
            if "ztsnr" in state_dict:
                self.sampling_settings["zsnr"] = True
            return model_base.ModelType.V_PREDICTION
        return model_base.ModelType.EPS


class SDXLRefiner(BASE):
    unet_config = {
        "model_channels": 384, "use_linear_in_transformer": True, "context_dim": 1280, "adm_in_channels": 2560,
        "transformer_depth": [0, 0, 4, 4, 4, 4, 0, 0], "use_temporal_attention": False,
    }
    latent_format = formats.SDXL
    memory_usage_factor = 1.0
    fresco_base = "SDXLRefiner"


LotusD = _family("LotusD", SD20, unet_config={**_SD20, "adm_in_channels": 4}, fresco_base="LotusD", fresco_type="IMG_TO_IMG")
Stable_Zero123 = _family(
    "Stable_Zero123", unet_config={**_SD15, "in_channels": 8}, unet_extra_config=_SD15_HEADS, latent_format=formats.SD15,
    required_keys={"cc_projection.weight": None, "cc_projection.bias": None}, clip_vision_prefix="cond_stage_model.model.visual.",
    fresco_base="Stable_Zero123",
)
SD15_instructpix2pix = _family("SD15_instructpix2pix", SD15, unet_config={**_SD15, "in_channels": 8}, fresco_base="SD15_instructpix2pix")
models += [SD15, SD20]
SD21UnclipL = _family(
    "SD21UnclipL", SD20, unet_config={**_SD20, "adm_in_channels": 1536}, clip_vision_prefix="embedder.model.visual.",
    noise_aug_config={"noise_schedule_config": {"timesteps": 1000, "beta_schedule": "squaredcos_cap_v2"}, "timestep_dim": 768},
    fresco_base="SD21UNCLIP",
)
SD21UnclipH = _family(
    "SD21UnclipH", SD20, unet_config={**_SD20, "adm_in_channels": 2048}, clip_vision_prefix="embedder.model.visual.",
    noise_aug_config={"noise_schedule_config": {"timesteps": 1000, "beta_schedule": "squaredcos_cap_v2"}, "timestep_dim": 1024},
    fresco_base="SD21UNCLIP",
)
SDXL_instructpix2pix = _family("SDXL_instructpix2pix", SDXL, unet_config={**_SDXL, "in_channels": 8}, fresco_base="SDXL_instructpix2pix")
models += [SDXLRefiner, SDXL]
for _name, _depths in (
    ("SSD1B", [0, 0, 2, 2, 4, 4]), ("KOALA_700M", [0, 2, 5]), ("KOALA_1B", [0, 2, 6]), ("Segmind_Vega", [0, 0, 1, 1, 2, 2]),
):
    globals()[_name] = _family(_name, SDXL, unet_config={**_SDXL, "transformer_depth": _depths})
SD_X4Upscaler = _family(
    "SD_X4Upscaler", SD20,
    unet_config={
        "context_dim": 1024, "model_channels": 256, "in_channels": 7, "use_linear_in_transformer": True, "adm_in_channels": None,
        "use_temporal_attention": False,
    },
    unet_extra_config={"disable_self_attentions": [True, True, True, False], "num_classes": 1000, "num_heads": 8, "num_head_channels": -1},
    latent_format=formats.SD_X4, sampling_settings={"linear_start": 0.0001, "linear_end": 0.02}, fresco_base="SD_X4Upscaler",
)
Stable_Cascade_C = _family(
    "Stable_Cascade_C", unet_config={"stable_cascade_stage": "c"}, unet_extra_config={}, latent_format=formats.SC_Prior,
    sampling_settings={"shift": 2.0}, vae_key_prefix=["vae."], text_encoder_key_prefix=["text_encoder."],
    clip_vision_prefix="clip_l_vision.", fresco_base="StableCascade_C", fresco_type="STABLE_CASCADE",
)
Stable_Cascade_B = _family(
    "Stable_Cascade_B", Stable_Cascade_C, unet_config={"stable_cascade_stage": "b"}, latent_format=formats.SC_B,
    sampling_settings={"shift": 1.0}, clip_vision_prefix=None, fresco_base="StableCascade_B",
)
SVD_img2vid = _family(
    "SVD_img2vid", listed=False, unet_config=_SVD, latent_format=formats.SD15, sampling_settings={"sigma_max": 700.0, "sigma_min": 0.002},
    clip_vision_prefix="conditioner.embedders.0.open_clip.model.visual.", fresco_base="SVD_img2vid", fresco_type="V_PREDICTION_EDM",
)
SV3D_u = _family("SV3D_u", SVD_img2vid, unet_config={**_SVD, "adm_in_channels": 256}, fresco_base="SV3D_u")
SV3D_p = _family("SV3D_p", SV3D_u, unet_config={**_SVD, "adm_in_channels": 1280}, fresco_base="SV3D_p")

# Transformers


def _transformer(name, image_model, latent, sampling, base, parent=BASE, more=None, **facts):
    given = {
        "unet_config": {"image_model": image_model, **(more or {})}, "unet_extra_config": {}, "latent_format": latent,
        "sampling_settings": sampling, "vae_key_prefix": ["vae."], "text_encoder_key_prefix": ["text_encoders."], "fresco_base": base,
        "fresco_type": "FLOW", **facts,
    }
    return _family(name, parent, **given)


_FLUX = {"fresco_type": "FLUX", "memory_usage_factor": 3.1, "supported_inference_dtypes": _BRAIN_FIRST}
SD3 = _family(
    "SD3", unet_config={"in_channels": 16, "pos_embed_scaling_factor": None}, unet_extra_config={}, sampling_settings={"shift": 3.0},
    latent_format=formats.SD3, memory_usage_factor=1.6, text_encoder_key_prefix=["text_encoders."], fresco_base="SD3", fresco_type="FLOW",
)
StableAudio = _family(
    "StableAudio", unet_config={"audio_model": "dit1.0"}, unet_extra_config={}, latent_format=formats.StableAudio1,
    sampling_settings={"sigma_max": 500.0, "sigma_min": 0.03}, vae_key_prefix=["pretransform.model."],
    text_encoder_key_prefix=["text_encoders."], fresco_base="StableAudio1", fresco_type="V_PREDICTION_CONTINUOUS",
)
AuraFlow = _family(
    "AuraFlow", unet_config={"cond_seq_dim": 2048}, unet_extra_config={}, sampling_settings={"multiplier": 1.0, "shift": 1.73},
    latent_format=formats.SDXL, vae_key_prefix=["vae."], text_encoder_key_prefix=["text_encoders."], fresco_base="AuraFlow",
    fresco_type="FLOW",
)
_PIXART = {"beta_schedule": "sqrt_linear", "linear_start": 0.0001, "linear_end": 0.02, "timesteps": 1000}
PixArtAlpha = _transformer("PixArtAlpha", "pixart_alpha", formats.SD15, _PIXART, "PixArt", fresco_type="EPS", memory_usage_factor=0.5)
PixArtSigma = _transformer("PixArtSigma", "pixart_sigma", formats.SDXL, _PIXART, "PixArt", fresco_type="EPS", memory_usage_factor=0.5)
HunyuanDiT = _transformer(
    "HunyuanDiT", "hydit", formats.SDXL, {"linear_start": 0.00085, "linear_end": 0.018}, "HunyuanDiT", fresco_type="V_PREDICTION",
    memory_usage_factor=1.3,
)
HunyuanDiT1 = _transformer(
    "HunyuanDiT1", "hydit1", formats.SDXL, {"linear_start": 0.00085, "linear_end": 0.03}, "HunyuanDiT", HunyuanDiT,
    fresco_type="V_PREDICTION", memory_usage_factor=1.3,
)
Flux = _transformer("Flux", "flux", formats.Flux, {}, "Flux", listed=False, more={"guidance_embed": True}, **_FLUX)
FluxInpaint = _transformer(
    "FluxInpaint", "flux", formats.Flux, {}, "Flux", Flux, more={"guidance_embed": True, "in_channels": 96},
    **{**_FLUX, "supported_inference_dtypes": _BRAIN},
)
models.append(Flux)
FluxSchnell = _transformer(
    "FluxSchnell", "flux", formats.Flux, {"shift": 1.0, "multiplier": 1.0}, "Flux", Flux, more={"guidance_embed": False},
    **{**_FLUX, "fresco_type": "FLOW"},
)
GenmoMochi = _transformer("GenmoMochi", "mochi_preview", formats.Mochi, {"multiplier": 1.0, "shift": 6.0}, "GenmoMochi")
LTXV = _transformer("LTXV", "ltxv", formats.LTXV, {"shift": 2.37}, "LTXV", fresco_type="FLUX", memory_usage_factor=5.5)
LTXAV = _transformer("LTXAV", "ltxav", formats.LTXAV, {"shift": 2.37}, "LTXAV", LTXV, fresco_type="FLUX", memory_usage_factor=5.5)
_HUNYUAN = {"shift": 7.0}
# Before those whose settings it has too.
HunyuanVideo15 = _transformer(
    "HunyuanVideo15", "hunyuan_video", formats.HunyuanVideo15, _HUNYUAN, "HunyuanVideo15", more={"vision_in_dim": 1152},
)
HunyuanImage21 = _transformer(
    "HunyuanImage21", "hunyuan_video", formats.HunyuanImage21, {"shift": 5.0}, "HunyuanImage21", more={"vec_in_dim": None, "in_channels": 64},
)
HunyuanImage21Refiner = _transformer(
    "HunyuanImage21Refiner", "hunyuan_video", formats.HunyuanImage21Refiner, {"shift": 4.0}, "HunyuanImage21Refiner",
    more={"patch_size": [1, 1, 1], "vec_in_dim": None},
)
HunyuanVideo = _transformer("HunyuanVideo", "hunyuan_video", formats.HunyuanVideo, _HUNYUAN, "HunyuanVideo", listed=False)
HunyuanVideoSkyreelsI2V = _transformer(
    "HunyuanVideoSkyreelsI2V", "hunyuan_video", formats.HunyuanVideo, _HUNYUAN, "HunyuanVideoSkyreelsI2V", HunyuanVideo,
    more={"in_channels": 32},
)
HunyuanVideoI2V = _transformer(
    "HunyuanVideoI2V", "hunyuan_video", formats.HunyuanVideo, _HUNYUAN, "HunyuanVideoI2V", HunyuanVideo, more={"in_channels": 33},
)
models.append(HunyuanVideo)
_COSMOS = {"sigma_data": 0.5, "sigma_max": 80.0, "sigma_min": 0.002}
CosmosT2V = _transformer(
    "CosmosT2V", "cosmos", formats.Cosmos1CV8x8x8, _COSMOS, "CosmosVideo", more={"in_channels": 16}, fresco_type="EDM",
    memory_usage_factor=1.6,
)
CosmosI2V = _transformer(
    "CosmosI2V", "cosmos", formats.Cosmos1CV8x8x8, _COSMOS, "CosmosVideo", CosmosT2V, more={"in_channels": 17}, fresco_type="EDM",
    memory_usage_factor=1.6,
)
_PREDICT2 = {"sigma_data": 1.0, "sigma_max": 80.0, "sigma_min": 0.002}
CosmosT2IPredict2 = _transformer(
    "CosmosT2IPredict2", "cosmos_predict2", formats.Wan21, _PREDICT2, "CosmosPredict2", more={"in_channels": 16},
    fresco_type="FLOW_COSMOS",
)
CosmosI2VPredict2 = _transformer(
    "CosmosI2VPredict2", "cosmos_predict2", formats.Wan21, _PREDICT2, "CosmosPredict2", CosmosT2IPredict2, more={"in_channels": 17},
    fresco_type="FLOW_COSMOS",
)
Lumina2 = _transformer(
    "Lumina2", "lumina2", formats.Flux, {"multiplier": 1.0, "shift": 6.0}, "Lumina2", listed=False, memory_usage_factor=1.4,
    supported_inference_dtypes=_BRAIN,
)
ZImage = _transformer(
    "ZImage", "lumina2", formats.Flux, {"multiplier": 1.0, "shift": 3.0}, "Lumina2", Lumina2, more={"dim": 3840},
    memory_usage_factor=2.0, supported_inference_dtypes=_BRAIN,
)
models.append(Lumina2)
_WAN = {"shift": 8.0}
WAN21_T2V = _transformer("WAN21_T2V", "wan2.1", formats.Wan21, _WAN, "WAN21", listed=False, more={"model_type": "t2v"})


def _wan(name, model_type, base, latent=formats.Wan21, **more):
    return _transformer(name, "wan2.1", latent, _WAN, base, WAN21_T2V, more={"model_type": model_type, **more})


WAN22_T2V = _wan("WAN22_T2V", "t2v", "WAN22", formats.Wan22, out_dim=48)
models.append(WAN21_T2V)
WAN21_I2V = _wan("WAN21_I2V", "i2v", "WAN21", in_dim=36)
WAN21_FunControl2V = _wan("WAN21_FunControl2V", "i2v", "WAN21", in_dim=48)
WAN21_Vace = _wan("WAN21_Vace", "vace", "WAN21_Vace")
WAN21_Camera = _wan("WAN21_Camera", "camera", "WAN21_Camera", in_dim=32)
WAN22_Camera = _wan("WAN22_Camera", "camera_2.2", "WAN21_Camera", in_dim=36)
WAN22_S2V = _wan("WAN22_S2V", "s2v", "WAN22_S2V")
WAN21_HuMo = _wan("WAN21_HuMo", "humo", "WAN21_HuMo")
WAN22_Animate = _wan("WAN22_Animate", "animate", "WAN22_Animate")
Hunyuan3Dv2 = _transformer("Hunyuan3Dv2", "hunyuan3d2", formats.Hunyuan3Dv2, {"multiplier": 1.0, "shift": 1.0}, "Hunyuan3Dv2")
Hunyuan3Dv2_1 = _transformer("Hunyuan3Dv2_1", "hunyuan3d2_1", formats.Hunyuan3Dv2_1, {"multiplier": 1.0, "shift": 1.0}, "Hunyuan3Dv2")
HiDream = _transformer("HiDream", "hidream", formats.Flux, {"shift": 3.0}, "HiDream", supported_inference_dtypes=_BRAIN)
Chroma = _transformer("Chroma", "chroma", formats.Flux, {"multiplier": 1.0}, "Chroma", memory_usage_factor=3.2)
ChromaRadiance = _transformer(
    "ChromaRadiance", "chroma_radiance", formats.ChromaRadiance, {"multiplier": 1.0}, "ChromaRadiance", Chroma, memory_usage_factor=0.044,
)
ACEStep = _family(
    "ACEStep", unet_config={"audio_model": "ace"}, unet_extra_config={}, sampling_settings={"shift": 3.0}, latent_format=formats.ACEAudio,
    vae_key_prefix=["vae."], text_encoder_key_prefix=["text_encoders."], fresco_base="ACEStep", fresco_type="FLOW",
)
Omnigen2 = _transformer("Omnigen2", "omnigen2", formats.Flux, {"multiplier": 1.0, "shift": 2.6}, "Omnigen2")
QwenImage = _transformer(
    "QwenImage", "qwen_image", formats.Wan21, {"multiplier": 1.0, "shift": 1.15}, "QwenImage", fresco_type="FLUX", memory_usage_factor=1.8,
    supported_inference_dtypes=_BRAIN,
)
Flux2 = _transformer(
    "Flux2", "flux2", formats.Flux2, {"shift": 2.02}, "Flux2", fresco_type="FLUX", memory_usage_factor=29.264,
    supported_inference_dtypes=_BRAIN_FIRST,
)
Kandinsky5 = _transformer("Kandinsky5", "kandinsky5", formats.HunyuanVideo, {"shift": 10.0}, "Kandinsky5")
Kandinsky5Image = _transformer("Kandinsky5Image", "kandinsky5", formats.Flux, {"shift": 3.0}, "Kandinsky5Image", listed=False)
models.append(SVD_img2vid)

__getattr__ = fallback(__name__)
__all__ = ["model_base", "supported_models_base"]
