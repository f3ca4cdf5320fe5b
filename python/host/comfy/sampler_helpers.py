"""Small things around sampling."""

import uuid

from fresco_host.placeholders import fallback


def convert_cond(cond):
    converted = []
    for entry in cond:
        options = entry[1].copy()
        if entry[0] is not None:
            options["cross_attn"] = entry[0]
        options["uuid"] = uuid.uuid4()
        converted.append(options)
    return converted


def prepare_mask(noise_mask, shape, device):
    import comfy.utils

    return comfy.utils.reshape_mask(noise_mask, shape).to(device)


def get_models_from_cond(cond, model_type):
    return [entry[model_type] for entry in cond if model_type in entry]


def cleanup_models(conds, models):
    return None


cleanup_additional_models = cleanup_models
__getattr__ = fallback(__name__)
