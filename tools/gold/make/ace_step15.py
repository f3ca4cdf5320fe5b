#!/usr/bin/env python3
"""Make the goldens of ACE-Step 1.5's smaller networks with diffusers and transformers.

usage: tools/gold/make/ace_step15.py [FOLDER]
Needs diffusers 0.42.1 and transformers 5.23.
"""
import torch
from diffusers.pipelines.ace_step.modeling_ace_step import (
    AceStepAudioTokenDetokenizer,
    AceStepConditionEncoder,
    _AceStepResidualFSQ,
)
from scheme import FOLDER, save, value, weight
from transformers import Qwen3Config, Qwen3ForCausalLM

LAYERS = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "rope_theta": 1000000.0,
    "sliding_window": 3,
}


# The authors' files have this one beside the condition encoder.
BESIDE = {"encoder.null_condition_emb": "null_condition_emb"}


def fill(module, prefix, keys, without=()):
    """Gives a module its synthetic weights under a prefix, and notes their names and shapes."""
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name in without:
                continue
            key = BESIDE.get(prefix + name, prefix + name)
            keys[key] = list(tensor.shape)
            tensor.copy_(weight(key, list(tensor.shape)))
    return module.eval()


def codes():
    """Audio codes to latents."""
    config = {**LAYERS, "audio_acoustic_hidden_dim": 8, "pool_window_size": 5, "num_attention_pooler_hidden_layers": 2}
    keys = {}
    quantizer = fill(
        _AceStepResidualFSQ(dim=48), "tokenizer.quantizer.", keys, ("project_in.weight", "project_in.bias")
    )
    detokenizer = fill(AceStepAudioTokenDetokenizer(**config), "detokenizer.", keys)
    indices = torch.tensor([[0, 63999, 35847, 1, 8, 64, 512], [12800, 2560, 40000, 31999, 7, 56789, 63998]])
    with torch.no_grad():
        latents = detokenizer(quantizer.get_output_from_indices(indices))
    about = (
        "diffusers 0.42.1 _AceStepResidualFSQ.get_output_from_indices (levels 8, 8, 8, 5, 5, 5), then "
        "AceStepAudioTokenDetokenizer, f32; synthetic by these keys. Made by tools/gold/make/ace_step15.py"
    )
    save(FOLDER, "ace_step15_codes_small", about, keys, {"codes": indices.float(), "out": latents}, config=config)


def condition():
    """Tags, lyrics and a voice to the tokens that the transformer looks at."""
    config = {
        **LAYERS,
        "text_hidden_dim": 20,
        "timbre_hidden_dim": 8,
        "num_lyric_encoder_hidden_layers": 3,
        "num_timbre_encoder_hidden_layers": 2,
    }
    keys = {}
    encoder = fill(AceStepConditionEncoder(**config), "encoder.", keys, ("silence_latent",))
    # Not used by the network.
    del keys["encoder.timbre_encoder.special_token"]
    tags, lyrics = value("tags", (2, 6, 20)), value("lyrics", (2, 11, 20))
    voice = value("voice", (2, 9, 8))
    ones = lambda x: torch.ones(x.shape[:2], dtype=torch.bool)
    with torch.no_grad():
        out, mask = encoder(tags, ones(tags), lyrics, ones(lyrics), voice, torch.arange(2))
    assert bool(mask.all())
    null = encoder.null_condition_emb.expand(2, out.shape[1], -1)
    about = (
        "diffusers 0.42.1 AceStepConditionEncoder without padding, f32; synthetic by these keys. null: what takes the place "
        "of the output without a prompt. Made by tools/gold/make/ace_step15.py"
    )
    tensors = {"tags": tags, "lyrics": lyrics, "voice": voice, "out": out, "null": null}
    save(FOLDER, "ace_step15_condition_small", about, keys, tensors, config=config)


def writing():
    """A language model that writes tokens of a range, led away from another prompt; always the likeliest, everything read
    again for each token."""
    config = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }
    first, end, scale, count = 300, 500, 2.0, 24
    keys = {}
    model = fill(Qwen3ForCausalLM(Qwen3Config(**config)), "", keys, ("lm_head.weight",))
    prompt, away = [5, 17, 300, 42, 99, 256, 3, 8, 77], [5, 17, 8, 77]
    ids, other, written = list(prompt), list(away), []
    with torch.no_grad():
        for _ in range(count):
            own, apart = (model(torch.tensor([line])).logits[0, -1, first:end] for line in (ids, other))
            scores = apart + scale * (own - apart)
            best = torch.topk(scores, 2).values
            assert best[0] - best[1] > 1e-3, "too close to call"
            token = first + int(scores.argmax())
            for line in (ids, other, written):
                line.append(token)
    about = (
        "transformers 5.23 Qwen3ForCausalLM, f32; synthetic by these keys. Greedy over tokens first to end, scores moved away "
        "from those after the other prompt by scale. Made by tools/gold/make/ace_step15.py"
    )
    config |= {"first": first, "end": end, "scale": scale}
    tensors = {"ids": torch.tensor(prompt), "away": torch.tensor(away), "written": torch.tensor(written)}
    tensors = {name: one.float() for name, one in tensors.items()}
    save(FOLDER, "qwen3_guided_small", about, keys, tensors, config=config)


if __name__ == "__main__":
    codes()
    condition()
    writing()
