"""Small things that packs take from their host."""

import hashlib


def conditioning_set_values(conditioning, values={}, append=False):
    changed = []
    for entry in conditioning:
        options = entry[1].copy()
        for key, value in values.items():
            if append and key in options and options[key] is not None:
                value = options[key] + value
            options[key] = value
        changed.append([entry[0], options])
    return changed


def pillow(fn, arg):
    from PIL import ImageFile, UnidentifiedImageError

    before = ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        return fn(arg)
    except (OSError, UnidentifiedImageError, ValueError):
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        return fn(arg)
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def hasher():
    return hashlib.sha256


def string_to_torch_dtype(string):
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}.get(string)


def image_alpha_fix(destination, source):
    import torch

    if destination.shape[-1] < source.shape[-1]:
        source = source[..., : destination.shape[-1]]
    elif destination.shape[-1] > source.shape[-1]:
        destination = torch.nn.functional.pad(destination, (0, 1))
        destination[..., -1] = 1.0
    return destination, source
