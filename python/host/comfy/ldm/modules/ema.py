"""A slowly moving mean of the weights of a model."""

import torch

from fresco_host.placeholders import fallback


class LitEma(torch.nn.Module):
    def __init__(self, model, decay=0.9999, use_num_upates=True):
        super().__init__()
        if not 0.0 <= decay <= 1.0:
            raise ValueError("LitEma: the decay lies between 0 and 1")
        self.m_name2s_name = {}
        self.register_buffer("decay", torch.tensor(decay, dtype=torch.float32))
        self.register_buffer("num_updates", torch.tensor(0 if use_num_upates else -1, dtype=torch.int))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                # Names of buffers have no dots.
                self.m_name2s_name[name] = name.replace(".", "")
                self.register_buffer(self.m_name2s_name[name], parameter.clone().detach().data)
        self.collected_params = []

    def reset_num_updates(self):
        self.num_updates = torch.tensor(0, dtype=torch.int)

    def forward(self, model):
        decay = self.decay
        if self.num_updates >= 0:
            self.num_updates += 1
            decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        kept = dict(self.named_buffers())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    mean = kept[self.m_name2s_name[name]]
                    mean.sub_((1.0 - decay) * (mean - parameter.type_as(mean)))

    def copy_to(self, model):
        kept = dict(self.named_buffers())
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_(kept[self.m_name2s_name[name]].data)

    def store(self, parameters):
        self.collected_params = [parameter.clone() for parameter in parameters]

    def restore(self, parameters):
        for kept, parameter in zip(self.collected_params, parameters):
            parameter.data.copy_(kept.data)


__getattr__ = fallback(__name__)
