"""Noise levels by schedules, lists of conditionings, and latents that are sampled together."""

import comfy.conds
import comfy.model_sampling as levels
import comfy.nested_tensor
import comfy.samplers as samplers
import comfy.utils
import torch

from .layers import near
from .sampling import Discrete, Flow, Thing

SCHEDULES = {
    "simple": [14.6146412, 5.08776331, 2.27646303, 1.16057837, 0.569284916, 0],
    "sgm_uniform": [14.6146402, 5.09240818, 2.27973056, 1.16286457, 0.571188867, 0],
    "karras": [14.6146431, 4.79653454, 1.27410078, 0.247949973, 0.0291671772, 0],
    "exponential": [14.6146402, 3.08897638, 0.652891755, 0.137996376, 0.0291671604, 0],
    "ddim_uniform": [5.13443089, 2.29285383, 1.16821599, 0.574050248, 0.0413144119, 0],
    "beta": [14.6146412, 7.37184429, 2.61523581, 1.02732933, 0.39550969, 0],
    "normal": [14.6146402, 4.08608103, 1.61558032, 0.695149541, 0.0291671604, 0],
    "linear_quadratic": [14.6146412, 14.4319582, 14.2492752, 12.5442343, 7.79447556, 0],
    "kl_optimal": [14.6146326, 2.14274144, 0.961588025, 0.419836193, 0.0291671585, 0],
}


class Flux(levels.ModelSamplingFlux, levels.CONST):
    pass


def check_schedules():
    for name, wanted in SCHEDULES.items():
        made = samplers.calculate_sigmas(Discrete(), name, 5)
        near(made / 14.6146412, torch.tensor(wanted) / 14.6146412, 1e-5)
    flow = Flow()
    flow.set_parameters(shift=3.0)
    near(samplers.beta_scheduler(flow, 4), torch.tensor([1, 0.933534801, 0.75074929, 0.392171353, 0]), 1e-5)
    near(samplers.normal_scheduler(flow, 4), torch.tensor([1, 0.857692361, 0.602150559, 0.00892857183, 0.0]), 1e-5)
    near(samplers.normal_scheduler(flow, 4, sgm=True), torch.tensor([1, 0.900359035, 0.751121104, 0.50298506, 0.0]), 1e-5)
    near(samplers.ddim_scheduler(Flux(), 4), torch.tensor([0.904622853, 0.759656966, 0.513110518, 0.000631366041, 0.0]), 1e-5)
    near(samplers.simple_scheduler(Flux(), 4), torch.tensor([1, 0.904530764, 0.759510934, 0.512844086, 0.0]), 1e-5)


def check_shapes_of_the_beta_schedule():
    """Packs ask for other shapes than the usual one."""
    from comfy._schedules import _beta_quantile, _beta_share

    # For a = 2, b = 1 the share below x is x squared; for a = b = 1/2 the quantile is sin(pi p / 2) squared.
    import math

    for p in (0.1, 0.5, 0.93):
        assert abs(_beta_quantile(p, 2.0, 1.0) - math.sqrt(p)) < 1e-9
        assert abs(_beta_quantile(p, 0.5, 0.5) - math.sin(math.pi * p / 2) ** 2) < 1e-9
        assert abs(_beta_share(_beta_quantile(p, 0.5, 0.7), 0.5, 0.7) - p) < 1e-9
    plain, other = samplers.beta_scheduler(Discrete(), 8), samplers.beta_scheduler(Discrete(), 8, alpha=0.5, beta=0.7)
    assert plain.shape == other.shape and not torch.allclose(plain, other)


# A model that says half of the latent and the mean of its tokens.
X = torch.sin(0.11 * torch.arange(512).float() + 0.5).view(1, 2, 16, 16)


def tokens(value, count=4):
    return comfy.conds.CONDCrossAttn(torch.full((1, count, 8), value))


def cond(value, count=4, **more):
    return {"model_conds": {"c_crossattn": tokens(value, count)}, "uuid": object(), **more}


