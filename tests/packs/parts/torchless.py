"""What is made of torch, in a Python without it."""

import comfy.ldm.modules.attention
import comfy.ops
from comfy.ldm.flux.layers import EmbedND
from comfy.ldm.modules.attention import optimized_attention


class Own(comfy.ops.disable_weight_init.GroupNorm):
    """Packs do this while they are imported."""


def check_parts_of_torch_say_what_is_missing():
    kept = comfy.ops.manual_cast.Linear.forward
    assert kept is not None
    for use in (lambda: optimized_attention(1, 2, 3, 4), Own, lambda: EmbedND(1, 2, [3]), lambda: comfy.ops.cast_to(1)):
        try:
            use()
        except RuntimeError as error:
            assert "needs torch" in str(error) and "pip install torch" in str(error), error
        else:
            raise AssertionError("it was used without torch")
