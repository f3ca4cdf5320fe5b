"""Names of the host that exist so that packs can be imported, and say at first use what is not there."""

import importlib.abc
import importlib.machinery
import sys
import types

from . import Unsupported

# Modules that the host has and this process only has the names of.
MODULES = """
comfy.cldm comfy.cldm.cldm comfy.cldm.control_types comfy.cldm.mmdit comfy.checkpoint_pickle comfy.conds
comfy.context_windows  comfy.diffusers_convert comfy.diffusers_load comfy.extra_samplers
comfy.extra_samplers.uni_pc comfy.float comfy.gligen comfy.hooks comfy.k_diffusion comfy.k_diffusion.deis
 comfy.k_diffusion.sa_solver comfy.k_diffusion.utils  comfy.ldm
comfy.ldm.ace comfy.ldm.ace.model comfy.ldm.audio comfy.ldm.audio.dit comfy.ldm.aura comfy.ldm.aura.mmdit
comfy.ldm.cascade comfy.ldm.cascade.common comfy.ldm.cascade.stage_a comfy.ldm.cascade.stage_b
comfy.ldm.cascade.stage_c comfy.ldm.cascade.stage_c_coder comfy.ldm.chroma comfy.ldm.chroma.layers
comfy.ldm.chroma.model comfy.ldm.common_dit comfy.ldm.cosmos comfy.ldm.cosmos.model comfy.ldm.flux
comfy.ldm.flux.controlnet comfy.ldm.flux.layers comfy.ldm.flux.math comfy.ldm.flux.model comfy.ldm.flux.redux
comfy.ldm.genmo comfy.ldm.genmo.joint_model comfy.ldm.genmo.joint_model.asymm_models_joint comfy.ldm.hidream
comfy.ldm.hidream.model comfy.ldm.hunyuan_video comfy.ldm.hunyuan_video.model comfy.ldm.hydit
comfy.ldm.hydit.models comfy.ldm.lightricks comfy.ldm.lightricks.model comfy.ldm.lightricks.symmetric_patchifier
comfy.ldm.lightricks.vae comfy.ldm.lightricks.vae.causal_video_autoencoder comfy.ldm.lumina
comfy.ldm.lumina.model comfy.ldm.models comfy.ldm.models.autoencoder comfy.ldm.modules comfy.ldm.modules.attention
comfy.ldm.modules.diffusionmodules comfy.ldm.modules.diffusionmodules.mmdit
comfy.ldm.modules.diffusionmodules.model comfy.ldm.modules.diffusionmodules.openaimodel
comfy.ldm.modules.diffusionmodules.upscaling comfy.ldm.modules.diffusionmodules.util
comfy.ldm.modules.distributions comfy.ldm.modules.distributions.distributions comfy.ldm.modules.ema
comfy.ldm.modules.encoders comfy.ldm.modules.encoders.noise_aug_modules comfy.ldm.modules.sub_quadratic_attention
comfy.ldm.modules.temporal_ae comfy.ldm.omnigen comfy.ldm.omnigen.omnigen2 comfy.ldm.pixart
comfy.ldm.pixart.blocks comfy.ldm.pixart.pixartms comfy.ldm.qwen_image comfy.ldm.qwen_image.model comfy.ldm.util
comfy.ldm.wan comfy.ldm.wan.model comfy.ldm.wan.vae  comfy.lora_convert 
comfy.model_detection  comfy.nested_tensor comfy.ops  comfy.pixel_space_convert
comfy.quant_ops comfy.rmsnorm  comfy.sd1_clip comfy.sdxl_clip comfy.supported_models
comfy.supported_models_base comfy.t2i_adapter comfy.t2i_adapter.adapter comfy.taesd comfy.taesd.taesd comfy.taesd.taehv
comfy.text_encoders comfy.text_encoders.bert comfy.text_encoders.flux comfy.text_encoders.llama
comfy.text_encoders.sd2_clip comfy.text_encoders.sd3_clip comfy.text_encoders.t5 comfy.text_encoders.spiece_tokenizer
comfy.text_encoders.wan comfy.text_encoders.qwen_image comfy.weight_adapter comfy.weight_adapter.base comfy.weight_adapter.lora
comfy_extras comfy_extras.chainner_models comfy_extras.chainner_models.model_loading comfy_extras.nodes_advanced_samplers
comfy_extras.nodes_align_your_steps comfy_extras.nodes_apg comfy_extras.nodes_attention_multiply
comfy_extras.nodes_audio comfy_extras.nodes_canny comfy_extras.nodes_cfg comfy_extras.nodes_clip_sdxl
comfy_extras.nodes_compositing comfy_extras.nodes_cond comfy_extras.nodes_controlnet comfy_extras.nodes_custom_sampler
comfy_extras.nodes_differential_diffusion comfy_extras.nodes_edit_model comfy_extras.nodes_flux comfy_extras.nodes_freelunch
comfy_extras.nodes_fresca comfy_extras.nodes_gits comfy_extras.nodes_hidream comfy_extras.nodes_hooks
comfy_extras.nodes_hunyuan comfy_extras.nodes_hypernetwork comfy_extras.nodes_hypertile comfy_extras.nodes_images
comfy_extras.nodes_ip2p comfy_extras.nodes_latent comfy_extras.nodes_lora_extract comfy_extras.nodes_lotus comfy_extras.nodes_lt
comfy_extras.nodes_mask comfy_extras.nodes_mochi comfy_extras.nodes_model_advanced comfy_extras.nodes_model_downscale
comfy_extras.nodes_model_merging comfy_extras.nodes_morphology comfy_extras.nodes_optimalsteps comfy_extras.nodes_pag
comfy_extras.nodes_perpneg comfy_extras.nodes_photomaker comfy_extras.nodes_pixart comfy_extras.nodes_post_processing
comfy_extras.nodes_preview_any comfy_extras.nodes_primitive comfy_extras.nodes_qwen comfy_extras.nodes_rebatch
comfy_extras.nodes_sag comfy_extras.nodes_sd3 comfy_extras.nodes_sdupscale comfy_extras.nodes_slg
comfy_extras.nodes_stable3d comfy_extras.nodes_stable_cascade comfy_extras.nodes_string comfy_extras.nodes_tomesd
comfy_extras.nodes_torch_compile comfy_extras.nodes_upscale_model comfy_extras.nodes_video comfy_extras.nodes_video_model
comfy_extras.nodes_wan comfy_extras.nodes_webcam comfy_api.torch_helpers app.user_manager app.model_manager
app.custom_node_manager app.frontend_management app.app_settings app.database app.database.db
""".split()


