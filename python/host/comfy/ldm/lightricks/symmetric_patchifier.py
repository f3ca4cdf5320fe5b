"""Latents of films as rows of patches, with the place of each patch."""

import abc

from fresco_host.placeholders import fallback


def latent_to_pixel_coords(latent_coords, scale_factors, causal_fix=False):
    """Places in latents (b, 3, patches, ...) as frames, rows and columns of the film."""
    import torch

    shape = [1] * latent_coords.ndim
    shape[1] = -1
    factors = torch.tensor(scale_factors, device=latent_coords.device).view(shape)
    pixels = latent_coords * factors
    if causal_fix:
        # The first frame of a latent stands for one frame of the film, the others for several.
        pixels[:, 0] = (pixels[:, 0] + 1 - scale_factors[0]).clamp(min=0)
    return pixels


class Patchifier(abc.ABC):
    def __init__(self, patch_size, start_end=False):
        self._patch_size = (1, patch_size, patch_size)
        # With the end of each patch beside its start.
        self.start_end = start_end

    @property
    def patch_size(self):
        return self._patch_size

    @abc.abstractmethod
    def patchify(self, latents):
        raise NotImplementedError

    @abc.abstractmethod
    def unpatchify(self, latents, output_height, output_width, output_num_frames, out_channels):
        raise NotImplementedError

    def get_latent_coords(self, latent_num_frames, latent_height, latent_width, batch_size, device):
        import torch

        sizes = (latent_num_frames, latent_height, latent_width)
        axes = [torch.arange(0, size, step, device=device) for size, step in zip(sizes, self._patch_size)]
        places = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=0)
        if self.start_end:
            ends = places + torch.tensor(self._patch_size, device=device).view(3, 1, 1, 1)
            places = torch.stack([places, ends], dim=-1)
        places = places.unsqueeze(0).repeat(batch_size, *[1] * places.ndim)
        return places.flatten(2, 4)


class SymmetricPatchifier(Patchifier):
    def patchify(self, latents):
        batch, channels, frames, height, width = latents.shape
        places = self.get_latent_coords(frames, height, width, batch, latents.device)
        p1, p2, p3 = self._patch_size
        # (b, c, f, p1, h, p2, w, p3) -> (b, f, h, w, c, p1, p2, p3)
        parts = latents.reshape(batch, channels, frames // p1, p1, height // p2, p2, width // p3, p3)
        parts = parts.permute(0, 2, 4, 6, 1, 3, 5, 7)
        return parts.flatten(4).flatten(1, 3), places

    def unpatchify(self, latents, output_height, output_width, output_num_frames, out_channels):
        batch = latents.shape[0]
        _, p2, p3 = self._patch_size
        height, width = output_height // p2, output_width // p3
        parts = latents.reshape(batch, output_num_frames, height, width, out_channels, p2, p3)
        parts = parts.permute(0, 4, 1, 2, 5, 3, 6)
        return parts.reshape(batch, out_channels, output_num_frames, output_height, output_width)


__getattr__ = fallback(__name__)