def predicted(positive, negative, sigma=7.0):
    model = Thing(model_sampling=Discrete())
    lists = samplers.process_conds(model, X, {"positive": positive, "negative": negative}, X.device)
    sums, counts = [torch.zeros_like(X) for _ in lists], [torch.full_like(X, 1e-37) for _ in lists]
    waiting, calls = [], []
    for place, name in enumerate(lists):
        for each in lists[name]:
            part = samplers.get_area_and_mult(each, X, torch.tensor([sigma]))
            if part is not None:
                waiting.append((part, place))
    while waiting:
        first = waiting[0]
        batch = [each for each in waiting if samplers.can_concat_cond(each[0], first[0])]
        waiting = [each for each in waiting if all(each is not other for other in batch)]
        batch = batch[::-1]
        given = samplers.cond_cat([part.conditioning for part, _ in batch])
        x = torch.cat([part.input_x for part, _ in batch])
        calls.append(([*x.shape], [place for _, place in batch]))
        made = (0.5 * x + given["c_crossattn"].mean(dim=(1, 2)).view(-1, 1, 1, 1)).chunk(len(batch))
        for (part, place), out in zip(batch, made):
            target, count = sums[place], counts[place]
            if part.area is not None:
                for i in range(2):
                    target = target.narrow(i + 2, part.area[2 + i], part.area[i])
                    count = count.narrow(i + 2, part.area[2 + i], part.area[i])
            target += out * part.mult
            count += part.mult
    return [total / count for total, count in zip(sums, counts)], calls


def shows(positive, row, total, calls, sigma=7.0):
    (made, _), seen = predicted(positive, [cond(-1.0)], sigma)
    near(made[0, 0, 5], torch.tensor(row), 1e-4)
    assert abs(float(made.sum()) - total) < 1e-2, float(made.sum())
    assert [[*call] for call in seen] == calls, seen


def check_conditionings_of_areas_and_masks():
    mask = torch.zeros(32, 32)
    mask[8:24, 4:20] = 1
    halves = [cond(1.0, end_percent=0.5), cond(3.0, start_percent=0.5)]
    # plain
    row = [
        1.06223, 1.00739, 0.952461, 0.898108, 0.844986, 0.793738, 0.744984, 0.699312, 0.657275, 0.61938,
        0.586087, 0.557796, 0.534851, 0.517529, 0.506039, 0.500519,
    ]
    shows([cond(1.0)], row, 511.6631, [[[2, 2, 16, 16], [1, 0]]])
    # pos 1.0 + pos 3.0 area(h8,w8,y4,x4) strength .8; neg -1
    row = [
        1.06223, 1.00739, 0.952461, 0.898108, 1.41641, 1.68263, 1.63387, 1.5882, 1.54616, 1.50827,
        1.47498, 1.12923, 0.534851, 0.517529, 0.506039, 0.500519,
    ]
    shows([cond(1.0), cond(3.0, area=(8, 8, 4, 4), strength=0.8)], row, 605.7583, [[[2, 2, 16, 16], [1, 0]], [[2, 2, 8, 8], [1, 0]]])
    # pos 1.0 + pos 3.0 percentage area (.5,.5,.25,.5)
    row = [
        1.06223, 1.00739, 0.952461, 0.898108, 0.844986, 0.793738, 0.744984, 0.699312, 1.32394, 1.61938,
        1.58609, 1.5578, 1.53485, 1.51753, 1.50604, 1.50052,
    ]
    shows([cond(1.0), cond(3.0, area=("percentage", 0.5, 0.5, 0.25, 0.5))], row, 623.9298, [[[2, 2, 16, 16], [1, 0]], [[2, 2, 8, 8], [1, 0]]])
    # pos 1.0 + pos 3.0 with 32x32 mask ones in [8:24,4:20] mask_strength .5
    row = [
        1.06223, 1.00739, 1.61913, 1.56477, 1.51165, 1.4604, 1.41165, 1.36598, 1.32394, 1.28605,
        0.586087, 0.557796, 0.534851, 0.517529, 0.506039, 0.500519,
    ]
    shows([cond(1.0), cond(3.0, mask=mask, mask_strength=0.5)], row, 596.9964, [[[3, 2, 16, 16], [1, 0, 0]]])
    # same, set_area_to_bounds
    row = [
        1.06223, 1.00739, 1.61913, 1.56477, 1.51165, 1.4604, 1.41165, 1.36598, 1.32394, 1.28605,
        0.586087, 0.557796, 0.534851, 0.517529, 0.506039, 0.500519,
    ]
    shows([cond(1.0), cond(3.0, mask=mask, mask_strength=0.5, set_area_to_bounds=True)], row, 596.9964, [[[2, 2, 16, 16], [1, 0]], [[2, 2, 8, 8], [1, 0]]])
    # pos 1.0 end .5, pos 3.0 start .5, sigma 7
    row = [
        1.06223, 1.00739, 0.952461, 0.898108, 0.844986, 0.793738, 0.744984, 0.699312, 0.657275, 0.61938,
        0.586087, 0.557796, 0.534851, 0.517529, 0.506039, 0.500519,
    ]
    shows(halves, row, 511.6631, [[[2, 2, 16, 16], [1, 0]]])
    # same, sigma 1
    row = [
        3.06223, 3.00739, 2.95246, 2.89811, 2.84499, 2.79374, 2.74498, 2.69931, 2.65727, 2.61938,
        2.58609, 2.5578, 2.53485, 2.51753, 2.50604, 2.50052,
    ]
    shows(halves, row, 1535.663, [[[2, 2, 16, 16], [1, 0]]], sigma=1.0)
    # Tokens of 4 and 6 go together, of 4 and 7 they do not.
    assert predicted([cond(1.0, 6)], [cond(-1.0)])[1] == [([2, 2, 16, 16], [1, 0])]
    assert len(predicted([cond(1.0, 7)], [cond(-1.0)])[1]) == 2


