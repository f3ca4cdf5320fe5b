"""Golden numbers of LTX-2.5 whose noise level does nothing to the prompt, made with diffusers (0.42.1, CPU, f32):
python3 ltx25.py FOLDER. Inputs are those of ltx2_small, which must be in the folder.
"""

import json

import torch
from diffusers import LTX2VideoTransformer3DModel
from safetensors.torch import load_file
from scheme import FOLDER, fill, save

ABOUT = json.loads((FOLDER / "ltx2_small.json").read_text())
GIVEN = load_file(FOLDER / "ltx2_small.safetensors")
INPUTS = ["x", "audio", "text", "text_audio", "timestep", "audio_timestep"]


@torch.no_grad()
def run(config):
    model = LTX2VideoTransformer3DModel(**config).eval()
    keys = fill(model)
    given = {name: GIVEN[f"v25.{name}"] for name in INPUTS}
    geometry = ABOUT["geometry"]
    marks = torch.zeros(1, given["x"].shape[1], 1)
    marks[:, : geometry["height"] * geometry["width"]] = 1.0
    out = model(
        hidden_states=given["x"],
        audio_hidden_states=given["audio"],
        encoder_hidden_states=given["text"],
        audio_encoder_hidden_states=given["text_audio"],
        timestep=given["timestep"],
        audio_timestep=given["audio_timestep"],
        sigma=given["audio_timestep"][:, 0],
        num_frames=geometry["frames"],
        height=geometry["height"],
        width=geometry["width"],
        fps=25.0,
        audio_num_frames=geometry["audio"],
        video_keyframes_mask=marks,
        use_cross_timestep=True,
        return_dict=False,
    )
    return keys, given, out


if __name__ == "__main__":
    config = ABOUT["configs"]["v25"]
    _, _, known = run(config)
    assert torch.allclose(known[0], GIVEN["out.v25.video"], atol=1e-5), "this is not how ltx2_small was made"
    config = config | {"use_prompt_adaln_single": False}
    keys, given, (video, audio) = run(config)
    tensors = {f"v25.{name}": value for name, value in given.items()}
    tensors |= {"out.v25.video": video, "out.v25.audio": audio}
    about = f"{ABOUT['about']} Here v25 without prompt_adaln: only tables of blocks act on the prompt."
    save(FOLDER, "ltx25_small", about, keys, tensors, configs={"v25": config}, geometry=ABOUT["geometry"])
