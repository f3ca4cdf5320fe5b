"""Several tensors that are sampled together, for instance pictures and sound."""

from fresco_host.placeholders import fallback


class NestedTensor:
    def __init__(self, tensors):
        self.tensors = list(tensors)
        self.is_nested = True

    def _each(self, function):
        return NestedTensor([function(tensor) for tensor in self.tensors])

    def _copy(self):
        return NestedTensor(self.tensors)

    def apply_operation(self, other, operation):
        if isinstance(other, NestedTensor):
            count = min(len(self.tensors), len(other.tensors))
            return NestedTensor([operation(self.tensors[i], other.tensors[i]) for i in range(count)])
        return self._each(lambda tensor: operation(tensor, other))

    def __add__(self, other):
        return self.apply_operation(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self.apply_operation(other, lambda a, b: a - b)

    def __mul__(self, other):
        return self.apply_operation(other, lambda a, b: a * b)

    def __truediv__(self, other):
        return self.apply_operation(other, lambda a, b: a / b)

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, item):
        return self.apply_operation(item, lambda tensor, place: tensor[place])

    def unbind(self):
        return self.tensors

    def to(self, *args, **kwargs):
        return self._each(lambda tensor: tensor.to(*args, **kwargs))

    def float(self):
        return self.to(dtype=self._torch().float)

    def new_ones(self, *args, **kwargs):
        return self.tensors[0].new_ones(*args, **kwargs)

    def chunk(self, *args, **kwargs):
        return [NestedTensor(parts) for parts in zip(*(tensor.chunk(*args, **kwargs) for tensor in self.tensors))]

    def size(self):
        return self.tensors[0].size()

    @staticmethod
    def _torch():
        import torch

        return torch

    @property
    def shape(self):
        return self.tensors[0].shape

    @property
    def ndim(self):
        return max(tensor.ndim for tensor in self.tensors)

    @property
    def device(self):
        return self.tensors[0].device

    @property
    def dtype(self):
        return self.tensors[0].dtype

    @property
    def layout(self):
        return self.tensors[0].layout


def cat_nested(tensors, *args, **kwargs):
    import torch

    return NestedTensor([torch.cat(parts, *args, **kwargs) for parts in zip(*(each.tensors for each in tensors))])


__getattr__ = fallback(__name__)
