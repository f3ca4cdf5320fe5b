"""comfy.k_diffusion: samplers as functions, noise levels, Brownian trees."""

import math

import comfy.extra_samplers.uni_pc as uni_pc
import comfy.k_diffusion.sampling as k
import comfy.model_sampling as levels
import torch

from . import golden_samplers
from .layers import near


class Discrete(levels.ModelSamplingDiscrete, levels.EPS):
    pass


class Flow(levels.ModelSamplingDiscreteFlow, levels.CONST):
    pass


class Thing:
    def __init__(self, **parts):
        self.__dict__.update(parts)


class Toy:
    """A model whose predictions have a formula, in the place where samplers of packs look for what it means."""

    def __init__(self, sampling):
        patcher = Thing(get_model_object=lambda name: sampling)
        self.inner_model = Thing(model_patcher=patcher, inner_model=Thing(model_sampling=sampling))

    def __call__(self, x, sigma, model_options={}, **more):
        s = sigma.view(-1, 1, 1, 1)
        denoised = 0.8 * torch.tanh(0.3 * x) + 0.1 * torch.cos(s + x)
        for function in model_options.get("sampler_post_cfg_function", []):
            denoised = function({"denoised": denoised, "uncond_denoised": 0.5 * torch.tanh(0.2 * x), "model_options": model_options})
        return denoised


def simple(table, count):
    return torch.tensor([float(table[len(table) - 1 - int(i * len(table) / count)]) for i in range(count)] + [0.0])


def check_every_sampler():
    flow = Flow()
    flow.set_parameters(shift=3.0)
    for sampling, expected in ((Discrete(), golden_samplers.EPS), (flow, golden_samplers.FLOW)):
        assert len(expected) >= 43
        for name, wanted in expected.items():
            others = {"uni_pc": uni_pc.sample_unipc, "uni_pc_bh2": uni_pc.sample_unipc_bh2, "ddim": k.sample_euler}
            function = others.get(name) or getattr(k, f"sample_{name}")
            leaves_one_out = name in ("dpm_2", "dpm_2_ancestral", "uni_pc", "uni_pc_bh2")
            sigmas = simple(sampling.sigmas, 9 if leaves_one_out else 8)
            if leaves_one_out:
                sigmas = torch.cat([sigmas[:-2], sigmas[-1:]])
            noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(5))
            torch.manual_seed(5)
            torch.randn(1, 4, 8, 8)
            steps = []
            x = noise * sigmas[0] if sampling.fresco_prediction == "EPS" else noise
            made = function(
                Toy(sampling), x, sigmas, extra_args={"seed": 7, "model_options": {}}, callback=lambda told: steps.append(told["i"])
            )
            off = float((made.flatten()[:6] - torch.tensor(wanted)).abs().max())
            assert off < 5e-5, (name, off, made.flatten()[:6], wanted)
            assert steps and steps == sorted(steps), (name, steps)


def check_a_plain_function_as_the_model():
    made = k.sample_euler(lambda x, sigma: x * 0, torch.ones(1, 4, 2, 2), torch.tensor([2.0, 1.0, 0.0]))
    near(made, torch.zeros(1, 4, 2, 2))
    try:
        k.sample_euler_cfg_pp(lambda x, sigma, **more: x * 0, torch.ones(1, 4, 2, 2), torch.tensor([2.0, 1.0, 0.0]))
    except RuntimeError as error:
        assert "negative prediction" in str(error), error
    else:
        raise AssertionError("a sampler named cfg_pp ran without a negative prediction")


