"""How one picture or latent is put onto another."""

from fresco_host.placeholders import fallback


def composite(destination, source, x, y, mask=None, multiplier=8, resize_source=False):
    """`source` on `destination` (both b,c,h,w) at a place in pixels, where `mask` says so."""
    import comfy.utils
    import torch

    source = source.to(destination.device)
    if resize_source:
        size = (destination.shape[-2], destination.shape[-1])
        source = torch.nn.functional.interpolate(source, size=size, mode="bilinear")
    source = comfy.utils.repeat_to_batch_size(source, destination.shape[0])
    height, width = source.shape[-2:]
    x = max(-width * multiplier, min(x, destination.shape[-1] * multiplier))
    y = max(-height * multiplier, min(y, destination.shape[-2] * multiplier))
    left, top = x // multiplier, y // multiplier
    if mask is None:
        mask = torch.ones_like(source)
    else:
        mask = mask.to(destination.device, copy=True).reshape(-1, 1, mask.shape[-2], mask.shape[-1])
        mask = torch.nn.functional.interpolate(mask, size=(height, width), mode="bilinear")
        mask = comfy.utils.repeat_to_batch_size(mask, source.shape[0])
    # Of the source that part which lies on the destination.
    right, bottom = left + width, top + height
    seen_x, seen_y = slice(max(0, -left), width - max(0, right - destination.shape[-1])), slice(
        max(0, -top), height - max(0, bottom - destination.shape[-2])
    )
    place = destination[..., max(0, top) : max(0, bottom), max(0, left) : max(0, right)]
    mask, source = mask[..., seen_y, seen_x], source[..., seen_y, seen_x]
    if place.numel():
        place.copy_(mask * source + (1.0 - mask) * place)
    return destination


__getattr__ = fallback(__name__)
