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


def get_additional_models(conds, dtype):
    """Models beside the network that lists of conditionings bring, and the memory that they need to run."""
    controls, others = [], []
    for cond in conds.values():
        controls += get_models_from_cond(cond, "control")
        others += [entry[1] for entry in get_models_from_cond(cond, "gligen")]
        for more in get_models_from_cond(cond, "additional_models"):
            others += more
    found, needed = [], 0
    for control in dict.fromkeys(controls):
        found += control.get_models()
        # Fresco counts the memory of its own itself.
        asked = getattr(control, "inference_memory_requirements", None)
        needed += asked(dtype) if asked is not None else 0
    return found + others, needed


def cleanup_models(conds, models):
    return None


cleanup_additional_models = cleanup_models
__getattr__ = fallback(__name__)
