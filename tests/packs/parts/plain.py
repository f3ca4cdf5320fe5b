"""Parts that need no torch."""

import math
import os
import tempfile

import comfy.hooks as hooks
import comfy.latent_formats as formats
import latent_preview
import numpy
from comfy.k_diffusion.utils import FolderOfImages
from PIL import Image

LATENT = numpy.random.RandomState(1).randn(1, 4, 2, 2).astype("float32")


def check_formats_undo_themselves():
    names = "SD15 SDXL SDXL_Playground_2_5 SD_X4 SC_Prior SC_B SD3 StableAudio1 Flux Flux2 Mochi LTXV HunyuanVideo Cosmos1CV8x8x8"
    names += " Wan21 Wan22 HunyuanImage21 HunyuanVideo15 Hunyuan3Dv2 Hunyuan3Dv2_1 Hunyuan3Dv2mini ACEAudio ChromaRadiance"
    for name in names.split():
        made = getattr(formats, name)()
        assert type(made).__name__ == name and isinstance(made, formats.LatentFormat)
        latent = numpy.random.RandomState(2).randn(1, made.latent_channels, *[2] * made.latent_dimensions).astype("float32")
        assert numpy.allclose(made.process_out(made.process_in(latent)), latent, atol=1e-4), name
        factors = made.latent_rgb_factors
        if factors is not None:
            count = 32 if name == "Flux2" else made.latent_channels
            assert len(factors) == count and all(len(row) == 3 for row in factors), name
    assert numpy.allclose(formats.SD15().process_in(LATENT), LATENT * 0.18215)
    assert numpy.allclose(formats.SD15(scale_factor=2.0).process_in(LATENT), LATENT * 2)
    assert numpy.allclose(formats.SD3().process_in(LATENT), (LATENT - 0.0609) * 1.5305)
    wan = formats.Wan22()
    assert isinstance(wan, formats.Wan21) and (wan.latent_channels, wan.latent_dimensions) == (48, 3)
    one = numpy.zeros((1, 4, 1, 1), "float32")
    ground = formats.SDXL_Playground_2_5().process_in(one)[0, :, 0, 0]
    assert numpy.allclose(ground, [0.5 * 1.6574 / 8.4927, -0.5 * 1.886 / 5.9022, 0.5 * 1.383 / 6.5498, -0.5 * 2.5155 / 5.2299])


def check_pictures_of_latents():
    for made in (formats.SD15(), formats.SDXL(), formats.SD_X4()):
        previewer = latent_preview.Latent2RGBPreviewer(made.latent_rgb_factors)
        picture = previewer.decode_latent_to_preview(LATENT)
        assert picture.size == (2, 2)
        for x in range(2):
            for y in range(2):
                for colour in range(3):
                    shade = sum(float(LATENT[0, c, y, x]) * made.latent_rgb_factors[c][colour] for c in range(4))
                    wanted = min(max((shade + 1) / 2, 0.0), 1.0) * 255
                    assert abs(picture.getpixel((x, y))[colour] - wanted) <= 1.001
    flux = formats.Flux2()
    latent = numpy.arange(128 * 4, dtype="float32").reshape(1, 128, 2, 2)
    grown = flux.latent_rgb_factors_reshape(latent)
    assert grown.shape == (1, 32, 4, 4)
    # Channel 5 of 128 is the cell (0, 1) of channel 1.
    assert grown[0, 1, 2, 1] == latent[0, 5, 1, 0]


def check_a_folder_of_pictures():
    assert {".png", ".jpg", ".jpeg", ".webp", ".bmp"} <= FolderOfImages.IMG_EXTENSIONS and ".txt" not in FolderOfImages.IMG_EXTENSIONS
    with tempfile.TemporaryDirectory() as folder:
        for name, colour in (("b.png", 2), ("a.PNG", 1), ("c.txt", 3)):
            Image.new("RGB", (1, 1), (colour, 0, 0)).save(os.path.join(folder, name), format="PNG")
        found = FolderOfImages(folder)
        assert len(found) == 2 and [found[i][0].getpixel((0, 0))[0] for i in range(2)] == [1, 2]


