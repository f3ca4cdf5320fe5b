"""Guides of LTX videos: frames at the end of a latent, and where they belong in the conditioning. Packs call the host's
functions for it with latents of their own."""


def get_noise_mask(latent):
    """The mask of a latent, one number for each frame where it has none."""
    import torch

    mask = latent.get("noise_mask")
    if mask is not None:
        return mask.clone()
    samples = latent["samples"]
    return torch.ones((samples.shape[0], 1, samples.shape[2], 1, 1), dtype=torch.float32, device=samples.device)


def get_keyframe_idxs(cond):
    """Positions of all guides in a conditioning, and how many frames they are."""
    import torch

    for _, options in cond:
        positions = options.get("keyframe_idxs")
        if positions is not None:
            return positions, torch.unique(positions[:, 0]).shape[0]
    return None, 0


def _append_guide_attention_entry(positive, negative, pre_filter_count, latent_shape, strength=1.0):
    """Notes in both conditionings how much attention a guide gets."""
    import node_helpers

    entry = {"pre_filter_count": pre_filter_count, "strength": strength, "pixel_mask": None, "latent_shape": latent_shape}

    def noted(cond):
        known = next((list(options["guide_attention_entries"]) for _, options in cond if options.get("guide_attention_entries")), [])
        return node_helpers.conditioning_set_values(cond, {"guide_attention_entries": [*known, dict(entry)]})

    return noted(positive), noted(negative)


class Guides:
    """Further methods of LTXVAddGuide."""

    @classmethod
    def encode(cls, vae, latent_width, latent_height, images, scale_factors):
        """A clip in the size of the video: its pixels and its latent."""
        import comfy.utils

        time, width, height = scale_factors
        images = images[: (images.shape[0] - 1) // time * time + 1]
        wide, high = latent_width * width, latent_height * height
        pixels = comfy.utils.common_upscale(images.movedim(-1, 1), wide, high, "bilinear", crop="disabled").movedim(1, -1)
        pixels = pixels[:, :, :, :3]
        return pixels, vae.encode(pixels)

    @classmethod
    def get_latent_index(cls, cond, latent_length, guide_length, frame_idx, scale_factors):
        """The frame at which a guide starts, and the frame of the latent that holds it."""
        time = scale_factors[0]
        _, guides = get_keyframe_idxs(cond)
        if frame_idx < 0:
            frame_idx = max((latent_length - guides - 1) * time + 1 + frame_idx, 0)
        if guide_length > 1 and frame_idx != 0:
            # Only the first frame of a latent stands for a single picture.
            frame_idx = (frame_idx - 1) // time * time + 1
        return frame_idx, (frame_idx + time - 1) // time

    @classmethod
    def add_keyframe_index(cls, cond, frame_idx, guiding_latent, scale_factors, **more):
        """The conditioning with the positions of a guide's tokens."""
        import node_helpers
        import torch

        time, width, height = scale_factors
        batch, _, frames, rows, columns = guiding_latent.shape
        axes = [torch.arange(count, dtype=torch.float32) for count in (frames, rows, columns)]
        at, row, column = (axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij"))
        at = (at * time + 1 - time).clamp(min=0) if frame_idx == 0 else at * time
        positions = torch.stack([at + frame_idx, row * height, column * width])[None].repeat(batch, 1, 1)
        known, _ = get_keyframe_idxs(cond)
        if known is not None:
            positions = torch.cat([known, positions.to(known)], dim=2)
        return node_helpers.conditioning_set_values(cond, {"keyframe_idxs": positions})

    @classmethod
    def append_keyframe(
        cls, positive, negative, frame_idx, latent_image, noise_mask, guiding_latent, strength, scale_factors, guide_mask=None,
        latent_downscale_factor=1, causal_fix=None,
    ):
        """Both conditionings, the latent and its mask with a guide at the end."""
        import torch
        from fresco_host import Unsupported

        if guide_mask is not None or latent_downscale_factor != 1:
            raise Unsupported(
                "LTXVAddGuide.append_keyframe: guides that are smaller than the video (guide_mask, latent_downscale_factor) "
                "are added by the node LTXVAddGuide only, which takes iclora_parameters"
            )
        _, place = cls.get_latent_index(positive, latent_image.shape[2], guiding_latent.shape[2], frame_idx, scale_factors)
        noise_mask[:, :, place : place + guiding_latent.shape[2]] = 1.0
        positive = cls.add_keyframe_index(positive, frame_idx, guiding_latent, scale_factors)
        negative = cls.add_keyframe_index(negative, frame_idx, guiding_latent, scale_factors)
        shape = list(noise_mask.shape)
        shape[2] = guiding_latent.shape[2]
        held = torch.full(shape, 1.0 - strength, dtype=noise_mask.dtype, device=noise_mask.device)
        latent_image = torch.cat([latent_image, guiding_latent.to(latent_image)], dim=2)
        return positive, negative, latent_image, torch.cat([noise_mask, held], dim=2)

    @classmethod
    def replace_latent_frames(cls, latent_image, noise_mask, guiding_latent, latent_idx, strength):
        """The latent with a guide in the place of frames."""
        end = latent_idx + guiding_latent.shape[2]
        if latent_image.shape[2] < end:
            raise AssertionError("Conditioning frames exceed the length of the latent sequence.")
        latent_image, noise_mask = latent_image.clone(), noise_mask.clone()
        latent_image[:, :, latent_idx:end] = guiding_latent.to(latent_image)
        noise_mask[:, :, latent_idx:end] = 1.0 - strength
        return latent_image, noise_mask


METHODS = {name: vars(Guides)[name] for name in vars(Guides) if isinstance(vars(Guides)[name], classmethod)}
