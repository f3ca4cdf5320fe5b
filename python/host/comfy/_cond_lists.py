"""Lists of conditionings as samplers prepare and batch them; `comfy.samplers` has these under its name.

A conditioning is a dictionary here, as `comfy.sampler_helpers.convert_cond` makes it.
"""

import collections
import math

cond_obj = collections.namedtuple("cond_obj", ["input_x", "mult", "conditioning", "area", "control", "patches", "uuid", "hooks"])
# Rows along which the edge of an area fades, at most.
_FEATHER = 8


def add_area_dims(area, num_dims):
    """Sizes and places of more dimensions: what is not told is whole."""
    while len(area) // 2 < num_dims:
        area = [2147483648, *area[: len(area) // 2], 0, *area[len(area) // 2 :]]
    return area


def get_area_and_mult(conds, x_in, timestep_in):
    """The part of a latent that a conditioning sees, and its weights there. None where it does not hold at this noise level."""
    import torch

    dims = tuple(x_in.shape[2:])
    level = timestep_in[0]
    if "timestep_start" in conds and level > conds["timestep_start"]:
        return None
    if "timestep_end" in conds and level < conds["timestep_end"]:
        return None
    area, strength = conds.get("area"), conds.get("strength", 1.0)
    input_x = x_in
    if area is not None:
        area = list(area) if len(area) == 2 * len(dims) else list(add_area_dims(area, len(dims)))
        for i, size in enumerate(dims):
            area[i] = min(size - area[len(dims) + i], area[i])
            input_x = input_x.narrow(i + 2, area[len(dims) + i], area[i])
        area = tuple(area)
    if conds.get("mask") is not None:
        mask = conds["mask"]
        if mask.shape[1:] != x_in.shape[2:]:
            raise ValueError(f"a mask of {list(mask.shape[1:])} does not fit a latent of {list(x_in.shape[2:])}")
        mask = mask[: input_x.shape[0]]
        if area is not None:
            for i in range(len(dims)):
                mask = mask.narrow(i + 1, area[len(dims) + i], area[i])
        mask = mask * conds.get("mask_strength", 1.0)
        mask = mask.unsqueeze(1).repeat((input_x.shape[0] // mask.shape[0], input_x.shape[1]) + (1,) * (mask.ndim - 1))
    else:
        mask = torch.ones_like(input_x)
    mult = mask * strength
    if conds.get("mask") is None and area is not None:
        for i, size in enumerate(dims):
            here, start = area[i], area[len(dims) + i]
            rows = min(_FEATHER, here // 4)
            for t in range(rows):
                if start != 0:
                    mult.narrow(i + 2, t, 1).mul_((t + 1) / rows)
                if start + here < size:
                    mult.narrow(i + 2, here - 1 - t, 1).mul_((t + 1) / rows)
    processed = {
        name: cond.process_cond(batch_size=x_in.shape[0], area=area, device=x_in.device)
        for name, cond in conds.get("model_conds", {}).items()
    }
    patches = None
    if conds.get("gligen") is not None:
        kind, model, positions = conds["gligen"][:3]
        made = model.model.set_position if kind == "position" else model.model.set_empty
        patches = {"middle_patch": [made(input_x.shape, positions, input_x.device)]}
    return cond_obj(input_x, mult, processed, area, conds.get("control"), patches, conds.get("uuid"), conds.get("hooks"))


def cond_equal_size(c1, c2):
    """Whether what two conditionings give to a network goes into one batch."""
    if c1 is c2:
        return True
    return c1.keys() == c2.keys() and all(c1[name].can_concat(c2[name]) for name in c1)


def can_concat_cond(c1, c2):
    if c1.input_x.shape != c2.input_x.shape:
        return False
    if c1.control is not c2.control or c1.patches is not c2.patches:
        return False
    return cond_equal_size(c1.conditioning, c2.conditioning)


def cond_cat(c_list):
    """What a network is given for a batch of conditionings."""
    names = dict.fromkeys(name for each in c_list for name in each)
    made = {}
    for name in names:
        parts = [each[name] for each in c_list if name in each]
        made[name] = parts[0].concat(parts[1:])
    return made


def get_mask_aabb(masks):
    """The box around what a mask of each item shows, and whether it shows nothing."""
    import torch

    boxes = torch.zeros((masks.shape[0], 4), device=masks.device, dtype=torch.int)
    empty = torch.zeros((masks.shape[0],), device=masks.device, dtype=torch.bool)
    for i, mask in enumerate(masks):
        y, x = torch.where(mask)
        if len(x) == 0:
            empty[i] = True
        else:
            boxes[i] = torch.stack([x.min(), y.min(), x.max(), y.max()])
    return boxes, empty


def resolve_areas_and_cond_masks_multidim(conditions, dims, device):
    """Areas in cells and masks of the size of a latent. The list is changed, its conditionings are not."""
    import torch

    import comfy.utils

    for place, cond in enumerate(conditions):
        area = cond.get("area")
        if area is not None and area[0] == "percentage":
            parts = area[1:]
            count = len(parts) // 2
            sizes = [max(1, round(parts[i] * dims[i])) for i in range(count)]
            cond = {**cond, "area": (*sizes, *(round(parts[count + i] * dims[i]) for i in range(count)))}
        mask = cond.get("mask")
        if mask is not None:
            cond = dict(cond)
            mask = mask.to(device=device)
            if len(mask.shape) == len(dims):
                mask = mask.unsqueeze(0)
            if tuple(mask.shape[1:]) != tuple(dims):
                if len(dims) == 2:
                    mask = comfy.utils.common_upscale(mask.unsqueeze(1), dims[-1], dims[-2], "bilinear", "none").squeeze(1)
                else:
                    mask = comfy.utils.reshape_mask(mask, mask.shape[:1] + (1,) + tuple(dims)).squeeze(1)
            if cond.get("set_area_to_bounds", False) and len(dims) == 2:
                boxes, empty = get_mask_aabb(torch.max(torch.abs(mask), dim=0).values.unsqueeze(0))
                if empty[0]:
                    # No area of nothing: a network has its least size.
                    cond["area"] = (8, 8, 0, 0)
                else:
                    left, top, right, bottom = (int(side) for side in boxes[0])
                    cond["area"] = (max(8, bottom - top + 1), max(8, right - left + 1), top, left)
            cond["mask"] = mask
        conditions[place] = cond


def resolve_areas_and_cond_masks(conditions, h, w, device):
    return resolve_areas_and_cond_masks_multidim(conditions, [h, w], device)


def calculate_start_end_timesteps(model, conds):
    """Parts of the steps as noise levels. The list is changed, its conditionings are not."""
    sampling = model.model_sampling
    for place, cond in enumerate(conds):
        starts = [sampling.percent_to_sigma(cond[name]) for name in ("start_percent", "clip_start_percent") if name in cond]
        ends = [sampling.percent_to_sigma(cond[name]) for name in ("end_percent", "clip_end_percent") if name in cond]
        if starts or ends:
            cond = dict(cond)
            # Within both of its ranges.
            if starts:
                cond["timestep_start"] = min(starts)
            if ends:
                cond["timestep_end"] = max(ends)
            conds[place] = cond


def pre_run_control(model, conds):
    sampling = model.model_sampling
    for cond in conds:
        if "control" in cond:
            cond["control"].pre_run(model, lambda percent: sampling.percent_to_sigma(percent))


def create_cond_with_same_area_if_none(conds, c):
    """Adds to a list what it lacks: a conditioning for the area of another list's."""
    if "area" not in c:
        return

    def inside(area, other):
        count = len(area) // 2
        return all(
            area[count + i] >= other[count + i] and area[i] + area[count + i] <= other[i] + other[count + i] for i in range(count)
        )

    area, smallest = c["area"], None
    for cond in conds:
        if "area" in cond:
            if cond["area"] == area:
                return
            if inside(area, cond["area"]) and (
                smallest is None or "area" not in smallest or math.prod(cond["area"][: len(area) // 2])
                < math.prod(smallest["area"][: len(area) // 2])
            ):
                smallest = cond
        elif smallest is None:
            smallest = cond
    if smallest is None:
        return
    if "area" in smallest and smallest["area"] == area:
        return
    conds.append({**c, "model_conds": smallest["model_conds"]})


def apply_empty_x_to_equal_area(conds, uncond, name, uncond_fill_func):
    """Gives what positive conditionings without an area have to negative ones without one, where none has its own."""
    given = [cond[name] for cond in conds if "area" not in cond and cond.get(name) is not None]
    places = [place for place, cond in enumerate(uncond) if "area" not in cond]
    if any(cond.get(name) is not None for cond in uncond if "area" not in cond):
        return
    for turn in range(len(given) if places else 0):
        place = places[turn % len(places)]
        if turn < len(places):
            uncond[place] = {**uncond[place], name: uncond_fill_func(given, turn)}
        else:
            uncond.append({**uncond[place], name: uncond_fill_func(given, turn)})


def encode_model_conds(model_function, conds, noise, device, prompt_type, **kwargs):
    """Asks a network's function what it takes of each conditioning."""
    for place, cond in enumerate(conds):
        given = {**cond, "device": device, "noise": noise}
        if len(noise.shape) >= 4:
            given.setdefault("width", noise.shape[3] * 8)
        given.setdefault("height", noise.shape[2] * 8)
        given.setdefault("prompt_type", prompt_type)
        for name, value in kwargs.items():
            given.setdefault(name, value)
        conds[place] = {**cond, "model_conds": {**cond.get("model_conds", {}), **model_function(**given)}}
    return conds


def process_conds(model, noise, conds, device, latent_image=None, denoise_mask=None, seed=None, latent_shapes=None):
    """All lists ready to be batched."""
    import comfy.utils

    conds = {name: list(conds[name]) for name in conds}
    if latent_shapes is None:
        latent_shapes = [noise.shape]
    for name in conds:
        resolve_areas_and_cond_masks_multidim(conds[name], latent_shapes[0][2:], device)
        calculate_start_end_timesteps(model, conds[name])
    if hasattr(model, "extra_conds"):
        shown = comfy.utils.unpack_latents(noise, latent_shapes)[0] if len(latent_shapes) > 1 else noise
        for name in conds:
            conds[name] = encode_model_conds(
                model.extra_conds, conds[name], shown, device, name, latent_image=latent_image, denoise_mask=denoise_mask,
                seed=seed, latent_shapes=latent_shapes,
            )
    # Each area is computed for every list.
    for name in conds:
        for cond in list(conds[name]):
            for other in conds:
                if other != name:
                    create_cond_with_same_area_if_none(conds[other], cond)
    for name in conds:
        pre_run_control(model, conds[name])
    if "positive" in conds:
        positive = conds["positive"]
        for name in conds:
            if name == "positive":
                continue
            to_all = [cond for cond in positive if cond.get("control_apply_to_uncond", False)]
            apply_empty_x_to_equal_area(to_all, conds[name], "control", lambda given, turn: given[turn])
            apply_empty_x_to_equal_area(positive, conds[name], "gligen", lambda given, turn: given[turn])
    return conds
