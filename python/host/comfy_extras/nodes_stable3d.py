"""Where a camera stands, for models that turn a picture."""

from fresco_host.placeholders import fallback


def camera_embeddings(elevation, azimuth):
    """Angles in degrees, as four numbers each."""
    import torch

    elevation, azimuth = torch.as_tensor([elevation]).float(), torch.as_tensor([azimuth]).float()
    turned = torch.deg2rad(azimuth)
    parts = [torch.deg2rad(-elevation), torch.sin(turned), torch.cos(turned), torch.deg2rad(torch.full_like(elevation, 90.0))]
    return torch.stack(parts, dim=-1).unsqueeze(1)


__getattr__ = fallback(__name__)
