"""Models with what packs set on them."""

from fresco_host.models import ModelPatcher
from fresco_host.placeholders import fallback


def set_model_options_patch_replace(model_options, patch, name, block_name, number, transformer_index=None):
    options = model_options.copy()
    inner = options["transformer_options"] = options.get("transformer_options", {}).copy()
    replaced = inner["patches_replace"] = inner.get("patches_replace", {}).copy()
    place = (block_name, number) if transformer_index is None else (block_name, number, transformer_index)
    replaced[name] = {**replaced.get(name, {}), place: patch}
    return options


def set_model_options_post_cfg_function(model_options, post_cfg_function, disable_cfg1_optimization=False):
    model_options["sampler_post_cfg_function"] = model_options.get("sampler_post_cfg_function", []) + [post_cfg_function]
    if disable_cfg1_optimization:
        model_options["disable_cfg1_optimization"] = True
    return model_options


def set_model_options_pre_cfg_function(model_options, pre_cfg_function, disable_cfg1_optimization=False):
    model_options["sampler_pre_cfg_function"] = model_options.get("sampler_pre_cfg_function", []) + [pre_cfg_function]
    if disable_cfg1_optimization:
        model_options["disable_cfg1_optimization"] = True
    return model_options


def create_model_options_clone(orig_model_options):
    from fresco_host.models import _copied

    return _copied(orig_model_options)


__all__ = ["ModelPatcher"]
__getattr__ = fallback(__name__)
