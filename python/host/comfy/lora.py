"""LoRA in tensors: names of weights, the forms of changes, and how a change is put onto a weight."""

from fresco_host.models import Model, method
from fresco_host.placeholders import fallback


def _names(value, key_map):
    for name, key, *part in method("weights.names", value=value):
        key_map[name] = (key, tuple(part)) if part else key
    return key_map


def model_lora_keys_unet(model, key_map={}):
    patcher = getattr(model, "fresco_patcher", model)
    return _names(patcher, key_map)


def model_lora_keys_clip(model, key_map={}):
    return _names(getattr(model, "fresco_patcher", model), key_map)


def _spelled(lora, name):
    """The two matrices of a LoRA, by whichever names its trainer gave them."""
    for up, down, mid in (
        ("{}.lora_up.weight", "{}.lora_down.weight", "{}.lora_mid.weight"),
        ("{}_lora.up.weight", "{}_lora.down.weight", None),
        ("{}.lora_B.weight", "{}.lora_A.weight", None),
        ("{}.lora_linear_layer.up.weight", "{}.lora_linear_layer.down.weight", None),
        ("{}.lora_B", "{}.lora_A", None),
        ("{}.lora.up.weight", "{}.lora.down.weight", None),
    ):
        if up.format(name) in lora and down.format(name) in lora:
            return up.format(name), down.format(name), mid.format(name) if mid and mid.format(name) in lora else None
    return None


def load_lora(lora, to_load, log_missing=True):
    """Changes by key, in the forms that `add_patches` takes."""
    changes, used = {}, set()

    def take(name):
        if name not in lora:
            return None
        used.add(name)
        return lora[name]

    for name, key in to_load.items():
        alpha = take(f"{name}.alpha")
        alpha = float(alpha.item()) if alpha is not None and hasattr(alpha, "item") else alpha
        dora = take(f"{name}.dora_scale")
        reshape = take(f"{name}.reshape_weight")
        pair = _spelled(lora, name)
        if pair is not None:
            mid = take(pair[2]) if pair[2] else None
            shape = [int(side) for side in reshape.tolist()] if reshape is not None else None
            changes[key] = ("lora", (take(pair[0]), take(pair[1]), alpha, mid, dora, shape))
        elif f"{name}.hada_w1_a" in lora:
            parts = [take(f"{name}.hada_{part}") for part in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")]
            changes[key] = ("loha", (parts[0], parts[1], alpha, parts[2], parts[3], parts[4], parts[5], dora))
        elif f"{name}.lokr_w1" in lora or f"{name}.lokr_w1_a" in lora:
            parts = [take(f"{name}.lokr_{part}") for part in ("w1", "w2", "w1_a", "w1_b", "w2_a", "w2_b", "t2")]
            changes[key] = ("lokr", (parts[0], parts[1], alpha, *parts[2:], dora))
        elif f"{name}.a1.weight" in lora:
            parts = [take(f"{name}.{part}.weight") for part in ("a1", "a2", "b1", "b2")]
            changes[key] = ("glora", (*parts, alpha, dora))
        for ending, kind in ((".w_norm", "diff"), (".diff", "diff"), (".set_weight", "set")):
            value = take(name + ending)
            if value is not None:
                changes[key] = (kind, (value,))
        place = key if isinstance(key, str) else key[0]
        if place.endswith(".weight"):
            for ending in (".b_norm", ".diff_b"):
                value = take(name + ending)
                if value is not None:
                    changes[place[: -len(".weight")] + ".bias"] = ("diff", (value,))
    if log_missing:
        import logging

        for name in lora:
            if name not in used:
                logging.getLogger("fresco").warning("lora key not loaded: %s", name)
    return changes


def calculate_weight(patches, weight, key, intermediate_dtype=None, original_weights=None):
    """A weight with changes of the forms diff, set and lora, for modules that a pack has itself."""
    for strength, value, strength_model, offset, function in patches:
        from fresco_host.models import _kind_of_patch

        kind, parts = _kind_of_patch(value)
        if strength_model != 1.0:
            weight = weight * strength_model
        if kind == "set":
            weight = parts[0].to(weight.dtype)
            continue
        if kind == "diff":
            change = parts[0]
        elif kind == "lora":
            up, down, alpha = parts[0], parts[1], parts[2]
            scale = alpha / down.shape[0] if alpha is not None else 1.0
            change = (up.flatten(start_dim=1) @ down.flatten(start_dim=1)).reshape(weight.shape) * scale
        else:
            from fresco_host import Unsupported

            raise Unsupported(f"comfy.lora.calculate_weight: changes of the kind {kind} are merged by Fresco only")
        if offset is not None:
            weight.narrow(*offset).add_(change.to(weight.dtype) * strength)
        else:
            weight = weight + change.to(weight.dtype) * strength
    return weight


def _patch_module(patcher, patches, strength_patch, strength_model):
    """Changes of a module that a pack has itself: they are put onto its parameters at once."""
    import torch

    own, added = dict(patcher.model.named_parameters()), set()
    with torch.no_grad():
        for key, value in patches.items():
            place = key if isinstance(key, str) else key[0]
            if place in own:
                offset = key[1] if not isinstance(key, str) and len(key) > 1 else None
                changed = calculate_weight([(strength_patch, value, strength_model, offset, None)], own[place].data, place)
                own[place].data.copy_(changed)
                added.add(key)
    return added


__all__ = ["Model"]
__getattr__ = fallback(__name__)
