"""What one step of the networks of `cargo xtask bench transformers` takes with torch and diffusers, in f32 as the reference
computes on a processor: a measure that stands on the same machine as ours.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch diffusers transformers
    /tmp/torch/bin/python tools/bench/torch_steps.py [sd3] [flux] [sdxl]

Weights are made up (the arithmetic is the same whatever they are); the fastest of several passes counts, as in the bench.
"""

import sys
import time

import torch
from diffusers import (
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    UNet2DConditionModel,
)


def fastest(step, passes=5):
    """Seconds, and seconds of processor time, of the fastest pass."""
    step()
    best = []
    for _ in range(passes):
        begun, busy = time.perf_counter(), time.process_time()
        step()
        best.append((time.perf_counter() - begun, time.process_time() - busy))
    return min(best)


def sd3():
    net = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=16,
        num_layers=6,
        attention_head_dim=64,
        num_attention_heads=6,
        joint_attention_dim=4096,
        caption_projection_dim=384,
        pooled_projection_dim=2048,
        out_channels=16,
        pos_embed_max_size=192,
    )
    return net, {
        "hidden_states": torch.randn(2, 16, 8, 8),
        "encoder_hidden_states": torch.randn(2, 154, 4096),
        "pooled_projections": torch.randn(2, 2048),
        "timestep": torch.tensor([500.0, 500.0]),
    }


def flux():
    net = FluxTransformer2DModel(
        patch_size=1,
        in_channels=64,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=128,
        num_attention_heads=24,
        joint_attention_dim=4096,
        pooled_projection_dim=768,
        guidance_embeds=True,
        axes_dims_rope=(16, 56, 56),
    )
    return net, {
        "hidden_states": torch.randn(1, 16, 64),
        "encoder_hidden_states": torch.randn(1, 256, 4096),
        "pooled_projections": torch.randn(1, 768),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([3.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(256, 3),
    }


def sdxl():
    net = UNet2DConditionModel(
        sample_size=128,
        in_channels=4,
        out_channels=4,
        down_block_types=(
            "DownBlock2D",
            "CrossAttnDownBlock2D",
            "CrossAttnDownBlock2D",
        ),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(320, 640, 1280),
        layers_per_block=2,
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )
    return net, {
        "sample": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([500.0, 500.0]),
        "encoder_hidden_states": torch.randn(2, 77, 2048),
        "added_cond_kwargs": {
            "text_embeds": torch.randn(2, 1280),
            "time_ids": torch.randn(2, 6),
        },
    }


def main():
    networks = {"sd3": sd3, "flux": flux, "sdxl": sdxl}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, f32")
    for name in sys.argv[1:] or networks:
        net, inputs = networks[name]()
        net.eval()
        with torch.inference_mode():
            seconds, busy = fastest(lambda: net(**inputs, return_dict=False))
        print(f"{name}: {seconds:.3f} s a step, {busy:.3f} s of processor time")
        del net


if __name__ == "__main__":
    main()