def check_groups_of_hooks():
    one, other = hooks.create_hook_lora({"a": 1}, 0.5, 0.25), hooks.create_hook_lora({"b": 1}, 1.0, 1.0)
    both = hooks.HookGroup.combine_all_hooks([one, None, other])
    again = hooks.HookGroup.combine_all_hooks([both, one.clone(), both.clone()])
    assert (len(one), len(both), len(again)) == (1, 2, 2)
    assert one.is_subset_of(both) and not both.is_subset_of(one)
    assert hooks.HookGroup.combine_all_hooks([None, None]) is None and hooks.HookGroup.combine_all_hooks([one]) is one
    hook = one.hooks[0]
    assert both.contains(hook) and hook.clone() == hook and hook != other.hooks[0]
    assert both.get_type(hooks.EnumHookType.Weight) == both.hooks and both.get_type(hooks.EnumHookType.Injections) == []
    assert len(both.new_with_common_hooks(one)) == 1
    wrapper = hooks.WrapperHook({"wrappers": {}})
    assert isinstance(wrapper, hooks.TransformerOptionsHook) and wrapper.hook_type is hooks.EnumHookType.TransformerOptions
    both.remove(hook)
    assert len(both) == 1


class _Sampling:
    class model_sampling:
        percent_to_sigma = staticmethod(lambda percent: 10.0 * (1 - percent))


def check_keyframes_in_the_order_of_the_steps():
    group = hooks.HookKeyframeGroup()
    for strength, start, steps in ((0.5, 0.5, 1), (1.0, 0.0, 1), (0.25, 0.5, 0)):
        group.add(hooks.HookKeyframe(strength=strength, start_percent=start, guarantee_steps=steps))
    assert [keyframe.strength for keyframe in group.keyframes] == [1.0, 0.5, 0.25]
    made = hooks.create_hook_lora({}, 2.0, 1.0)
    made.set_keyframes_on_hooks(group)
    hook = made.hooks[0]
    assert hook.hook_keyframe is not group and hook.hook_keyframe.keyframes == group.keyframes
    hook.initialize_timesteps(_Sampling)
    sigmas = [10.0, 7.0, 5.0, 3.0, 1.0]
    strengths = []
    for sigma in sigmas:
        hook.hook_keyframe.prepare_current_keyframe(sigma, {"sample_sigmas": sigmas})
        strengths.append(hook.strength_model)
    # The second of the same start waits until the first had its step.
    assert strengths == [2.0, 2.0, 1.0, 0.5, 0.5], strengths
    ranges = made.get_hooks_for_clip_schedule()
    assert [part[0] for part in ranges] == [(0.0, 0.5), (0.5, 1.0)]
    assert ranges[1][1][0][0] is hook


def check_interpolation():
    for method, middle in (("linear", 0.25), ("ease_in", 0.0625), ("ease_out", 0.4375), ("ease_in_out", (1 - math.cos(math.pi / 4)) / 2)):
        made = hooks.InterpolationMethod.get_weights(0.0, 1.0, 5, method)
        assert len(made) == 5 and abs(made[1] - middle) < 1e-9 and made[0] == 0.0 and abs(made[4] - 1) < 1e-9
    assert hooks.InterpolationMethod.get_weights(0.0, 1.0, 3, "linear", reverse=True) == [1.0, 0.5, 0.0]


def check_properties_of_conditionings():
    cond, new = [["tensor", {"a": 1}]], [["other", {"b": 2}]]
    mask = numpy.zeros((1, 2, 2), "float32")
    group = hooks.create_hook_lora({}, 1.0, 1.0)
    ((first,),) = hooks.set_conds_props([new], 0.5, "mask bounds", mask=mask, hooks=group, timesteps_range=(0.25, 0.75))
    options = first[1]
    assert (options["mask_strength"], options["set_area_to_bounds"], options["b"]) == (0.5, True, 2)
    assert (options["start_percent"], options["end_percent"]) == (0.25, 0.75)
    assert options["mask"] is mask and options["hooks"] is group and new == [["other", {"b": 2}]]
    (combined,) = hooks.set_conds_props_and_combine([cond], [new])
    assert combined == [["tensor", {"a": 1}], ["other", {"b": 2}]]
    (filled,) = hooks.set_default_conds_and_combine([cond], [new], hooks=group)
    assert "default" not in filled[0][1] and filled[1][1]["default"] is True and filled[1][1]["hooks"] is group
    again = hooks.set_hooks_for_conditioning([first], hooks.create_hook_lora({}, 1.0, 1.0))
    assert len(again[0][1]["hooks"]) == 2 and len(group) == 1
    assert hooks.set_hooks_for_conditioning(cond, None) is cond
