"""Sampling, which runs in the engine."""

import comfy.samplers
from fresco_host import models
from fresco_host.placeholders import fallback


def prepare_noise(latent_image, seed, noise_inds=None):
    import torch

    generator = torch.manual_seed(seed)

    def one(shape):
        return torch.randn(shape, dtype=torch.float32, layout=latent_image.layout, generator=generator, device="cpu")

    if noise_inds is None:
        return one(latent_image.size()).to(latent_image.dtype)
    unique = sorted(set(int(i) for i in noise_inds))
    made = {}
    for i in range(unique[-1] + 1):
        noise = one([1] + list(latent_image.size())[1:])
        if i in unique:
            made[i] = noise
    return torch.cat([made[int(i)] for i in noise_inds], dim=0)


def fix_empty_latent_channels(model, latent_image, downscale_ratio_spacial=None):
    """An empty latent in the channels of the model."""
    format = model.get_model_object("latent_format") if hasattr(model, "get_model_object") else None
    if format is None or latent_image.shape[1] == format.latent_channels:
        return latent_image
    if hasattr(latent_image, "count_nonzero") and int(latent_image.count_nonzero()) == 0:
        import comfy.utils

        latent_image = comfy.utils.repeat_to_batch_size(latent_image, format.latent_channels, dim=1)
    if format.latent_dimensions == 3 and latent_image.ndim == 4:
        latent_image = latent_image.unsqueeze(2)
    return latent_image


def prepare_mask(noise_mask, shape, device):
    import comfy.utils

    return comfy.utils.reshape_mask(noise_mask, shape).to(device)


def cleanup_additional_models(models):
    return None


def sample(
    model, noise, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise=1.0, disable_noise=False,
    start_step=None, last_step=None, force_full_denoise=False, noise_mask=None, sigmas=None, callback=None,
    disable_pbar=False, seed=None,
):
    sampler = comfy.samplers.KSampler(model, steps, None, sampler_name, scheduler, denoise, model.model_options)
    return sampler.sample(
        False if noise is None and disable_noise else noise, positive, negative, cfg, latent_image, start_step, last_step,
        force_full_denoise, noise_mask, sigmas, callback, disable_pbar, seed,
    )


def sample_custom(
    model, noise, cfg, sampler, sigmas, positive, negative, latent_image, noise_mask=None, callback=None, disable_pbar=False,
    seed=None,
):
    latent = {"samples": latent_image}
    if noise_mask is not None:
        latent["noise_mask"] = noise_mask
    return models.sample(
        model=model, noise=noise, cfg=cfg, positive=positive, negative=negative, sampler=sampler, sigmas=sigmas, latent=latent,
        callback=callback, seed=seed,
    )


__getattr__ = fallback(__name__)
