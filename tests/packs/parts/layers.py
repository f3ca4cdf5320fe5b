"""comfy.ops, comfy.float, comfy.rmsnorm."""

import comfy.float
import comfy.ops
import torch

OPS = (comfy.ops.disable_weight_init, comfy.ops.manual_cast)


def near(a, b, off=1e-5):
    assert a.shape == b.shape, (a.shape, b.shape)
    far = float((a.detach().double() - b.detach().double()).abs().max())
    assert far <= off, far


def filled(layer):
    for parameter in layer.parameters():
        parameter.data.normal_()
    return layer


def check_layers_give_what_those_of_torch_give():
    torch.manual_seed(1)
    cases = (
        ("Linear", torch.nn.Linear, (4, 3), {}, (2, 4)), ("Conv1d", torch.nn.Conv1d, (4, 3, 3), {"padding": 1}, (2, 4, 9)),
        ("Conv2d", torch.nn.Conv2d, (4, 3, 3), {"stride": 2}, (2, 4, 9, 9)),
        ("Conv3d", torch.nn.Conv3d, (4, 3, 3), {}, (1, 4, 5, 5, 5)),
        ("ConvTranspose1d", torch.nn.ConvTranspose1d, (4, 3, 3), {"stride": 2}, (1, 4, 5)),
        ("ConvTranspose2d", torch.nn.ConvTranspose2d, (4, 3, 3), {"stride": 2, "output_padding": 1}, (1, 4, 5, 5)),
        ("GroupNorm", torch.nn.GroupNorm, (2, 4), {}, (2, 4, 3, 3)), ("LayerNorm", torch.nn.LayerNorm, (4,), {}, (2, 4)),
        ("RMSNorm", torch.nn.RMSNorm, (4,), {"eps": 1e-6}, (2, 4)),
    )
    for ops in OPS:
        for name, plain, arguments, more, shape in cases:
            ours = filled(getattr(ops, name)(*arguments, **more))
            theirs = plain(*arguments, **more)
            theirs.load_state_dict(ours.state_dict())
            x = torch.randn(shape)
            near(ours(x), theirs(x))
            assert isinstance(ours, plain) and isinstance(ours, comfy.ops.CastWeightBiasOp)
    assert type(ops.conv_nd(2, 3, 4, 3)) is comfy.ops.manual_cast.Conv2d
    assert comfy.ops.disable_weight_init.conv_nd(3, 3, 4, 3).kernel_size == (3, 3, 3)


def check_a_cast_layer_computes_in_the_type_of_its_input():
    torch.manual_seed(2)
    layer = filled(comfy.ops.manual_cast.Linear(4, 3, dtype=torch.float16))
    x = torch.randn(2, 4)
    made = layer(x)
    assert made.dtype == torch.float32
    near(made, x @ layer.weight.float().T + layer.bias.float())
    table = filled(comfy.ops.manual_cast.Embedding(5, 3, dtype=torch.float16))
    near(table(torch.tensor([3, 1]), out_dtype=torch.float32), table.weight.float()[[3, 1]])
    assert table(torch.tensor([1])).dtype == torch.float16
    assert filled(comfy.ops.disable_weight_init.Embedding(5, 3))(torch.tensor([1]), out_dtype=torch.float16).dtype == torch.float16
    bare = comfy.ops.manual_cast.LayerNorm(4, elementwise_affine=False)
    near(bare(x), torch.nn.functional.layer_norm(x, (4,)))


def check_functions_on_weights():
    layer = filled(comfy.ops.disable_weight_init.Linear(4, 3))
    plain, x = layer.weight.detach().clone(), torch.randn(2, 4)
    layer.weight_function = [lambda weight: weight * 2, lambda weight: weight + 1]
    layer.bias_function = [lambda bias: bias * 0]
    near(layer(x), x @ (plain * 2 + 1).T)
    near(layer.weight, plain, 0)
    weight, bias, kept = comfy.ops.cast_bias_weight(layer, x, offloadable=True)
    comfy.ops.uncast_bias_weight(layer, weight, bias, kept)
    near(weight, plain * 2 + 1)


def check_layers_can_be_subclassed_and_replaced():
    class Own(comfy.ops.manual_cast.Linear):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.weight, self.bias = torch.nn.Parameter(torch.full((1, 2), 3.0)), None

    near(Own()(torch.ones(1, 2)), torch.tensor([[6.0]]))
    kind = comfy.ops.disable_weight_init.GroupNorm
    before = kind.forward_comfy_cast_weights
    try:
        kind.forward_comfy_cast_weights = lambda self, x: x * 7
        near(comfy.ops.manual_cast.GroupNorm(1, 2)(torch.ones(1, 2, 1)), torch.full((1, 2, 1), 7.0))
    finally:
        kind.forward_comfy_cast_weights = before


def check_which_operations():
    half, full = torch.float16, torch.float32
    assert comfy.ops.pick_operations(half, half) is comfy.ops.disable_weight_init
    assert comfy.ops.pick_operations(half, None, disable_fast_fp8=True) is comfy.ops.disable_weight_init
    assert comfy.ops.pick_operations(half, full) is comfy.ops.manual_cast


def check_casts():
    value = torch.ones(2)
    assert comfy.ops.cast_to(value) is value
    assert comfy.ops.cast_to(value, copy=True) is not value
    assert comfy.ops.cast_to_input(value, torch.zeros(1, dtype=torch.float16)).dtype == torch.float16
    x, weight = torch.randn(2, 4), torch.randn(4)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    near(comfy.ops.comfy.rmsnorm.rms_norm(x, weight), expected * weight)
    near(comfy.ops.comfy.rmsnorm.rms_norm(x), expected)


def check_weights_of_eight_bits():
    layer = comfy.ops.scaled_fp8_ops()
    made = layer.Linear(4, 3, bias=False, dtype=torch.float8_e4m3fn)
    made.weight = torch.nn.Parameter(torch.ones(3, 4).to(torch.float8_e4m3fn), requires_grad=False)
    made.scale_weight.data.fill_(0.5)
    near(made(torch.ones(1, 4)), torch.full((1, 3), 2.0))
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        every = torch.arange(256, dtype=torch.uint8).view(kind).float()
        every = every[every.isfinite()]
        near(comfy.float.stochastic_rounding(every, kind).float(), every, 0)
    value = torch.full((4096,), 1.03)
    made = comfy.float.stochastic_rounding(value, torch.float8_e4m3fn, seed=3).float()
    # The neighbours are 1 and 1.125.
    assert set(made.tolist()) == {1.0, 1.125}
    assert abs(float(made.mean()) - 1.03) < 0.005