def check_brownian_trees():
    x = torch.zeros(1, 4, 8, 8)
    noise = k.BrownianTreeNoiseSampler(x, torch.tensor(0.0291671585), torch.tensor(14.6146412), seed=42, cpu=True)
    first = noise(torch.tensor(14.6146412), torch.tensor(7.0)).flatten()[:4]
    near(first, torch.tensor([-0.816081464, 0.261324376, 0.675923169, 0.599150717]))
    second = noise(torch.tensor(7.0), torch.tensor(3.0)).flatten()[:4]
    near(second, torch.tensor([-0.463692665, -0.46606952, -0.254418284, 0.423758954]))
    # Pieces of a way add up to it, in whatever order they are asked for.
    tree = k.BatchedBrownianTree(x, torch.tensor(0.1), torch.tensor(9.0), seed=[7])
    whole = tree(torch.tensor(0.5), torch.tensor(8.0))
    parts = tree(torch.tensor(0.5), torch.tensor(3.3)) + tree(torch.tensor(3.3), torch.tensor(8.0))
    near(whole, parts, 1e-4)
    near(tree(torch.tensor(8.0), torch.tensor(0.5)), -whole, 1e-6)
    both = k.BatchedBrownianTree(torch.zeros(2, 4, 8, 8), torch.tensor(0.1), torch.tensor(9.0), seed=[7, 8])
    near(both(torch.tensor(0.5), torch.tensor(8.0))[:1], whole, 1e-6)


def check_brownian_trees_next_to_torchsde():
    try:
        import torchsde
    except ImportError:
        return
    x = torch.zeros(2, 3, 4)
    for seed in (1, 2**40 + 5):
        ours = k.BatchedBrownianTree(x, torch.tensor(0.02), torch.tensor(15.0), seed=seed)
        theirs = torchsde.BrownianTree(torch.tensor(0.02), x, torch.tensor(15.0), entropy=seed)
        for a, b in ((0.02, 15.0), (1.0, 2.5), (2.5, 9.0), (0.3, 0.31), (7.0, 14.9)):
            near(ours(torch.tensor(a), torch.tensor(b)), theirs(torch.tensor(a), torch.tensor(b)), 1e-5)


def check_noise_levels():
    made = k.get_sigmas_karras(3, 0.1, 10.0)
    low, high = 0.1 ** (1 / 7), 10 ** (1 / 7)
    near(made, torch.tensor([10.0, ((low + high) / 2) ** 7, 0.1, 0.0]), 1e-5)
    near(k.get_sigmas_exponential(3, 0.1, 10.0), torch.tensor([10.0, 1.0, 0.1, 0.0]), 1e-5)
    near(k.get_sigmas_polyexponential(3, 0.1, 10.0, rho=2.0), torch.tensor([10.0, 0.1 * 100**0.25, 0.1, 0.0]), 1e-5)
    near(k.get_sigmas_vp(2), torch.tensor([math.sqrt(math.expm1(19.9 / 2 + 0.1)), math.sqrt(math.expm1(19.9e-6 / 2 + 1e-4)), 0.0]), 1e-3)
    laplace = k.get_sigmas_laplace(5, 0.1, 10.0)
    assert laplace.shape == (5,) and float(laplace[0]) == 10.0 and abs(float(laplace[2]) - 1) < 1e-5
    near(k.get_sigmas_karras(1, 0.1, 10.0), torch.tensor([10.0, 0.0]), 1e-5)


def check_helpers():
    down, up = k.get_ancestral_step(torch.tensor(2.0), torch.tensor(1.0))
    assert abs(float(up) - math.sqrt(0.75)) < 1e-6 and abs(float(down) - 0.5) < 1e-6
    assert k.get_ancestral_step(2.0, 1.0, eta=0.0) == (1.0, 0.0)
    x, sigma = torch.full((2, 1, 1, 1), 3.0), torch.tensor([1.0, 2.0])
    near(k.to_d(x, sigma, torch.ones_like(x)), torch.tensor([2.0, 1.0]).view(2, 1, 1, 1))
    near(k.append_zero(sigma), torch.tensor([1.0, 2.0, 0.0]))
    controller = k.PIDStepSizeController(0.05, 0.0, 1.0, 0.0, order=3)
    assert controller.propose_step(0.5) and abs(controller.h - 0.05 * (1 + math.atan(2 ** (1 / 3) - 1))) < 1e-6
    assert not controller.propose_step(100.0)
    noise = k.default_noise_sampler(torch.zeros(1, 4, 8, 8), seed=7)
    near(noise(1, 0), torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(8)), 0)
