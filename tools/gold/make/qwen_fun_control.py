"""A control net of Qwen-Image that goes along with it (Fun): its blocks are those of diffusers' transformer.

Rows and columns of tokens are even: diffusers places odd ones by one less than the reference does."""

import torch
from diffusers import QwenImageTransformer2DModel
from torch import nn

from scheme import FOLDER, fill, save, value

CONFIG = {
    "patch_size": 2,
    "in_channels": 64,
    "out_channels": 16,
    "num_layers": 5,
    "attention_head_dim": 32,
    "num_attention_heads": 3,
    "joint_attention_dim": 56,
    "axes_dims_rope": (4, 14, 14),
}
CONTROL_LAYERS = [0, 2]
HINT = 33
SCALE = 0.75


class Control(nn.Module):
    """Blocks beside the transformer's own, and what goes into them and comes out of them."""

    def __init__(self, block, width):
        super().__init__()
        self.control_img_in = nn.Linear(4 * HINT, width)
        self.control_blocks = nn.ModuleList(block() for _ in CONTROL_LAYERS)
        for number, one in enumerate(self.control_blocks):
            if number == 0:
                one.before_proj = nn.Linear(width, width)
            one.after_proj = nn.Linear(width, width)


def packed(latent):
    """Squares of two by two cells as tokens, channel by channel."""
    b, c, _, h, w = latent.shape
    cells = latent[:, :, 0].reshape(b, c, h // 2, 2, w // 2, 2)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(b, h // 2 * (w // 2), 4 * c)


def main():
    net = QwenImageTransformer2DModel(**CONFIG).eval()
    width = CONFIG["attention_head_dim"] * CONFIG["num_attention_heads"]
    block = type(net.transformer_blocks[0])
    control = Control(
        lambda: block(
            dim=width,
            num_attention_heads=CONFIG["num_attention_heads"],
            attention_head_dim=CONFIG["attention_head_dim"],
        ),
        width,
    ).eval()
    keys = {**fill(net), **fill(control)}
    x = value("x", (2, 16, 1, 8, 12), 1.7)
    hint = value("hint", (2, HINT, 1, 8, 12), 1.7)
    context = value("context", (2, 6, 56), 1.5)
    t = torch.tensor([0.7, 0.35])

    # The layers before the first block, as the transformer has them.
    img = net.img_in(packed(x))
    txt = net.txt_in(net.txt_norm(context))
    temb = net.time_text_embed(t, img)
    rope = net.pos_embed([(1, 4, 6)], max_txt_seq_len=6, device=img.device)

    def run(one, img, txt):
        return one(
            hidden_states=img,
            encoder_hidden_states=txt,
            encoder_hidden_states_mask=None,
            temb=temb,
            image_rotary_emb=rope,
        )

    hints = {}
    c, seen = control.control_img_in(packed(hint)), txt
    c = control.control_blocks[0].before_proj(c) + img
    for place, one in zip(CONTROL_LAYERS, control.control_blocks):
        seen, c = run(one, c, seen)
        hints[place] = one.after_proj(c)
    for number, one in enumerate(net.transformer_blocks):
        txt, img = run(one, img, txt)
        if number in hints:
            img = img + SCALE * hints[number]
    out = net.proj_out(net.norm_out(img, temb))
    out = out.reshape(2, 4, 6, 16, 2, 2).permute(0, 3, 1, 4, 2, 5)
    out = out.reshape(2, 16, 1, 8, 12)

    about = (
        "Qwen-Image and a control net that goes along with it (VideoX-Fun's arrangement of diffusers' blocks): "
        "hint/N is what is added after block N, out the prediction with that times 0.75."
    )
    tensors = {"x": x, "t": t, "context": context, "hint": hint, "out": out}
    tensors |= {f"hint/{place}": made for place, made in hints.items()}
    config = {**CONFIG, "control_layers": CONTROL_LAYERS, "strength": SCALE}
    save(FOLDER, "qwen_fun_control_small", about, keys, tensors, config=config)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
