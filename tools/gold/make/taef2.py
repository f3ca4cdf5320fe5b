"""The tiny autoencoder of Flux.2 (github.com/madebyollin/taesd, MIT), written out from its description: as its relatives, with
pooled norms in the innermost blocks, on 32 channels of which the sampler has squares of four as 128."""

import torch
import torch.nn.functional as F
from torch import nn

from scheme import FOLDER, fill, save, value

WIDTH, CHANNELS = 64, 32


class Block(nn.Module):
    def __init__(self, pooled=False):
        super().__init__()
        conv = lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.conv = nn.Sequential(conv(), nn.ReLU(), conv(), nn.ReLU(), conv())
        self.pool = None
        if pooled:
            wide = 4 * WIDTH
            self.pool = nn.Sequential(
                nn.Conv2d(WIDTH, wide, 1, bias=False),
                nn.GroupNorm(4, wide),
                nn.ReLU(),
                nn.Conv2d(wide, WIDTH, 1, bias=False),
            )

    def forward(self, x):
        if self.pool is not None:
            x = x + self.pool(x)
        return F.relu(self.conv(x) + x)


class Bounded(nn.Module):
    def forward(self, x):
        return torch.tanh(x / 3) * 3


def encoder():
    def half(pooled):
        conv = nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1, bias=False)
        return [conv, Block(pooled), Block(pooled), Block(pooled)]

    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1),
        Block(),
        *half(False),
        *half(False),
        *half(True),
        nn.Conv2d(WIDTH, CHANNELS, 3, padding=1),
    )


def decoder():
    def double(pooled):
        conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        return [Block(pooled), Block(pooled), Block(pooled), nn.Upsample(scale_factor=2), conv]

    return nn.Sequential(
        Bounded(),
        nn.Conv2d(CHANNELS, WIDTH, 3, padding=1),
        nn.ReLU(),
        *double(True),
        *double(False),
        *double(False),
        Block(),
        nn.Conv2d(WIDTH, 3, 3, padding=1),
    )


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.taesd_encoder, self.taesd_decoder = encoder(), decoder()

    def encode(self, pixels):
        return F.pixel_unshuffle(self.taesd_encoder(pixels * 0.5 + 0.5), 2)

    def decode(self, latent):
        return self.taesd_decoder(F.pixel_shuffle(latent, 2)) * 2 - 1


def main():
    net = Tiny().eval()
    keys = fill(net)
    z = value("taef2.z", (2, 4 * CHANNELS, 2, 3), 3.0)
    pixels = value("taef2.pixels", (2, 3, 32, 48))
    tensors = {"z": z, "pixels": pixels, "decoded": net.decode(z), "encoded": net.encode(pixels)}
    about = "decode = taesd_decoder(squares of z unpacked) * 2 - 1; encode = squares of taesd_encoder(pixels / 2 + 0.5) packed"
    save(FOLDER, "taef2", about, keys, tensors)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
