"""A control net of Anima that acts inside its layers (ControlNet-LLLite, second version), written out from its description:
what it sees of a picture, and what each of its small networks adds to the input of a layer."""

import torch
import torch.nn.functional as F
from torch import nn

from scheme import FOLDER, fill, save, value

WIDTH, SEEN, INNER, LOOKING = 48, 12, 20, 12
DILATIONS = (1, 2, 4, 8)
LAYERS = [
    f"lllite_dit_blocks_{block}_{layer}"
    for block in (0, 1)
    for layer in (
        "self_attn_q_proj",
        "self_attn_k_proj",
        "self_attn_v_proj",
        "cross_attn_q_proj",
        "mlp_layer1",
    )
]


def norm(channels):
    groups = next(g for g in (8, 4, 2, 1) if channels % g == 0)
    return nn.GroupNorm(groups, channels)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm1, self.norm2 = norm(channels), norm(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h)))


def looked(conv, channels):
    return nn.Sequential(conv, norm(channels), nn.SiLU())


class Wide(nn.Module):
    def __init__(self, channels):
        super().__init__()

        def conv(reach):
            if reach == 1:
                return nn.Conv2d(channels, channels, 1)
            return nn.Conv2d(channels, channels, 3, padding=reach, dilation=reach)

        self.branches = nn.ModuleList(looked(conv(d), channels) for d in DILATIONS)
        self.global_conv = looked(nn.Conv2d(channels, channels, 1), channels)
        joined = channels * (len(DILATIONS) + 1)
        self.proj = looked(nn.Conv2d(joined, channels, 1), channels)

    def forward(self, x):
        whole = self.global_conv(x.mean((2, 3), keepdim=True)).expand_as(x)
        return self.proj(torch.cat([*(b(x) for b in self.branches), whole], 1))


class Sees(nn.Module):
    def __init__(self):
        super().__init__()
        half = LOOKING // 2
        self.conv1, self.norm1 = nn.Conv2d(4, half, 4, stride=4), norm(half)
        self.conv2, self.norm2 = nn.Conv2d(half, half, 3, padding=1), norm(half)
        self.conv3, self.norm3 = nn.Conv2d(half, LOOKING, 4, stride=4), norm(LOOKING)
        self.resblocks = nn.ModuleList([Residual(LOOKING)])
        self.aspp = Wide(LOOKING)
        self.proj = nn.Conv2d(LOOKING, SEEN, 1)
        self.out_norm = nn.LayerNorm(SEEN)

    def forward(self, x):
        x = F.silu(self.norm1(self.conv1(x)))
        x = F.silu(self.norm2(self.conv2(x)))
        x = F.silu(self.norm3(self.conv3(x)))
        x = self.aspp(self.resblocks[0](x))
        return self.out_norm(self.proj(x).flatten(2).transpose(1, 2))


class Lite(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(WIDTH, INNER)
        self.mid = nn.Linear(INNER + SEEN, INNER)
        self.cond_to_film = nn.Linear(SEEN, 2 * INNER)
        self.up = nn.Linear(INNER, WIDTH)
        self.depth_embed = nn.Parameter(torch.zeros(SEEN))

    def forward(self, x, seen):
        seen = seen + self.depth_embed
        scale, shift = self.cond_to_film(seen).chunk(2, -1)
        inner = self.mid(torch.cat([seen, F.silu(self.down(x))], -1))
        return self.up(F.silu(inner * (1 + scale) + shift))


def main():
    net = nn.ModuleDict({"lllite_conditioning1": Sees()})
    net.update({name: Lite() for name in LAYERS})
    keys = fill(net)
    picture = value("picture", (1, 4, 48, 64))
    x = value("x", (1, 12, WIDTH), 1.7)
    seen = net["lllite_conditioning1"](picture)
    tensors = {"picture": picture, "x": x, "seen": seen}
    tensors |= {f"out/{name}": net[name](x, seen) for name in LAYERS}
    about = "What a control net sees of a picture in -1..1 (b, colours and mask, h, w), and what it adds to the input x of each layer."
    config = {"lllite.aspp_dilations": ",".join(map(str, DILATIONS))}
    save(FOLDER, "anima_lite_small", about, keys, tensors, config=config)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
