"""Imports everything that packs import from their host, and uses some of it."""

import importlib

MODULES = """folder_paths comfy comfy.model_management comfy.utils nodes server comfy.sd comfy.samplers comfy.model_patcher
latent_preview comfy.cli_args comfy.model_base comfy.sample comfy_api.latest comfy.clip_vision comfy.controlnet
comfy.ldm.modules.attention comfy.lora node_helpers comfy.ops comfy.sampler_helpers comfy.latent_formats
comfy.k_diffusion.sampling comfy.patcher_extension comfy.sdxl_clip comfy_extras.nodes_custom_sampler
comfy_extras.nodes_upscale_model comfy_extras.nodes_model_advanced comfy.comfy_types.node_typing comfy.model_detection
comfy.ldm.modules.diffusionmodules.openaimodel comfy.supported_models comfy_execution.graph comfy_execution.graph_utils execution
comfy.ldm.flux.layers comfy.ldm.lightricks.model comfy.ldm.wan.model comfy_extras.nodes_mask comfy_extras.chainner_models
comfy_extras.chainner_models.model_loading comfy.conds comfy.hooks comfy.model_sampling comfy.cldm.cldm comfy.ldm.common_dit
comfy.ldm.flux.math comfy.ldm.util comfy.supported_models_base comfy.text_encoders.sd3_clip comfy_extras.nodes_align_your_steps
comfy_extras.nodes_clip_sdxl comfy_extras.nodes_gits comfy_extras.nodes_latent comfy_extras.nodes_lt utils.extra_config
comfy.context_windows comfy.diffusers_convert comfy.float comfy.nested_tensor comfy.quant_ops comfy.taesd.taesd
comfy_api.feature_flags comfy_api.torch_helpers comfy_extras.nodes_compositing comfy_extras.nodes_differential_diffusion
comfy_extras.nodes_flux comfy_extras.nodes_hooks comfy_extras.nodes_perpneg comfy_extras.nodes_stable3d comfy_execution.jobs
comfy_execution.progress comfy_execution.utils comfy_execution.validation comfy.comfy_types comfyui_version app.logger
utils.json_util comfy_config.config_parser comfy_api.v0_0_1 comfy_api.v0_0_2 comfy_api.input comfy_api.input_impl comfy_api.util
protocol comfy.options comfy.ldm.modules.attention""".split()
FAILED = []
for name in MODULES:
    try:
        importlib.import_module(name)
    except Exception as error:
        FAILED.append(f"{name}: {error!r}")

import comfy.ldm.modules.attention  # noqa: E402
from comfy.ldm.flux.model import Flux  # noqa: E402


class OwnBlock(comfy.ldm.modules.attention.BasicTransformerBlock):
    """A subclass of something that is not there can be named."""


class SurfaceReport:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self):
        import comfy.model_management as management
        import comfy_api.latest
        import comfy_api.v0_0_2
        import folder_paths
        import node_helpers
        from comfy_execution.jobs import JobStatus, get_outputs_summary

        try:
            import comfy.multigpu  # noqa: F401

            newer = "there"
        except ModuleNotFoundError:
            newer = "ModuleNotFoundError"
        try:
            Flux(1, 2, 3)
            used = "worked"
        except Exception as error:
            used = f"{type(error).__name__}: {error}"
        try:
            OwnBlock(1)
            built = "worked"
        except Exception as error:
            built = type(error).__name__
        cond = [[1, {"a": [1]}]]
        changed = node_helpers.conditioning_set_values(cond, {"a": [2]}, append=True)
        place = folder_paths.get_save_image_path("sub/x_%width%", folder_paths.get_output_directory(), 8, 4)
        jobs = [JobStatus.FAILED, get_outputs_summary({"1": {"images": [{"filename": "a", "type": "output"}], "animated": [True]}})]
        text = {
            "failed": FAILED, "newer": newer, "used": used, "built": built, "cond": [changed, cond],
            "same": comfy_api.latest is comfy_api.v0_0_2, "place": list(place[1:]), "jobs": jobs,
            "state": management.vram_state.name, "free": management.get_free_memory.__name__,
        }
        return {"ui": {"report": [text]}}


NODE_CLASS_MAPPINGS = {"SurfaceReport": SurfaceReport}
