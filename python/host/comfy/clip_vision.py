import folder_paths
from fresco_host.models import ClipVision as ClipVisionModel
from fresco_host.models import run_node
from fresco_host.placeholders import fallback
from fresco_host.values import VisionOutput as Output


def clip_preprocess(image, size=224, mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711), crop=True):
    """Pictures as CLIP's vision encoder takes them: cut to a square, resized, normalised."""
    import torch

    image = image[:, :, :, :3] if image.shape[3] > 3 else image
    mean, std = torch.tensor(mean, device=image.device, dtype=image.dtype), torch.tensor(std, device=image.device, dtype=image.dtype)
    image = image.movedim(-1, 1)
    if not (image.shape[2] == size and image.shape[3] == size):
        if crop:
            scale = size / min(image.shape[2], image.shape[3])
            wanted = (round(scale * image.shape[2]), round(scale * image.shape[3]))
        else:
            wanted = (size, size)
        image = torch.nn.functional.interpolate(image, size=wanted, mode="bicubic", antialias=True)
        top, left = (image.shape[2] - size) // 2, (image.shape[3] - size) // 2
        image = image[:, :, top : top + size, left : left + size]
    image = torch.clip(255.0 * image, 0, 255).round() / 255.0
    return (image - mean.view([3, 1, 1])) / std.view([3, 1, 1])


def load(ckpt_path):
    from comfy.sd import _name

    return run_node("CLIPVisionLoader", {"clip_name": _name(ckpt_path, ["clip_vision"])})[0]


__all__ = ["ClipVisionModel", "Output", "folder_paths"]
__getattr__ = fallback(__name__)
