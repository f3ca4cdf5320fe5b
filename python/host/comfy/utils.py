"""Tensors, files and progress."""

import math
import os
import struct

from comfy._clip_names import clip_text_transformers_convert, transformers_convert  # noqa: F401
from fresco_host import state
from fresco_host.diffusers_names import ATTENTIONS as UNET_MAP_ATTENTIONS
from fresco_host.diffusers_names import BASIC as UNET_MAP_BASIC
from fresco_host.diffusers_names import RESNET as UNET_MAP_RESNET
from fresco_host.diffusers_names import TRANSFORMER as TRANSFORMER_BLOCKS
from fresco_host.diffusers_names import unet_to_diffusers
from fresco_host.placeholders import fallback

MMAP_TORCH_FILES = False
DISABLE_MMAP = False
ALWAYS_SAFE_LOAD = True
PROGRESS_BAR_ENABLED = True
PROGRESS_BAR_HOOK = None


def set_progress_bar_enabled(enabled):
    global PROGRESS_BAR_ENABLED
    PROGRESS_BAR_ENABLED = enabled


def set_progress_bar_global_hook(function):
    global PROGRESS_BAR_HOOK
    PROGRESS_BAR_HOOK = function


def _encode_preview(preview):
    import base64
    import io

    kind, image, size = preview
    if size is not None:
        image = image.copy()
        image.thumbnail((size, size))
    buffer = io.BytesIO()
    kind = "PNG" if str(kind).upper() == "PNG" else "JPEG"
    if kind == "JPEG" and image.mode not in ("RGB", "L"):
        image = image.convert("RGB")
    image.save(buffer, format=kind, quality=95)
    return [kind, base64.b64encode(buffer.getvalue()).decode()]


def _report(value, total, preview, node_id=None, bar=True):
    import comfy.model_management as management

    management.throw_exception_if_processing_interrupted()
    call = state.call()
    if call is None:
        return
    shown = _encode_preview(preview) if preview is not None else None
    state.channel.event(
        "progress", call=call.number, node=node_id or call.node_id, value=float(value), max=float(total), preview=shown, bar=bar
    )


class ProgressBar:
    def __init__(self, total, node_id=None):
        self.total = total
        self.current = 0
        self.hook = PROGRESS_BAR_HOOK
        self.node_id = node_id

    def update_absolute(self, value, total=None, preview=None):
        if total is not None:
            self.total = total
        self.current = min(value, self.total)
        if self.hook is not None:
            self.hook(self.current, self.total, preview, node_id=self.node_id)
        else:
            _report(self.current, self.total, preview, self.node_id)

    def update(self, value):
        self.update_absolute(self.current + value)


# Files


