"""Distributions that encoders of pictures give."""

import math

import torch

from fresco_host.placeholders import fallback


class AbstractDistribution:
    def sample(self):
        raise NotImplementedError

    def mode(self):
        raise NotImplementedError


class DiracDistribution(AbstractDistribution):
    def __init__(self, value):
        self.value = value

    def sample(self):
        return self.value

    def mode(self):
        return self.value


class DiagonalGaussianDistribution:
    """Of the means and the logarithms of variances, one after the other in the second dimension."""

    def __init__(self, parameters, deterministic=False):
        self.parameters = parameters
        self.mean, self.logvar = torch.chunk(parameters, 2, dim=1)
        self.logvar = torch.clamp(self.logvar, -30.0, 20.0)
        self.deterministic = deterministic
        self.std = torch.exp(0.5 * self.logvar)
        self.var = torch.exp(self.logvar)
        if deterministic:
            self.var = self.std = torch.zeros_like(self.mean)

    def sample(self):
        return self.mean + self.std * torch.randn(self.mean.shape).to(device=self.parameters.device)

    def kl(self, other=None):
        if self.deterministic:
            return torch.Tensor([0.0])
        if other is None:
            return 0.5 * torch.sum(self.mean**2 + self.var - 1.0 - self.logvar, dim=[1, 2, 3])
        return 0.5 * torch.sum(
            (self.mean - other.mean) ** 2 / other.var + self.var / other.var - 1.0 - self.logvar + other.logvar, dim=[1, 2, 3]
        )

    def nll(self, sample, dims=[1, 2, 3]):
        if self.deterministic:
            return torch.Tensor([0.0])
        return 0.5 * torch.sum(math.log(2.0 * math.pi) + self.logvar + (sample - self.mean) ** 2 / self.var, dim=dims)

    def mode(self):
        return self.mean


def normal_kl(mean1, logvar1, mean2, logvar2):
    """The divergence of two normal distributions."""
    kind = next((value for value in (mean1, logvar1, mean2, logvar2) if isinstance(value, torch.Tensor)), None)
    if kind is None:
        raise TypeError("normal_kl: at least one argument must be a tensor")
    logvar1, logvar2 = (value if isinstance(value, torch.Tensor) else torch.tensor(value).to(kind) for value in (logvar1, logvar2))
    return 0.5 * (-1.0 + logvar2 - logvar1 + torch.exp(logvar1 - logvar2) + (mean1 - mean2) ** 2 * torch.exp(-logvar2))


__getattr__ = fallback(__name__)
