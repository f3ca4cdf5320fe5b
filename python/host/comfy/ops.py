"""Layers of torch whose weights are not drawn at random when they are made, and that can cast their weights when they are used.

Packs build networks of their own from these: `disable_weight_init` computes in the type of the weights, `manual_cast` in the
type of the input.
"""

import torch

import comfy.float
import comfy.rmsnorm
from fresco_host.placeholders import fallback


def cast_to(weight, dtype=None, device=None, non_blocking=False, copy=False, stream=None):
    """The tensor in another type and on another device; itself where nothing changes and no copy is asked for."""
    if device is None:
        device = weight.device
    return weight.to(device=device, dtype=weight.dtype if dtype is None else dtype, non_blocking=non_blocking, copy=copy)


def cast_to_input(weight, input, non_blocking=False, copy=True):
    return cast_to(weight, input.dtype, input.device, non_blocking=non_blocking, copy=copy)


def cast_bias_weight(s, input=None, dtype=None, device=None, bias_dtype=None, offloadable=False):
    """Weight and bias of a layer as an input needs them, with the functions applied that packs put on them.

    With `offloadable` a third value is given that `uncast_bias_weight` takes back.
    """
    if input is not None:
        dtype = input.dtype if dtype is None else dtype
        device = input.device if device is None else device
    if bias_dtype is None:
        bias_dtype = dtype

    def ready(tensor, kind, functions):
        if tensor is None:
            return None
        made = cast_to(tensor, None if functions else kind, device, copy=bool(functions))
        for function in functions:
            made = function(made)
        return made if kind is None or made.dtype == kind else made.to(kind)

    weight = ready(s.weight, dtype, s.weight_function)
    bias = ready(getattr(s, "bias", None), bias_dtype, s.bias_function)
    return (weight, bias, None) if offloadable else (weight, bias)


def uncast_bias_weight(s, weight, bias, offload_stream):
    """The end of the use of what `cast_bias_weight` gave. Nothing is streamed here, so there is nothing to wait for."""


class CastWeightBiasOp:
    comfy_cast_weights = False
    weight_function = []
    bias_function = []


class _Layer(CastWeightBiasOp):
    """What all layers have: no values at the start, and two ways forward."""

    def reset_parameters(self):
        return None

    def _casts(self):
        return self.comfy_cast_weights or len(self.weight_function) > 0 or len(self.bias_function) > 0

    def forward(self, *args, **kwargs):
        if self._casts():
            return self.forward_comfy_cast_weights(*args, **kwargs)
        return super().forward(*args, **kwargs)


def _convolution(base):
    class Convolution(_Layer, base):
        def forward_comfy_cast_weights(self, input):
            weight, bias, stream = cast_bias_weight(self, input, offloadable=True)
            made = self._conv_forward(input, weight, bias)
            uncast_bias_weight(self, weight, bias, stream)
            return made

    return Convolution


def _transposed(base, dims, function):
    class Transposed(_Layer, base):
        def forward_comfy_cast_weights(self, input, output_size=None):
            padding = self._output_padding(
                input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
            )
            weight, bias, stream = cast_bias_weight(self, input, offloadable=True)
            made = function(input, weight, bias, self.stride, self.padding, padding, self.groups, self.dilation)
            uncast_bias_weight(self, weight, bias, stream)
            return made

    return Transposed


