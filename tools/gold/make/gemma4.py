"""Golden numbers of Gemma 4, made with transformers (5.23, CPU, f32): python3 gemma4.py FOLDER

Weights follow from their names by the synthetic scheme of the goldens: a test rebuilds them.
"""

import torch
from scheme import FOLDER, fill, save, stream
from transformers import Gemma4AudioConfig, Gemma4AudioFeatureExtractor
from transformers import Gemma4Config, Gemma4ForCausalLM, Gemma4ForConditionalGeneration
from transformers import Gemma4TextConfig, Gemma4VisionConfig
from transformers import Gemma4UnifiedForCausalLM, Gemma4UnifiedTextConfig

IDS = [2, 7, 19, 3, 3, 31, 12, 8, 25, 1, 38]

COMMON = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 4,
    "final_logit_softcapping": 30.0,
    "rms_norm_eps": 1e-6,
}
S, F = "sliding_attention", "full_attention"
# Like the 12B: layers that see everything have one head of keys, which are the values too.
LARGE = COMMON | {
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "layer_types": [S, S, F, S, F],
}
# Like E2B: each layer is told of every token, the last three look at keys of others and are wider.
SMALL = COMMON | {
    "num_hidden_layers": 6,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "vocab_size_per_layer_input": 40,
    "hidden_size_per_layer_input": 6,
    "layer_types": [S, S, F, S, S, F],
}
# What the smaller ones see pictures with.
EYES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "patch_size": 4,
    "position_embedding_size": 16,
    "pooling_kernel_size": 3,
    "use_clipped_linears": True,
    "standardize": True,
}
# What they hear with.
EARS = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "subsampling_conv_channels": [16, 6],
    "output_proj_dims": 20,
    "use_clipped_linears": True,
}
# Least and most of what goes into a matrix and comes out: the scheme would make them all nearly one.
LIMITS = {"input_min": -1.5, "input_max": 1.25, "output_min": -1.0, "output_max": 1.125}
PICTURE = 39
SOUND = 38


@torch.no_grad()
def language(name, about, made, config):
    model = made(config).eval()
    keys = fill(model, skipped=("lm_head.weight",))
    ids = torch.tensor([IDS])
    out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
    assert len(out.hidden_states) == config.num_hidden_layers + 1
    states = {f"state/{at}": state for at, state in enumerate(out.hidden_states)}
    said = "state/N: what enters each layer, and the output with its norm. logits: of the last token, held down."
    numbers = {key: value for key, value in config.to_dict().items() if isinstance(value, (int, float, list))}
    tensors = {"ids": ids[0], "logits": out.logits[:, -1:]} | states
    save(FOLDER, name, f"{about} {said}", keys, tensors, config=numbers)


@torch.no_grad()
def picture(name, about):
    """A picture of six columns and nine rows of squares among words."""
    config = Gemma4Config(
        text_config=Gemma4TextConfig(**SMALL),
        vision_config=Gemma4VisionConfig(**EYES),
        audio_config=None,
        image_token_id=PICTURE,
        attn_implementation="eager",
    )
    model = Gemma4ForConditionalGeneration(config).eval()
    keys = fill(model, skipped=("lm_head.weight",), limits=LIMITS)
    columns, rows = 6, 9
    squares = torch.from_numpy(stream("squares", columns * rows * 48)).reshape(1, columns * rows, 48) / 2 + 0.5
    places = torch.tensor([[[x, y] for y in range(rows) for x in range(columns)]])
    seen = model.model.get_image_features(squares, places, return_dict=True).pooler_output[0]
    ids = torch.tensor([[2, 7, *[PICTURE] * 6, 12, 8, 25]])
    out = model.model(
        input_ids=ids, pixel_values=squares, image_position_ids=places, output_hidden_states=True, use_cache=False
    )
    states = {f"state/{at}": state for at, state in enumerate(out.hidden_states)}
    config = {"sliding_window": SMALL["sliding_window"], "limits": LIMITS, "picture": PICTURE, "grid": [rows, columns]}
    said = "limits: of all matrices that see. seen: rows of the picture. state/N: as in gemma4_small."
    tensors = {"ids": ids[0], "squares": squares[0], "seen": seen.reshape(6, -1)} | states
    save(FOLDER, name, f"{about} {said}", keys, tensors, config=config)


@torch.no_grad()
def sound(name, about):
    """A second of sound among words, and the spectrogram of another."""
    config = Gemma4Config(
        text_config=Gemma4TextConfig(**SMALL),
        vision_config=None,
        audio_config=Gemma4AudioConfig(**EARS),
        audio_token_id=SOUND,
        image_token_id=PICTURE,
        attn_implementation="eager",
    )
    model = Gemma4ForConditionalGeneration(config).eval()
    keys = fill(model, skipped=("lm_head.weight",), limits=LIMITS)
    frames, rows = 100, 25
    bands = torch.from_numpy(stream("bands", frames * 16)).reshape(1, frames, 16)
    mask = torch.ones(1, frames, dtype=torch.bool)
    heard = model.model.get_audio_features(bands, mask, return_dict=True).pooler_output
    ids = torch.tensor([[2, 7, *[SOUND] * rows, 12, 8, 25]])
    out = model.model(
        input_ids=ids, input_features=bands, input_features_mask=mask, output_hidden_states=True, use_cache=False
    )
    states = {f"state/{at}": state for at, state in enumerate(out.hidden_states)}
    wave = stream("wave", 2000) * 0.5
    mel = Gemma4AudioFeatureExtractor()([wave], return_tensors="pt")
    mel = mel["input_features"][0][mel["input_features_mask"][0]]
    config = {"sliding_window": SMALL["sliding_window"], "limits": LIMITS, "sound": SOUND}
    said = "limits: of all matrices that hear. heard: rows of the sound. mel: the spectrogram of wave."
    tensors = {"ids": ids[0], "bands": bands[0], "heard": heard.reshape(rows, -1), "wave": torch.from_numpy(wave), "mel": mel}
    save(FOLDER, name, f"{about} {said}", keys, tensors | states, config=config)


if __name__ == "__main__":
    torch.manual_seed(0)
    scheme = "transformers 5.23, f32, eager; weights: synthetic scheme by the keys listed."
    language(
        "gemma4_unified_small",
        f"{scheme} Gemma4UnifiedForCausalLM, as the 12B.",
        Gemma4UnifiedForCausalLM,
        Gemma4UnifiedTextConfig(**LARGE, attn_implementation="eager"),
    )
    language(
        "gemma4_small",
        f"{scheme} Gemma4ForCausalLM, as E2B.",
        Gemma4ForCausalLM,
        Gemma4TextConfig(**SMALL, attn_implementation="eager"),
    )
    picture("gemma4_picture_small", f"{scheme} Gemma4ForConditionalGeneration, as E2B, without ears.")
    sound("gemma4_sound_small", f"{scheme} Gemma4ForConditionalGeneration, as E2B, without eyes.")
