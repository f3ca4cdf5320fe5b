"""Small decoders and encoders of latents, for previews."""

import torch

import comfy.ops
import comfy.utils
from fresco_host.placeholders import fallback

ops = comfy.ops.disable_weight_init


def conv(n_in, n_out, **kwargs):
    return ops.Conv2d(n_in, n_out, 3, padding=1, **kwargs)


class Clamp(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x / 3) * 3


class Block(torch.nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.conv = torch.nn.Sequential(conv(n_in, n_out), torch.nn.ReLU(), conv(n_out, n_out), torch.nn.ReLU(), conv(n_out, n_out))
        self.skip = ops.Conv2d(n_in, n_out, 1, bias=False) if n_in != n_out else torch.nn.Identity()
        self.fuse = torch.nn.ReLU()

    def forward(self, x):
        return self.fuse(self.conv(x) + self.skip(x))


def Encoder(latent_channels=4):
    parts = [conv(3, 64), Block(64, 64)]
    for _ in range(3):
        parts += [conv(64, 64, stride=2, bias=False), Block(64, 64), Block(64, 64), Block(64, 64)]
    return torch.nn.Sequential(*parts, conv(64, latent_channels))


def Decoder(latent_channels=4):
    parts = [Clamp(), conv(latent_channels, 64), torch.nn.ReLU()]
    for _ in range(3):
        parts += [Block(64, 64), Block(64, 64), Block(64, 64), torch.nn.Upsample(scale_factor=2), conv(64, 64, bias=False)]
    return torch.nn.Sequential(*parts, Block(64, 64), conv(64, 3))


class TAESD(torch.nn.Module):
    def __init__(self, encoder_path=None, decoder_path=None, latent_channels=4):
        super().__init__()
        self.taesd_encoder = Encoder(latent_channels=latent_channels)
        self.taesd_decoder = Decoder(latent_channels=latent_channels)
        self.vae_scale = torch.nn.Parameter(torch.tensor(1.0))
        self.vae_shift = torch.nn.Parameter(torch.tensor(0.0))
        for part, path in ((self.taesd_encoder, encoder_path), (self.taesd_decoder, decoder_path)):
            if path is not None:
                part.load_state_dict(comfy.utils.load_torch_file(path, safe_load=True))

    def decode(self, x):
        return (self.taesd_decoder((x - self.vae_shift) * self.vae_scale) - 0.5) * 2

    def encode(self, x):
        return self.taesd_encoder(x * 0.5 + 0.5) / self.vae_scale + self.vae_shift


__getattr__ = fallback(__name__)