def check_what_goes_into_one_batch():
    regular, noise = comfy.conds.CONDRegular, comfy.conds.CONDNoiseShape
    assert regular(torch.zeros(1, 2)).can_concat(regular(torch.ones(1, 2))) and not regular(torch.zeros(1, 2)).can_concat(regular(torch.zeros(1, 3)))
    assert regular(torch.ones(1, 2)).process_cond(batch_size=3, device="cpu").cond.shape == (3, 2)
    part = noise(X).process_cond(batch_size=2, area=(4, 5, 1, 2), device="cpu").cond
    near(part, X[:, :, 1:5, 2:7].repeat(2, 1, 1, 1), 0)
    constant = comfy.conds.CONDConstant({"a": [1, 2]})
    assert constant.can_concat(comfy.conds.CONDConstant({"a": [1, 2]})) and not constant.can_concat(comfy.conds.CONDConstant({"a": [1, 3]}))
    assert constant.concat([constant]) == {"a": [1, 2]} and constant.process_cond(batch_size=2).cond == {"a": [1, 2]}
    several = comfy.conds.CONDList([torch.zeros(1, 2, 3), torch.ones(1, 2, 4)])
    assert [each.shape[0] for each in several.concat([several])] == [2, 2]
    assert [each.shape[0] for each in several.process_cond(batch_size=4).cond] == [4, 4]
    joined = tokens(1.0, 2).concat([tokens(2.0, 3)])
    assert joined.shape == (2, 6, 8)
    assert samplers.cond_equal_size({"c": tokens(1.0)}, {"c": tokens(2.0, 6)}) and not samplers.cond_equal_size({"c": tokens(1.0)}, {})


def check_controls_for_negatives():
    control = Thing(ran=[], pre_run=lambda model, percent: control.ran.append(percent(0.0)))
    positive = [cond(1.0, control=control, control_apply_to_uncond=True)]
    negative = [cond(-1.0), cond(-2.0)]
    lists = samplers.process_conds(Thing(model_sampling=Discrete()), X, {"positive": positive, "negative": negative}, X.device)
    assert [each.get("control") for each in lists["negative"]] == [control, None]
    assert control.ran == [999999999.9] and "control" not in negative[0]


def check_a_model_behind_a_mask():
    class Model:
        inner_model = Thing(model_sampling=Discrete())

        def __call__(self, x, sigma, model_options, seed):
            self.seen = x
            return x * 0 + 5

    model = Model()
    inside = samplers.KSamplerX0Inpaint(model, None)
    inside.noise, inside.latent_image = torch.full_like(X, 2.0), torch.full_like(X, 3.0)
    mask, sigma = torch.zeros_like(X), torch.tensor([4.0])
    mask[..., 8:] = 1
    made = inside(X, sigma, mask)
    near(made, 5 * mask + 3 * (1 - mask))
    near(model.seen, X * mask + (2 * 4 + 3) * (1 - mask))
    half = inside(X, sigma, mask, model_options={"denoise_mask_function": lambda sigma, mask, extra_options: mask * 0.5})
    near(half, (5 * 0.5 + 3 * 0.5) * mask + 3 * (1 - mask))
    near(inside(X, sigma, None), torch.full_like(X, 5.0))


