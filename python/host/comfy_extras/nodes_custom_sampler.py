"""Noise and guiders that packs make without a node."""

import comfy.sample
import comfy.samplers
from fresco_host import models
from fresco_host.placeholders import fallback


class Noise_EmptyNoise:
    def __init__(self):
        self.seed = 0

    def generate_noise(self, input_latent):
        return input_latent["samples"] * 0


class Noise_RandomNoise:
    def __init__(self, seed):
        self.seed = seed

    def generate_noise(self, input_latent):
        return comfy.sample.prepare_noise(input_latent["samples"], self.seed, input_latent.get("batch_index"))


class Guider_Basic(comfy.samplers.CFGGuider):
    def set_conds(self, positive):
        self.inner_set_conds({"positive": positive})


class Guider_DualCFG(comfy.samplers.CFGGuider):
    """Two prompts and a negative one, each with a guidance of its own."""

    def set_cfg(self, cfg1, cfg2, nested=False):
        self.cfg1, self.cfg2, self.nested = cfg1, cfg2, nested

    def set_conds(self, positive, middle, negative):
        self.inner_set_conds({"positive": positive, "middle": middle, "negative": negative})

    def fresco_native(self):
        if self._replaces("sample", "outer_sample", "inner_sample", "predict_noise", "outer_predict_noise", "__call__"):
            return super().fresco_native()
        conds = self.original_conds
        arguments = {
            "model": self.model_patcher, "cond1": conds["positive"], "cond2": conds["middle"], "negative": conds["negative"],
            "cfg_conds": self.cfg1, "cfg_cond2_negative": self.cfg2, "style": "nested" if self.nested else "regular",
        }
        return models.run_node("DualCFGGuider", arguments)[0]


__getattr__ = fallback(__name__)
