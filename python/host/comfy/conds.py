"""What conditionings give to a network: values that know how they go together in one batch."""

import math

from fresco_host.placeholders import fallback


def is_equal(x, y):
    """Whether two values are the same, tensors by their numbers, lists and dictionaries by their parts."""
    if hasattr(x, "detach") and hasattr(y, "detach"):
        return x.shape == y.shape and bool((x == y).all())
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(is_equal(x[key], y[key]) for key in x)
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
        return type(x) is type(y) and len(x) == len(y) and all(is_equal(a, b) for a, b in zip(x, y))
    try:
        return bool(x == y)
    except Exception:
        return False


def _repeated(value, batch_size):
    import comfy.utils

    return comfy.utils.repeat_to_batch_size(value, batch_size)


class CONDRegular:
    def __init__(self, cond):
        self.cond = cond

    def _copy_with(self, cond):
        return self.__class__(cond)

    def process_cond(self, batch_size, **kwargs):
        return self._copy_with(_repeated(self.cond, batch_size))

    def can_concat(self, other):
        return self.cond.shape == other.cond.shape and self.cond.device == other.cond.device

    def concat(self, others):
        import torch

        return torch.cat([self.cond, *(each.cond for each in others)])

    def size(self):
        return list(self.cond.size())


class CONDNoiseShape(CONDRegular):
    """Of the shape of the latent: an area of a conditioning has its part of it."""

    def process_cond(self, batch_size, area=None, **kwargs):
        data = self.cond
        if area is not None:
            dims = len(area) // 2
            for i in range(dims):
                data = data.narrow(i + 2, area[i + dims], area[i])
        return self._copy_with(_repeated(data, batch_size))


class CONDCrossAttn(CONDRegular):
    """Tokens: shorter ones are repeated until all are as long."""

    def can_concat(self, other):
        mine, theirs = self.cond.shape, other.cond.shape
        if mine != theirs:
            if mine[0] != theirs[0] or mine[2] != theirs[2]:
                return False
            # Much longer ones cost more than a pass of their own.
            if math.lcm(mine[1], theirs[1]) // min(mine[1], theirs[1]) > 4:
                return False
        return self.cond.device == other.cond.device

    def concat(self, others):
        import torch

        conds = [self.cond, *(each.cond for each in others)]
        length = math.lcm(*(cond.shape[1] for cond in conds))
        return torch.cat([cond if cond.shape[1] == length else cond.repeat(1, length // cond.shape[1], 1) for cond in conds])


class CONDConstant(CONDRegular):
    def process_cond(self, batch_size, **kwargs):
        return self._copy_with(self.cond)

    def can_concat(self, other):
        return is_equal(self.cond, other.cond)

    def concat(self, others):
        return self.cond

    def size(self):
        return [1]


class CONDList(CONDRegular):
    def process_cond(self, batch_size, **kwargs):
        return self._copy_with([_repeated(each, batch_size) for each in self.cond])

    def can_concat(self, other):
        return len(self.cond) == len(other.cond) and all(a.shape == b.shape for a, b in zip(self.cond, other.cond))

    def concat(self, others):
        import torch

        return [torch.cat([each, *(other.cond[i] for other in others)]) for i, each in enumerate(self.cond)]

    def size(self):
        numbers = sum(math.prod(each.size()) for each in self.cond)
        channels = self.cond[0].shape[1] if self.cond else 1
        return [1, channels, numbers // max(channels, 1)]


__getattr__ = fallback(__name__)
