"""What packs use of the nodes for LTX-Video, beside their classes."""

from fresco_host.placeholders import fallback


def get_noise_mask(latent):
    """The mask of a latent by frames; all of it where it has none."""
    import torch

    mask = latent.get("noise_mask")
    if mask is not None:
        return mask.clone()
    samples = latent["samples"]
    return torch.ones((samples.shape[0], 1, samples.shape[2], 1, 1), dtype=torch.float32, device=samples.device)


def conditioning_get_any_value(conditioning, key, default=None):
    return next((options[key] for _, options in conditioning if key in options), default)


def get_keyframe_idxs(cond):
    """Where the keyframes of a conditioning lie, and how many there are."""
    places = conditioning_get_any_value(cond, "keyframe_idxs")
    if places is None:
        return None, 0
    import torch

    return places, torch.unique(places[:, 0]).shape[0]


__getattr__ = fallback(__name__)