def safetensors_header(safetensors_path, max_size=100 * 1024 * 1024):
    with open(safetensors_path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return None if length > max_size else file.read(length)


def load_torch_file(ckpt, safe_load=False, device=None, return_metadata=False):
    import torch

    metadata = None
    if str(ckpt).lower().endswith((".safetensors", ".sft")):
        import safetensors

        with safetensors.safe_open(ckpt, framework="pt", device=str(device or "cpu")) as file:
            loaded = {key: file.get_tensor(key) for key in file.keys()}
            metadata = file.metadata() if return_metadata else None
    else:
        loaded = torch.load(ckpt, map_location=device or "cpu", weights_only=True)
        if "state_dict" in loaded:
            loaded = loaded["state_dict"]
        elif len(loaded) == 1:
            only = next(iter(loaded.values()))
            loaded = only if isinstance(only, dict) else loaded
    loaded = FileContent(loaded)
    loaded.fresco_path, loaded.fresco_size = os.path.abspath(ckpt), len(loaded)
    return (loaded, metadata) if return_metadata else loaded


class FileContent(dict):
    """The content of a file, which remembers it: what the engine loads itself need not travel."""

    fresco_path = None
    fresco_size = 0


def save_torch_file(sd, ckpt, metadata=None):
    import safetensors.torch

    safetensors.torch.save_file(sd, ckpt, metadata=metadata or {})


# State dictionaries


def calculate_parameters(sd, prefix=""):
    return sum(math.prod(value.shape) for key, value in sd.items() if key.startswith(prefix))


def weight_dtype(sd, prefix=""):
    counts = {}
    for key, value in sd.items():
        if key.startswith(prefix):
            counts[value.dtype] = counts.get(value.dtype, 0) + math.prod(value.shape)
    return max(counts, key=counts.get) if counts else None


def state_dict_key_replace(state_dict, keys_to_replace):
    for old, new in keys_to_replace.items():
        if old in state_dict:
            state_dict[new] = state_dict.pop(old)
    return state_dict


def state_dict_prefix_replace(state_dict, replace_prefix, filter_keys=False):
    out = {} if filter_keys else state_dict
    for old, new in replace_prefix.items():
        for key in [key for key in state_dict if key.startswith(old)]:
            out[new + key[len(old) :]] = state_dict.pop(key)
    return out


def convert_sd_to(state_dict, dtype):
    for key in list(state_dict):
        state_dict[key] = state_dict[key].to(dtype)
    return state_dict


def set_attr(obj, attr, value):
    names = attr.split(".")
    for name in names[:-1]:
        obj = getattr(obj, name)
    before = getattr(obj, names[-1], None)
    setattr(obj, names[-1], value)
    return before


def set_attr_param(obj, attr, value):
    import torch

    return set_attr(obj, attr, torch.nn.Parameter(value, requires_grad=False))


def copy_to_param(obj, attr, value):
    get_attr(obj, attr).data.copy_(value)


def get_attr(obj, attr):
    for name in attr.split("."):
        obj = getattr(obj, name)
    return obj


# Tensors


def repeat_to_batch_size(tensor, batch_size, dim=0):
    have = tensor.shape[dim]
    if have > batch_size:
        return tensor.narrow(dim, 0, batch_size)
    if have < batch_size:
        times = [1] * tensor.dim()
        times[dim] = math.ceil(batch_size / have)
        return tensor.repeat(times).narrow(dim, 0, batch_size)
    return tensor


def resize_to_batch_size(tensor, batch_size):
    have = tensor.shape[0]
    if have == batch_size:
        return tensor
    if batch_size <= 1:
        return tensor[:batch_size]
    import torch

    out = torch.empty([batch_size] + list(tensor.shape)[1:], dtype=tensor.dtype, device=tensor.device)
    if batch_size < have:
        step = (have - 1) / (batch_size - 1)
        for i in range(batch_size):
            out[i] = tensor[min(round(i * step), have - 1)]
    else:
        for i in range(batch_size):
            out[i] = tensor[min(math.floor((i + 0.5) * have / batch_size), have - 1)]
    return out


def lanczos(samples, width, height):
    import numpy
    import torch
    from PIL import Image

    images = []
    for sample in samples:
        array = numpy.clip(255.0 * sample.movedim(0, -1).cpu().numpy(), 0, 255).astype(numpy.uint8)
        mode = array[..., 0] if array.shape[-1] == 1 else array
        image = Image.fromarray(mode).resize((width, height), resample=Image.Resampling.LANCZOS)
        made = torch.from_numpy(numpy.array(image).astype(numpy.float32) / 255.0)
        images.append(made.unsqueeze(0) if made.dim() == 2 else made.movedim(-1, 0))
    return torch.stack(images).to(samples.device, samples.dtype)


def bislerp(samples, width, height):
    """Rows, then columns; between two points along the arc between their directions."""
    import torch

    def slerp(a, b, r):
        length_a, length_b = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
        unit_a = torch.where(length_a > 0, a / length_a, torch.zeros_like(a))
        unit_b = torch.where(length_b > 0, b / length_b, torch.zeros_like(b))
        dot = (unit_a * unit_b).sum(1, keepdim=True)
        angle = torch.acos(dot.clamp(-1, 1))
        sine = torch.sin(angle)
        mixed = (torch.sin((1 - r) * angle) / sine) * unit_a + (torch.sin(r * angle) / sine) * unit_b
        mixed = mixed * (length_a * (1 - r) + length_b * r)
        mixed = torch.where(dot > 1 - 1e-5, a, mixed)
        return torch.where(dot < 1e-5 - 1, a * (1 - r) + b * r, mixed)

    def places(old, new, device):
        one = torch.arange(old, dtype=torch.float32, device=device).reshape(1, 1, 1, -1)
        one = torch.nn.functional.interpolate(one, size=(1, new), mode="bilinear")
        ratios = one - one.floor()
        after = torch.arange(old, dtype=torch.float32, device=device).reshape(1, 1, 1, -1) + 1
        after[..., -1] -= 1
        after = torch.nn.functional.interpolate(after, size=(1, new), mode="bilinear")
        return ratios, one.to(torch.int64), after.to(torch.int64)

    kind = samples.dtype
    samples = samples.float()
    n, c, h, w = samples.shape

    ratios, first, second = places(w, width, samples.device)
    first, second = first.expand(n, c, h, -1), second.expand(n, c, h, -1)
    ratios = ratios.expand(n, 1, h, -1).movedim(1, -1).reshape(-1, 1)
    a = samples.gather(-1, first).movedim(1, -1).reshape(-1, c)
    b = samples.gather(-1, second).movedim(1, -1).reshape(-1, c)
    result = slerp(a, b, ratios).reshape(n, h, width, c).movedim(-1, 1)

    ratios, first, second = places(h, height, samples.device)
    first = first.reshape(1, 1, -1, 1).expand(n, c, -1, width)
    second = second.reshape(1, 1, -1, 1).expand(n, c, -1, width)
    ratios = ratios.reshape(1, 1, -1, 1).expand(n, 1, -1, width).movedim(1, -1).reshape(-1, 1)
    a = result.gather(-2, first).movedim(1, -1).reshape(-1, c)
    b = result.gather(-2, second).movedim(1, -1).reshape(-1, c)
    return slerp(a, b, ratios).reshape(n, height, width, c).movedim(-1, 1).to(kind)


def common_upscale(samples, width, height, upscale_method, crop):
    import torch

    shape = tuple(samples.shape)
    if len(shape) > 4:
        samples = samples.movedim(2, 1).reshape(-1, shape[1], shape[-2], shape[-1])
    if crop == "center":
        old_height, old_width = samples.shape[-2], samples.shape[-1]
        old_aspect, new_aspect = old_width / old_height, width / height
        x = y = 0
        if old_aspect > new_aspect:
            x = round((old_width - old_width * (new_aspect / old_aspect)) / 2)
        elif old_aspect < new_aspect:
            y = round((old_height - old_height * (old_aspect / new_aspect)) / 2)
        samples = samples.narrow(-2, y, old_height - y * 2).narrow(-1, x, old_width - x * 2)
    if upscale_method == "bislerp":
        out = bislerp(samples, width, height)
    elif upscale_method == "lanczos":
        out = lanczos(samples, width, height)
    else:
        out = torch.nn.functional.interpolate(samples, size=(height, width), mode=upscale_method)
    if len(shape) > 4:
        out = out.reshape((shape[0], -1, shape[1], height, width)).movedim(2, 1)
    return out


def get_tiled_scale_steps(width, height, tile_x, tile_y, overlap):
    rows = 1 if height <= tile_y else math.ceil((height - overlap) / (tile_y - overlap))
    columns = 1 if width <= tile_x else math.ceil((width - overlap) / (tile_x - overlap))
    return rows * columns


def tiled_scale_multidim(
    samples, function, tile=(64, 64), overlap=8, upscale_amount=4, out_channels=3, output_device="cpu",
    downscale=False, index_formulas=None, pbar=None,
):
    import itertools

    import torch

    dims = len(tile)

    def each(value):
        return list(value) if isinstance(value, (list, tuple)) else [value] * dims

    overlap, amounts = each(overlap), each(upscale_amount)
    formulas = each(index_formulas if index_formulas is not None else upscale_amount)

    def scaled(dim, length, formula):
        formula = formula[dim]
        if callable(formula):
            return formula(length)
        return length / formula if downscale else length * formula

    outputs = []
    for sample in samples.split(1):
        sizes = [round(scaled(d, s, amounts)) for d, s in enumerate(sample.shape[2:])]
        if all(sample.shape[d + 2] <= tile[d] for d in range(dims)):
            outputs.append(function(sample).to(output_device))
            if pbar is not None:
                pbar.update(1)
            continue
        out = torch.zeros([1, out_channels] + sizes, device=output_device)
        weight = torch.zeros([1, out_channels] + sizes, device=output_device)
        positions = [
            range(0, sample.shape[d + 2] - overlap[d], tile[d] - overlap[d]) if sample.shape[d + 2] > tile[d] else [0]
            for d in range(dims)
        ]
        for place in itertools.product(*positions):
            part, at = sample, []
            for d in range(dims):
                start = max(0, min(sample.shape[d + 2] - overlap[d], place[d]))
                part = part.narrow(d + 2, start, min(tile[d], sample.shape[d + 2] - start))
                at.append(round(scaled(d, start, formulas)))
            made = function(part).to(output_device)
            mask = torch.ones_like(made)
            for d in range(2, dims + 2):
                feather = round(scaled(d - 2, overlap[d - 2], amounts))
                if feather >= mask.shape[d]:
                    continue
                for t in range(feather):
                    factor = (t + 1) / feather
                    mask.narrow(d, t, 1).mul_(factor)
                    mask.narrow(d, mask.shape[d] - 1 - t, 1).mul_(factor)
            into, over = out, weight
            for d in range(dims):
                into = into.narrow(d + 2, at[d], mask.shape[d + 2])
                over = over.narrow(d + 2, at[d], mask.shape[d + 2])
            into.add_(made * mask)
            over.add_(mask)
            if pbar is not None:
                pbar.update(1)
        outputs.append(out / weight)
    return torch.cat(outputs, dim=0)


def tiled_scale(
    samples, function, tile_x=64, tile_y=64, overlap=8, upscale_amount=4, out_channels=3, output_device="cpu", pbar=None
):
    return tiled_scale_multidim(samples, function, (tile_y, tile_x), overlap, upscale_amount, out_channels, output_device, pbar=pbar)


def pack_latents(latents):
    """Several latents as one row of numbers for each item of a batch, and their shapes."""
    import torch

    rows = [latent.reshape(latent.shape[0], 1, -1) for latent in latents]
    return torch.cat(rows, dim=-1), [latent.shape for latent in latents]


def unpack_latents(combined_latent, latent_shapes):
    """The latents of such a row; their batch is that of the row."""
    if len(latent_shapes) <= 1:
        return [combined_latent]
    found, start = [], 0
    for shape in latent_shapes:
        count = math.prod(shape[1:])
        part = combined_latent[:, :, start : start + count]
        found.append(part.reshape([combined_latent.shape[0], *shape[1:]]))
        start += count
    return found


def reshape_mask(input_mask, output_shape):
    import torch

    dims = len(output_shape) - 2
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
    mask = input_mask
    if dims <= 2:
        mask = mask.reshape((-1, 1) + tuple(mask.shape[-dims:]))
    mask = torch.nn.functional.interpolate(mask, size=output_shape[2:], mode=mode)
    if mask.shape[1] < output_shape[1]:
        mask = mask.repeat((1, output_shape[1]) + (1,) * dims)[:, : output_shape[1]]
    return repeat_to_batch_size(mask, output_shape[0])


__getattr__ = fallback(__name__)
