"""Functions beside the classes of further nodes, and small decoders."""

import math
import os

import comfy.taesd.taesd as small
import comfy_extras.nodes_align_your_steps as steps
import comfy_extras.nodes_gits as gits
import folder_paths
import latent_preview
import torch
from comfy_extras.nodes_lt import get_keyframe_idxs, get_noise_mask
from comfy_extras.nodes_stable3d import camera_embeddings
from comfy_extras.nodes_tcfg import score_tangential_damping

from .layers import near


def check_levels_between_levels():
    levels = steps.NOISE_LEVELS["SDXL"]
    assert len(levels) == 11 and list(steps.loglinear_interp(levels, 11)) == [float(level) for level in steps.loglinear_interp(levels, 11)]
    assert all(abs(a - b) < 1e-6 * a for a, b in zip(steps.loglinear_interp(levels, 11), levels))
    between = steps.loglinear_interp([8.0, 2.0], 3)
    assert abs(between[1] - 4.0) < 1e-9


def check_levels_of_the_node():
    rows = gits.NOISE_LEVELS[1.20]
    assert [len(row) for row in rows] == list(range(3, 22)) and abs(rows[0][0] - 14.61464119) < 1e-5 and rows[-1][-1] < 0.03
    assert gits.NOISE_LEVELS[0.8][0][1] > 7 and 0.77 not in gits.NOISE_LEVELS


def check_a_camera():
    made = camera_embeddings(30.0, 90.0)
    assert made.shape == (1, 1, 4)
    near(made[0, 0], torch.tensor([-math.pi / 6, 1.0, 0.0, math.pi / 2]))


def check_the_shared_direction():
    cond, uncond = torch.zeros(1, 2, 1, 1), torch.zeros(1, 2, 1, 1)
    cond[0, 0], uncond[0, 0], uncond[0, 1] = 10.0, 5.0, 0.1
    # The direction of both is the eigenvector of the greater eigenvalue of the sum of their products.
    a, b, d = 10.0**2 + 5.0**2, 5.0 * 0.1, 0.1**2
    greater = (a + d + math.sqrt((a - d) ** 2 + 4 * b**2)) / 2
    x, y = b, greater - a
    share = (5.0 * x + 0.1 * y) / (x * x + y * y)
    near(score_tangential_damping(cond, uncond).flatten(), torch.tensor([share * x, share * y]), 1e-4)


def check_frames():
    latent = {"samples": torch.zeros(2, 4, 3, 5, 5)}
    near(get_noise_mask(latent), torch.ones(2, 1, 3, 1, 1), 0)
    mask = torch.rand(2, 1, 3, 1, 1)
    given = get_noise_mask({**latent, "noise_mask": mask})
    assert given is not mask
    near(given, mask, 0)
    assert get_keyframe_idxs([[None, {}]]) == (None, 0)
    places = torch.tensor([[[0, 0, 8, 8], [1, 2, 1, 2]]])
    assert get_keyframe_idxs([[None, {"keyframe_idxs": places}]])[1] == 2


def check_a_small_decoder():
    torch.manual_seed(4)
    coder = small.Decoder(4)
    for parameter in coder.parameters():
        parameter.data.normal_(std=0.05)
    path = os.path.join(folder_paths.get_temp_directory(), "small_decoder.pt")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save(coder.state_dict(), path)
    names = set(coder.state_dict())
    assert {"1.weight", "3.conv.0.weight", "7.weight", "18.conv.4.bias", "19.bias"} <= names and "7.bias" not in names
    model = small.TAESD(None, path, latent_channels=4)
    x = torch.randn(1, 4, 3, 2)
    made = model.decode(x)
    assert made.shape == (1, 3, 24, 16)
    near(made, (coder(x) - 0.5) * 2)
    picture = latent_preview.TAESDPreviewerImpl(model).decode_latent_to_preview(x)
    assert picture.size == (16, 24) and latent_preview.TAESD is small.TAESD
    shade = float(((made[0, 1, 5, 7] + 1) / 2).clamp(0, 1)) * 255
    assert abs(picture.getpixel((7, 5))[1] - shade) <= 1.001
    for parameter in model.taesd_encoder.parameters():
        parameter.data.normal_(std=0.05)
    assert model.encode(torch.rand(1, 3, 16, 24)).shape == (1, 4, 2, 3)
