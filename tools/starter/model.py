"""The networks, with the tensor names of Stable Diffusion 1: autoencoder, text encoder, UNet, and the preview decoder."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def norm(channels: int, eps: float) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=eps)


# --- Autoencoder ---------------------------------------------------------------------------------------------------


class VaeBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(n_in, 1e-6), nn.Conv2d(n_in, n_out, 3, padding=1)
        self.norm2, self.conv2 = norm(n_out, 1e-6), nn.Conv2d(n_out, n_out, 3, padding=1)
        if n_in != n_out:
            self.nin_shortcut = nn.Conv2d(n_in, n_out, 1)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x) + h


class VaeAttention(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm = norm(n, 1e-6)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(n, n, 1) for _ in range(4))

    def forward(self, x):
        b, c, height, width = x.shape
        h = self.norm(x)
        q, k, v = (p(h).flatten(2).transpose(1, 2)[:, None] for p in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(b, c, height, width)
        return x + self.proj_out(h)


class Resample(nn.Module):
    def __init__(self, n: int, up: bool) -> None:
        super().__init__()
        self.up = up
        self.conv = nn.Conv2d(n, n, 3, padding=1) if up else nn.Conv2d(n, n, 3, stride=2)

    def forward(self, x):
        if self.up:
            return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))
        return self.conv(F.pad(x, (0, 1, 0, 1)))


def middle(n: int) -> nn.Module:
    return nn.ModuleDict({"block_1": VaeBlock(n, n), "attn_1": VaeAttention(n), "block_2": VaeBlock(n, n)})


class Encoder(nn.Module):
    def __init__(self, widths, latent: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down, at = nn.ModuleList(), widths[0]
        for level, n in enumerate(widths):
            stage = nn.ModuleDict({"block": nn.ModuleList([VaeBlock(at, n)])})
            if level < len(widths) - 1:
                stage["downsample"] = Resample(n, False)
            self.down.append(stage)
            at = n
        self.mid = middle(at)
        self.norm_out, self.conv_out = norm(at, 1e-6), nn.Conv2d(at, 2 * latent, 3, padding=1)

    def forward(self, x):
        h = self.conv_in(x)
        for stage in self.down:
            h = stage["block"][0](h)
            if "downsample" in stage:
                h = stage["downsample"](h)
        for name in ("block_1", "attn_1", "block_2"):
            h = self.mid[name](h)
        return self.conv_out(F.silu(self.norm_out(h)))


class Decoder(nn.Module):
    def __init__(self, widths, latent: int) -> None:
        super().__init__()
        at = widths[-1]
        self.conv_in = nn.Conv2d(latent, at, 3, padding=1)
        self.mid = middle(at)
        self.up = nn.ModuleList([nn.Module() for _ in widths])
        for level in reversed(range(len(widths))):
            n = widths[level]
            stage = nn.ModuleDict({"block": nn.ModuleList([VaeBlock(at, n), VaeBlock(n, n)])})
            if level > 0:
                stage["upsample"] = Resample(n, True)
            self.up[level] = stage
            at = n
        self.norm_out, self.conv_out = norm(at, 1e-6), nn.Conv2d(at, 3, 3, padding=1)

    def forward(self, z):
        h = self.conv_in(z)
        for name in ("block_1", "attn_1", "block_2"):
            h = self.mid[name](h)
        for level in reversed(range(len(self.up))):
            for block in self.up[level]["block"]:
                h = block(h)
            if "upsample" in self.up[level]:
                h = self.up[level]["upsample"](h)
        return self.conv_out(F.silu(self.norm_out(h)))


class Vae(nn.Module):
    SCALE = 0.18215

    def __init__(self, widths=(32, 32, 64, 128), latent: int = 4) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(widths, latent), Decoder(widths, latent)
        self.quant_conv = nn.Conv2d(2 * latent, 2 * latent, 1)
        self.post_quant_conv = nn.Conv2d(latent, latent, 1)

    def encode(self, x):
        return self.quant_conv(self.encoder(x)).chunk(2, 1)

    def decode(self, z):
        return self.decoder(self.post_quant_conv(z))

    @torch.no_grad()
    def standardise(self, mean, std) -> None:
        """Folds (z - mean) / std into the weights, so that latents times 0.18215 have mean 0 and deviation 1."""
        n, s = len(mean), 1 / (std * self.SCALE)
        self.quant_conv.weight[:n] *= s[:, None, None, None]
        self.quant_conv.bias[:n] = (self.quant_conv.bias[:n] - mean) * s
        self.quant_conv.bias[n:] += 2 * torch.log(s)
        self.post_quant_conv.bias += self.post_quant_conv.weight[:, :, 0, 0] @ mean
        self.post_quant_conv.weight /= s[None, :, None, None]


# --- Text encoder --------------------------------------------------------------------------------------------------


class ClipAttention(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(n, n) for _ in range(4))
        self.heads = n // 64

    def forward(self, x):
        b, length, n = x.shape
        q, k, v = (p(x).view(b, length, self.heads, 64).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(h.transpose(1, 2).reshape(b, length, n))


class ClipLayer(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.self_attn = ClipAttention(n)
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(n, 4 * n), "fc2": nn.Linear(4 * n, n)})

    def forward(self, x):
        x = x + self.self_attn(self.layer_norm1(x))
        h = self.mlp["fc1"](self.layer_norm2(x))
        return x + self.mlp["fc2"](h * torch.sigmoid(1.702 * h))


class Text(nn.Module):
    """The table is kept in eight bits in the file, so training sees it rounded to them."""

    def __init__(self, n: int = 256, layers: int = 4, vocabulary: int = 49408, length: int = 77) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {"token_embedding": nn.Embedding(vocabulary, n), "position_embedding": nn.Embedding(length, n)}
        )
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList([ClipLayer(n) for _ in range(layers)])})
        self.final_layer_norm = nn.LayerNorm(n)
        nn.init.normal_(self.embeddings["token_embedding"].weight, std=0.5)
        nn.init.normal_(self.embeddings["position_embedding"].weight, std=0.1)

    def forward(self, ids):
        words = self.embeddings["token_embedding"](ids)
        rounded = words.detach().to(torch.float8_e4m3fn).to(words.dtype)
        x = words + (rounded - words.detach()) + self.embeddings["position_embedding"].weight[: ids.shape[1]]
        for layer in self.encoder["layers"]:
            x = layer(x)
        return self.final_layer_norm(x)


# --- UNet ----------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, n_in: int, n_out: int, emb: int) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(norm(n_in, 1e-5), nn.SiLU(), nn.Conv2d(n_in, n_out, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(emb, n_out))
        self.out_layers = nn.Sequential(norm(n_out, 1e-5), nn.SiLU(), nn.Identity(), nn.Conv2d(n_out, n_out, 3, padding=1))
        self.skip_connection = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else nn.Identity()
        nn.init.zeros_(self.out_layers[3].weight)

    def forward(self, x, emb):
        h = self.in_layers(x) + self.emb_layers(emb)[:, :, None, None]
        return self.skip_connection(x) + self.out_layers(h)


class CrossAttention(nn.Module):
    HEADS = 8

    def __init__(self, n: int, context: int) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(m, n, bias=False) for m in (n, context, context))
        self.to_out = nn.Sequential(nn.Linear(n, n))

    def forward(self, x, context):
        b, length, n = x.shape
        q, k, v = (t.view(b, -1, self.HEADS, n // self.HEADS).transpose(1, 2) for t in (self.to_q(x), self.to_k(context), self.to_v(context)))
        h = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(h.transpose(1, 2).reshape(b, length, n))


class Gated(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.proj = nn.Linear(n, 8 * n)

    def forward(self, x):
        a, g = self.proj(x).chunk(2, -1)
        return a * F.gelu(g)


class TransformerBlock(nn.Module):
    def __init__(self, n: int, context: int) -> None:
        super().__init__()
        self.attn1, self.attn2 = CrossAttention(n, n), CrossAttention(n, context)
        self.ff = nn.ModuleDict({"net": nn.Sequential(Gated(n), nn.Identity(), nn.Linear(4 * n, n))})
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(n) for _ in range(3))

    def forward(self, x, context):
        h = self.norm1(x)
        x = x + self.attn1(h, h)
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff["net"](self.norm3(x))


class Transformer(nn.Module):
    def __init__(self, n: int, context: int) -> None:
        super().__init__()
        self.norm = norm(n, 1e-6)
        self.proj_in, self.proj_out = nn.Conv2d(n, n, 1), nn.Conv2d(n, n, 1)
        self.transformer_blocks = nn.ModuleList([TransformerBlock(n, context)])
        nn.init.zeros_(self.proj_out.weight)

    def forward(self, x, context):
        b, c, height, width = x.shape
        h = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        h = self.transformer_blocks[0](h, context)
        return x + self.proj_out(h.transpose(1, 2).reshape(b, c, height, width))


class Down(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.op = nn.Conv2d(n, n, 3, stride=2, padding=1)

    def forward(self, x):
        return self.op(x)


class Unet(nn.Module):
    def __init__(self, widths=(64, 128, 320), attention=(False, False, True), context: int = 256, latent: int = 4) -> None:
        super().__init__()
        first = widths[0]
        emb = 4 * first
        self.first = first
        self.time_embed = nn.Sequential(nn.Linear(first, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.input_blocks = nn.ModuleList([nn.ModuleList([nn.Conv2d(latent, first, 3, padding=1)])])
        at, skips = first, [first]
        for level, n in enumerate(widths):
            block = [Residual(at, n, emb)] + ([Transformer(n, context)] if attention[level] else [])
            self.input_blocks.append(nn.ModuleList(block))
            at = n
            skips.append(at)
            if level < len(widths) - 1:
                self.input_blocks.append(nn.ModuleList([Down(at)]))
                skips.append(at)
        self.middle_block = nn.ModuleList([Residual(at, at, emb), Transformer(at, context), Residual(at, at, emb)])
        self.output_blocks = nn.ModuleList()
        for level in reversed(range(len(widths))):
            n = widths[level]
            for i in range(2):
                block = [Residual(at + skips.pop(), n, emb)] + ([Transformer(n, context)] if attention[level] else [])
                at = n
                if i == 1 and level > 0:
                    block.append(Resample(n, True))
                self.output_blocks.append(nn.ModuleList(block))
        self.out = nn.Sequential(norm(at, 1e-5), nn.SiLU(), nn.Conv2d(at, latent, 3, padding=1))
        nn.init.zeros_(self.out[2].weight)

    @staticmethod
    def through(block, x, emb, context):
        for layer in block:
            if isinstance(layer, Residual):
                x = layer(x, emb)
            elif isinstance(layer, Transformer):
                x = layer(x, context)
            else:
                x = layer(x)
        return x

    def forward(self, x, t, context):
        half = self.first // 2
        angles = t[:, None].float() * torch.exp(-math.log(10000) / half * torch.arange(half, device=t.device))[None]
        emb = self.time_embed(torch.cat([angles.cos(), angles.sin()], 1).to(x.dtype))
        skips = []
        for block in self.input_blocks:
            x = self.through(block, x, emb, context)
            skips.append(x)
        x = self.through(self.middle_block, x, emb, context)
        for block in self.output_blocks:
            x = self.through(block, torch.cat([x, skips.pop()], 1), emb, context)
        return self.out(x)


# --- Preview decoder -----------------------------------------------------------------------------------------------


class SmallBlock(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        c = [nn.Conv2d(n, n, 3, padding=1) for _ in range(3)]
        self.conv = nn.Sequential(c[0], nn.ReLU(), c[1], nn.ReLU(), c[2])

    def forward(self, x):
        return F.relu(x + self.conv(x))


class Clamp(nn.Module):
    def forward(self, x):
        return torch.tanh(x / 3) * 3


def preview_decoder(n: int = 32, latent: int = 4) -> nn.Sequential:
    """The layout of TAESD's decoder, narrower. Takes latents as the UNet has them, gives pixels in 0..1."""
    layers: list[nn.Module] = [Clamp(), nn.Conv2d(latent, n, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [SmallBlock(n) for _ in range(3)] + [nn.Upsample(scale_factor=2), nn.Conv2d(n, n, 3, padding=1, bias=False)]
    return nn.Sequential(*layers, SmallBlock(n), nn.Conv2d(n, 3, 3, padding=1))