def check_models_beside_the_network():
    from comfy.sampler_helpers import get_additional_models

    control = Thing(get_models=lambda: ["net"], inference_memory_requirements=lambda dtype: 7)
    lists = {"positive": [{"control": control}, {"gligen": ("position", "boxes", [])}], "negative": [{"control": control}]}
    assert get_additional_models(lists, torch.float32) == (["net", "boxes"], 7)


def check_what_a_network_takes():
    asked = []

    def extra_conds(**given):
        asked.append(given)
        return {"guidance": comfy.conds.CONDRegular(torch.tensor([given["guidance"]]))}

    model = Thing(model_sampling=Discrete(), extra_conds=extra_conds)
    lists = samplers.process_conds(model, X, {"positive": [{"guidance": 3.5}]}, X.device, seed=4)
    assert float(lists["positive"][0]["model_conds"]["guidance"].cond[0]) == 3.5
    assert (asked[0]["width"], asked[0]["height"], asked[0]["prompt_type"], asked[0]["seed"]) == (128, 128, "positive", 4)


def check_latents_that_are_sampled_together():
    first, second = torch.randn(2, 3, 4, 5), torch.randn(2, 1, 7)
    packed, shapes = comfy.utils.pack_latents([first, second])
    assert packed.shape == (2, 1, 67) and shapes == [first.shape, second.shape]
    again = comfy.utils.unpack_latents(packed, shapes)
    near(again[0], first, 0)
    near(again[1], second, 0)
    assert comfy.utils.unpack_latents(first, [first.shape])[0] is first
    nested = comfy.nested_tensor.NestedTensor([first, second])
    doubled = nested + nested * 2 - nested
    near(doubled.unbind()[1], second * 2, 1e-6)
    assert nested.is_nested and nested.ndim == 4 and nested.to(torch.float64).dtype == torch.float64
    near((nested / 2)[0].tensors[0], first[0] / 2, 1e-6)
    whole = comfy.nested_tensor.cat_nested([nested, nested], dim=0)
    assert [tensor.shape[0] for tensor in whole.tensors] == [4, 4]


def check_names_of_weights_in_diffusers():
    config = {"num_res_blocks": [2, 2], "channel_mult": [1, 2], "transformer_depth": [0, 0, 1, 2], "transformer_depth_output": [0, 0, 0, 1, 1, 2], "transformer_depth_middle": 2}
    made = comfy.utils.unet_to_diffusers(config)
    assert made["down_blocks.0.resnets.1.conv1.weight"] == "input_blocks.2.0.in_layers.2.weight"
    assert made["down_blocks.1.attentions.1.transformer_blocks.1.attn2.to_k.weight"] == "input_blocks.5.1.transformer_blocks.1.attn2.to_k.weight"
    assert made["down_blocks.0.downsamplers.0.conv.bias"] == "input_blocks.3.0.op.bias"
    assert made["mid_block.resnets.1.norm2.weight"] == "middle_block.2.out_layers.0.weight"
    assert made["up_blocks.0.attentions.0.proj_in.weight"] == "output_blocks.0.1.proj_in.weight"
    assert made["up_blocks.0.upsamplers.0.conv.weight"] == "output_blocks.2.2.conv.weight"
    assert made["up_blocks.1.upsamplers.0.conv.weight"] == "output_blocks.5.1.conv.weight"
    assert made["conv_in.weight"] == "input_blocks.0.0.weight" and comfy.utils.unet_to_diffusers({}) == {}
    assert "down_blocks.0.attentions.0.norm.weight" not in made
    file = {"t.transformer.resblocks.0.attn.in_proj_weight": torch.arange(6.0).view(6, 1), "t.text_projection": torch.ones(2, 3)}
    names = comfy.utils.clip_text_transformers_convert(file, "t.", "g.")
    assert float(names["g.text_model.encoder.layers.0.self_attn.k_proj.weight"][0]) == 2.0
    assert names["g.text_projection.weight"].shape == (3, 2)