def _message(place):
    return f"{place} needs a torch model inside the worker (level L3b); Fresco has no such thing in this version"


class _PlaceholderType(type):
    """A class that can be named, subclassed and asked about, and nothing else."""

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise Unsupported(_message(f"{cls.fresco_place}.{name}"))

    def __call__(cls, *args, **kwargs):
        # As a decorator it gives back what it was put on.
        if len(args) == 1 and not kwargs and "fresco_place" in vars(cls) and isinstance(args[0], (type, types.FunctionType)):
            return args[0]
        raise Unsupported(_message(cls.fresco_place))


def placeholder(module, name):
    place = f"{module}.{name}"
    return _PlaceholderType(name, (), {"__module__": module, "fresco_place": place, "fresco_placeholder": True})


def fallback(module):
    """`__getattr__` of a module that has only some of its names."""

    def missing(name):
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        made = placeholder(module, name)
        setattr(sys.modules[module], name, made)
        return made

    return missing


class _Loader(importlib.abc.Loader):
    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        if module.__name__.startswith("comfy_extras."):
            module.__getattr__ = _extra_classes(module.__name__)
        else:
            module.__getattr__ = fallback(module.__name__)


def _extra_classes(module):
    """Classes of the host's further nodes run in the engine."""
    other = fallback(module)

    def missing(name):
        import nodes

        proxy = nodes.fresco_class(module, name)
        return proxy if proxy is not None else other(name)

    return missing


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in _known:
            return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)
        return None


_known = frozenset(MODULES)


def install():
    # Last: a module with a file of ours is that file.
    sys.meta_path.append(_Finder())
