"""A guider that removes what the negative prompt has in common with nothing else."""

import comfy.samplers
from fresco_host import models
from fresco_host.placeholders import fallback


class Guider_PerpNeg(comfy.samplers.CFGGuider):
    def set_conds(self, positive, negative, empty_negative_prompt):
        self.inner_set_conds({"positive": positive, "empty_negative_prompt": empty_negative_prompt, "negative": negative})

    def set_cfg(self, cfg, neg_scale):
        self.cfg, self.neg_scale = cfg, neg_scale

    def fresco_native(self):
        if self._replaces("sample", "outer_sample", "inner_sample", "predict_noise", "outer_predict_noise", "__call__"):
            return super().fresco_native()
        conds = self.original_conds
        arguments = {
            "model": self.model_patcher, "positive": conds["positive"], "negative": conds["negative"],
            "empty_conditioning": conds["empty_negative_prompt"], "cfg": self.cfg, "neg_scale": self.neg_scale,
        }
        return models.run_node("PerpNegGuider", arguments)[0]


__getattr__ = fallback(__name__)
