"""Guidance without the part of the negative prediction that points away from both (arXiv 2503.18137)."""

from fresco_host.placeholders import fallback


def score_tangential_damping(cond_score, uncond_score):
    """The negative score along the direction that both scores share the most."""
    import torch

    flat = uncond_score.reshape(uncond_score.shape[0], 1, -1).float()
    both = torch.cat([flat, cond_score.reshape(cond_score.shape[0], 1, -1).float()], dim=1)
    direction = torch.linalg.svd(both, full_matrices=False).Vh[:, :1]
    made = (flat @ direction.transpose(1, 2)) @ direction
    return made.reshape(uncond_score.shape).to(uncond_score.dtype)


__getattr__ = fallback(__name__)
