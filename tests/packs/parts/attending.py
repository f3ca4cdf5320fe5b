"""comfy.ldm.modules.attention and what lies around it."""

import comfy.ldm.common_dit
import comfy.ldm.flux.layers as layers
import comfy.ldm.flux.math as turned
import comfy.ldm.modules.attention as attention
import comfy.ldm.modules.diffusionmodules.util as util
import comfy.ldm.modules.distributions.distributions as distributions
import comfy.ldm.util
import torch
from comfy.ldm.modules.sub_quadratic_attention import efficient_dot_product_attention

from .layers import filled, near

torch.manual_seed(3)
Q, K, V = torch.randn(2, 40, 32), torch.randn(2, 33, 32), torch.randn(2, 33, 32)


def slow(q, k, v, heads, mask=None):
    """Head by head, from the formula."""
    size = q.shape[-1] // heads
    out = torch.zeros(*q.shape[:2], v.shape[-1])
    for item in range(q.shape[0]):
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            logits = q[item, :, part] @ k[item, :, part].T / size**0.5
            if mask is not None:
                logits = logits + (mask if mask.ndim == 2 else mask[item])
            out[item, :, part] = logits.softmax(-1) @ v[item, :, part]
    return out


def heads_apart(x):
    return x.view(2, -1, 4, 8).transpose(1, 2)


def functions():
    names = {"basic", "split", "sub_quad", "pytorch"}
    assert names <= set(attention.REGISTERED_ATTENTION_FUNCTIONS)
    more = [attention.optimized_attention, attention.optimized_attention_masked, attention.attention_xformers]
    more += [attention.attention_flash, attention.attention_sage, attention.optimized_attention_for_device("cpu", mask=True)]
    return [attention.get_attention_function(name) for name in sorted(names)] + more


def check_every_way_to_attend():
    seen = torch.rand(40, 33) > 0.5
    for mask in (None, torch.randn(40, 33), torch.randn(2, 40, 33)):
        expected = slow(Q, K, V, 4, mask)
        for function in functions():
            near(function(Q, K, V, 4, mask), expected)
            apart = [heads_apart(x) for x in (Q, K, V)]
            near(function(*apart, 4, mask, skip_reshape=True), expected)
            near(function(*apart, 4, mask, skip_reshape=True, skip_output_reshape=True), heads_apart(expected))
    expected = slow(Q, K, V, 4, torch.zeros(40, 33).masked_fill(~seen, -1e30))
    for function in functions():
        near(function(Q, K, V, 4, mask=seen, attn_precision=torch.float32), expected)
    made = efficient_dot_product_attention(Q, K.transpose(1, 2), V, query_chunk_size=7, kv_chunk_size=5)
    near(made, slow(Q, K, V, 1))


def check_an_override_computes_instead():
    called = []

    def override(function, *args, **kwargs):
        called.append(function.__name__)
        return function(*args, **kwargs) * 2

    options = {"optimized_attention_override": override}
    near(attention.optimized_attention(Q, K, V, 4, transformer_options=options), slow(Q, K, V, 4) * 2)
    assert len(called) == 1, called


def check_layers_of_attention():
    layer = filled(attention.CrossAttention(8, 6, heads=2, dim_head=4))
    x, context = torch.randn(2, 5, 8), torch.randn(2, 3, 6)
    q, k, v = x @ layer.to_q.weight.T, context @ layer.to_k.weight.T, context @ layer.to_v.weight.T
    near(layer(x, context), slow(q, k, v, 2) @ layer.to_out[0].weight.T + layer.to_out[0].bias, 1e-4)
    forward = filled(attention.FeedForward(8, glu=True))
    value, gate = (x @ forward.net[0].proj.weight.T + forward.net[0].proj.bias).chunk(2, -1)
    gate = gate * 0.5 * (1 + torch.erf(gate / 2**0.5))
    near(forward(x), (value * gate) @ forward.net[2].weight.T + forward.net[2].bias, 1e-3)


def check_turned_positions():
    x, pos = torch.randn(1, 2, 10, 16), torch.arange(10.0)
    pairs = torch.view_as_complex(x.double().reshape(1, 2, 10, 8, 2).contiguous())
    angle = pos.double()[:, None] * 10000 ** (-torch.arange(8, dtype=torch.float64) / 8)
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).reshape(1, 2, 10, 16)
    rotation = turned.rope(pos[None], 16, 10000).unsqueeze(1)
    near(turned.apply_rope1(x, rotation), expected)
    one, other = turned.apply_rope(x, x * 2, rotation)
    near(other, one * 2)
    ids = torch.rand(1, 10, 3)
    embedded = layers.EmbedND(16, 10000, [4, 6, 6])(ids)
    assert embedded.shape == (1, 1, 10, 8, 2, 2)
    near(embedded[:, 0, :, 2:5], turned.rope(ids[..., 1], 6, 10000))
    apart = [heads_apart(part) for part in (Q, K, V)]
    near(turned.attention(*apart, None), slow(Q, K, V, 4))


def check_times():
    import math

    t = torch.tensor([0.25, 0.7])
    flux, unet = layers.timestep_embedding(t, 8), util.timestep_embedding(t * 1000, 9)
    for row, time in enumerate((250.0, 700.0)):
        for i in range(4):
            angle = time * math.exp(-math.log(10000) * i / 4)
            assert abs(float(flux[row, i]) - math.cos(angle)) < 1e-4 and abs(float(flux[row, 4 + i]) - math.sin(angle)) < 1e-4
    near(flux, unet[:, :8])
    assert float(unet[0, 8]) == 0.0
    near(util.timestep_embedding(t, 3, repeat_only=True), t[:, None].repeat(1, 3), 0)


def check_modulation():
    modulation, x = filled(layers.Modulation(8, True)), torch.randn(2, 5, 8)
    first, second = modulation(torch.randn(2, 8))
    assert isinstance(first, layers.ModulationOut) and first.gate.shape == (2, 1, 8)
    near(layers.apply_mod(x, 1 + first.scale, first.shift), x * (1 + first.scale) + first.shift)
    some = layers.apply_mod(x.clone(), 1 + second.scale, second.shift, [(2, 4, 0)])
    near(some[:, 2:4], x[:, 2:4] * (1 + second.scale) + second.shift)
    near(some[:, :2], x[:, :2], 0)


def check_small_parts():
    picture = torch.arange(9.0).view(1, 1, 3, 3)
    expected = torch.tensor([[0.0, 1, 2, 0], [3, 4, 5, 3], [6, 7, 8, 6], [0, 1, 2, 0]])
    near(comfy.ldm.common_dit.pad_to_patch_size(picture)[0, 0], expected, 0)
    assert comfy.ldm.common_dit.pad_to_patch_size(torch.zeros(1, 2, 3, 4, 5), (2, 2, 2)).shape == (1, 2, 4, 4, 6)
    assert comfy.ldm.util.default(None, lambda: 4) == 4 and comfy.ldm.util.exists(0) and not comfy.ldm.util.exists(None)
    assert all(float(p.abs().sum()) == 0 for p in util.zero_module(torch.nn.Linear(2, 2)).parameters())
    given = torch.cat([torch.full((1, 2, 1, 1), 3.0), torch.zeros(1, 2, 1, 1)], 1)
    normal = distributions.DiagonalGaussianDistribution(given)
    near(normal.mode(), given[:, :2], 0)
    near(normal.kl(), torch.tensor([9.0]))
    blend = util.AlphaBlender(0.5, "fixed")
    near(blend(torch.ones(1), torch.zeros(1)), torch.tensor([0.5]))