class disable_weight_init:
    """The layers, as attributes."""

    class Linear(_Layer, torch.nn.Linear):
        def forward_comfy_cast_weights(self, input):
            weight, bias, stream = cast_bias_weight(self, input, offloadable=True)
            made = torch.nn.functional.linear(input, weight, bias)
            uncast_bias_weight(self, weight, bias, stream)
            return made

    class Conv1d(_convolution(torch.nn.Conv1d)):
        pass

    class Conv2d(_convolution(torch.nn.Conv2d)):
        pass

    class Conv3d(_convolution(torch.nn.Conv3d)):
        pass

    class ConvTranspose1d(_transposed(torch.nn.ConvTranspose1d, 1, torch.nn.functional.conv_transpose1d)):
        pass

    class ConvTranspose2d(_transposed(torch.nn.ConvTranspose2d, 2, torch.nn.functional.conv_transpose2d)):
        pass

    class GroupNorm(_Layer, torch.nn.GroupNorm):
        def forward_comfy_cast_weights(self, input):
            weight, bias, stream = cast_bias_weight(self, input, offloadable=True)
            made = torch.nn.functional.group_norm(input, self.num_groups, weight, bias, self.eps)
            uncast_bias_weight(self, weight, bias, stream)
            return made

    class LayerNorm(_Layer, torch.nn.LayerNorm):
        def forward_comfy_cast_weights(self, input):
            if self.weight is None:
                return torch.nn.functional.layer_norm(input, self.normalized_shape, None, None, self.eps)
            weight, bias, stream = cast_bias_weight(self, input, offloadable=True)
            made = torch.nn.functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)
            uncast_bias_weight(self, weight, bias, stream)
            return made

    class RMSNorm(_Layer, comfy.rmsnorm.RMSNorm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.bias = None

        def forward_comfy_cast_weights(self, input):
            if self.weight is None:
                return comfy.rmsnorm.rms_norm(input, None, self.eps)
            weight, bias, stream = cast_bias_weight(self, input, offloadable=True)
            made = comfy.rmsnorm.rms_norm(input, weight, self.eps)
            uncast_bias_weight(self, weight, bias, stream)
            return made

    class Embedding(_Layer, torch.nn.Embedding):
        def reset_parameters(self):
            self.bias = None

        def forward_comfy_cast_weights(self, input, out_dtype=None):
            # The type of the result: half numbers are looked up first, which moves less.
            kind = out_dtype
            if self.weight.dtype in (torch.float16, torch.bfloat16):
                out_dtype = None
            weight, bias, stream = cast_bias_weight(self, device=input.device, dtype=out_dtype, offloadable=True)
            made = torch.nn.functional.embedding(
                input, weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
            )
            uncast_bias_weight(self, weight, bias, stream)
            return made if kind is None else made.to(dtype=kind)

        def forward(self, input, out_dtype=None, **kwargs):
            if self._casts():
                return self.forward_comfy_cast_weights(input, out_dtype=out_dtype)
            made = torch.nn.Embedding.forward(self, input)
            return made if out_dtype is None else made.to(dtype=out_dtype)

    @classmethod
    def conv_nd(cls, dims, *args, **kwargs):
        kinds = {1: cls.Conv1d, 2: cls.Conv2d, 3: cls.Conv3d}
        if dims not in kinds:
            raise ValueError(f"comfy.ops: a convolution has 1, 2 or 3 dimensions, not {dims}")
        return kinds[dims](*args, **kwargs)


def _named(group):
    """Classes made by a function carry the name by which packs and messages know them."""
    for name, kind in list(vars(group).items()):
        if isinstance(kind, type):
            kind.__name__, kind.__qualname__ = name, f"{group.__name__}.{name}"


_named(disable_weight_init)


class manual_cast(disable_weight_init):
    """The same layers, which compute in the type and on the device of their input."""

    class Linear(disable_weight_init.Linear):
        comfy_cast_weights = True

    class Conv1d(disable_weight_init.Conv1d):
        comfy_cast_weights = True

    class Conv2d(disable_weight_init.Conv2d):
        comfy_cast_weights = True

    class Conv3d(disable_weight_init.Conv3d):
        comfy_cast_weights = True

    class ConvTranspose1d(disable_weight_init.ConvTranspose1d):
        comfy_cast_weights = True

    class ConvTranspose2d(disable_weight_init.ConvTranspose2d):
        comfy_cast_weights = True

    class GroupNorm(disable_weight_init.GroupNorm):
        comfy_cast_weights = True

    class LayerNorm(disable_weight_init.LayerNorm):
        comfy_cast_weights = True

    class RMSNorm(disable_weight_init.RMSNorm):
        comfy_cast_weights = True

    class Embedding(disable_weight_init.Embedding):
        comfy_cast_weights = True


# Weights of eight bits


def fp8_linear(self, input):
    """The product of a layer whose weight is of eight bits, by scaled multiplication on hardware that has it.

    None says that this layer and this input must be computed in another way.
    """
    weight = getattr(self, "weight", None)
    if weight is None or weight.dtype not in (torch.float8_e4m3fn,) or len(input.shape) not in (2, 3):
        return None
    if input.device.type != "cuda" or torch.cuda.get_device_capability(input.device) < (8, 9):
        return None
    shape, kind = input.shape, input.dtype
    one = torch.ones((), device=input.device, dtype=torch.float32)
    scale_weight = getattr(self, "scale_weight", None)
    scale_weight = one if scale_weight is None else scale_weight.to(input.device, torch.float32)
    scale_input = getattr(self, "scale_input", None)
    scale_input = one if scale_input is None else scale_input.to(input.device, torch.float32)
    most = torch.finfo(weight.dtype).max
    flat = torch.clamp(input.reshape(-1, shape[-1]).float() / scale_input, -most, most).to(weight.dtype).contiguous()
    bias = None if self.bias is None else cast_to(self.bias, kind, input.device)
    made = torch._scaled_mm(
        flat, cast_to(weight, None, input.device).t(), out_dtype=kind, bias=bias, scale_a=scale_input, scale_b=scale_weight
    )
    return made.reshape(*shape[:-1], weight.shape[0])


class fp8_ops(manual_cast):
    class Linear(manual_cast.Linear):
        def reset_parameters(self):
            self.scale_weight = None
            self.scale_input = None

        def forward_comfy_cast_weights(self, input):
            made = None if self.training or self.weight_function else fp8_linear(self, input)
            return super().forward_comfy_cast_weights(input) if made is None else made


def scaled_fp8_ops(fp8_matrix_mult=False, scale_input=False, override_dtype=None):
    """Layers whose weights of eight bits have one factor each, `scale_weight` in the file."""

    class scaled_fp8_op(manual_cast):
        class Linear(manual_cast.Linear):
            def __init__(self, *args, **kwargs):
                if override_dtype is not None:
                    kwargs["dtype"] = override_dtype
                super().__init__(*args, **kwargs)

            def reset_parameters(self):
                device = self.weight.device
                self.scale_weight = torch.nn.Parameter(torch.ones((), device=device, dtype=torch.float32), requires_grad=False)
                self.scale_input = None
                if scale_input:
                    self.scale_input = torch.nn.Parameter(torch.ones((), device=device, dtype=torch.float32), requires_grad=False)

            def forward_comfy_cast_weights(self, input):
                made = fp8_linear(self, input) if fp8_matrix_mult else None
                if made is not None:
                    return made
                weight, bias = cast_bias_weight(self, input)
                scale = self.scale_weight.to(device=weight.device, dtype=weight.dtype)
                return torch.nn.functional.linear(input, weight * scale, bias)

            def convert_weight(self, weight, inplace=False, **kwargs):
                scale = self.scale_weight.to(device=weight.device, dtype=weight.dtype)
                return weight.mul_(scale) if inplace else weight * scale

            def set_weight(self, weight, inplace_update=False, seed=None, return_weight=False, **kwargs):
                scale = self.scale_weight.to(device=weight.device, dtype=weight.dtype)
                weight = comfy.float.stochastic_rounding(weight / scale, self.weight.dtype, seed=seed or 0)
                if return_weight:
                    return weight
                if inplace_update:
                    self.weight.data.copy_(weight)
                else:
                    self.weight = torch.nn.Parameter(weight, requires_grad=False)

    return scaled_fp8_op


def linear_input_act(linear, input, activation):
    """A layer of an activated input; `swiglu` takes the first half as the gate."""
    if activation == "swiglu":
        gate, value = input.chunk(2, dim=-1)
        return linear(torch.nn.functional.silu(gate) * value)
    functions = {
        "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "relu": torch.nn.functional.relu,
        "gelu_tanh": lambda value: torch.nn.functional.gelu(value, approximate="tanh"),
    }
    if activation not in functions:
        raise ValueError(f"comfy.ops.linear_input_act knows no activation {activation!r}; it has swiglu, {', '.join(functions)}")
    return linear(functions[activation](input))


def pick_operations(
    weight_dtype, compute_dtype, load_device=None, disable_fast_fp8=False, fp8_optimizations=False, scaled_fp8=None, model_config=None
):
    """The group of layers for weights of one type and computing in another."""
    if scaled_fp8 is not None:
        return scaled_fp8_ops(fp8_matrix_mult=fp8_optimizations and not disable_fast_fp8, scale_input=True, override_dtype=scaled_fp8)
    if fp8_optimizations and not disable_fast_fp8 and (load_device is None or torch.device(load_device).type == "cuda"):
        return fp8_ops
    if compute_dtype is None or weight_dtype == compute_dtype:
        return disable_weight_init
    return manual_cast


__getattr__ = fallback(__name__)
