"""Asks the host for names while it is imported, as packs do: with `hasattr`, to subclass, to keep, to put something in place."""

import sys

# Before anything is imported here: what the host has imported already.
BEFORE = [name for name in ("numpy", "PIL.Image", "aiohttp") if name in sys.modules]

import comfy  # noqa: E402
import execution  # noqa: E402
import folder_paths  # noqa: E402
import latent_preview  # noqa: E402
import node_helpers  # noqa: E402
import nodes  # noqa: E402
import server  # noqa: E402
from comfy_extras import nodes_differential_diffusion, nodes_mask  # noqa: E402
from comfy_extras.nodes_custom_sampler import Guider_Basic, Noise_EmptyNoise, Noise_RandomNoise  # noqa: E402
from comfy_extras.nodes_perpneg import Guider_PerpNeg  # noqa: E402

HOST = [
    comfy, comfy.clip_vision, comfy.conds, comfy.controlnet, comfy.hooks, comfy.k_diffusion.sampling, comfy.latent_formats,
    comfy.ldm.flux.model, comfy.ldm.modules.attention, comfy.lora, comfy.model_base, comfy.model_management, comfy.model_patcher,
    comfy.ops, comfy.sample, comfy.samplers, comfy.sd, comfy.sd1_clip, comfy.supported_models, comfy.taesd, comfy.text_encoders,
    comfy.utils, execution, folder_paths, latent_preview, node_helpers, nodes, server, nodes_mask,
]
INVENTED = [module.__name__ for module in HOST if hasattr(module, "no_such_name") or hasattr(module, "sample_no_such_name")]

# VideoHelperSuite's way of sharing a table between packs.
if not hasattr(nodes, "VHSLoadFormats"):
    nodes.VHSLoadFormats = {}

# Kept for later, or replaced.
KEPT = [
    execution.PromptExecutor.handle_execution_error,
    comfy.ldm.flux.model.Flux.forward,
    comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel.forward,
    comfy.model_base.BaseModel.apply_model,
    comfy.ldm.anima, comfy.ldm.cosmos.predict2, comfy.ldm.lightricks.av_model, comfy.memory_management,
]
comfy.ldm.flux.model.Flux.forward = lambda *args: None


class OwnModel(comfy.ldm.hidream.model.HiDreamImageTransformer2DModel):
    pass


class OwnGuider(Guider_PerpNeg):
    pass


def words(use):
    try:
        return f"worked: {use()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class AsksReport:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self):
        noise = Noise_RandomNoise(7)
        report = {
            "before": BEFORE,
            "invented": INVENTED,
            "formats": sorted(nodes.VHSLoadFormats.keys()),
            "endings": sorted(comfy.k_diffusion.utils.FolderOfImages.IMG_EXTENSIONS),
            "built": words(OwnModel),
            "called": words(lambda: comfy.ldm.hidream.model.HiDreamAttention(1)),
            "is": isinstance(self, (comfy.ldm.hidream.model.HiDreamAttention, OwnModel)),
            "seeds": [noise.seed, Noise_EmptyNoise().seed],
            "classes": [
                list(nodes_mask.MaskComposite.RETURN_TYPES) == ["MASK"],
                list(nodes_differential_diffusion.DifferentialDiffusion.RETURN_TYPES) == ["MODEL"],
                issubclass(Guider_Basic, comfy.samplers.CFGGuider) and issubclass(OwnGuider, Guider_PerpNeg),
            ],
            "alias": comfy.samplers.k_diffusion_sampling is comfy.k_diffusion.sampling,
        }
        return {"ui": {"report": [report]}}


NODE_CLASS_MAPPINGS = {"AsksReport": AsksReport}
