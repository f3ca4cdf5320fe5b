"""As much of torch as the packs of the tests use, on numpy: torch has no wheel where the tests run. Real torch goes first."""

import contextlib

import numpy


class _Kind:
    def __init__(self, name, own):
        self.name, self.own = name, own

    def __repr__(self):
        return f"torch.{self.name}"


float32, float16, float64 = _Kind("float32", numpy.float32), _Kind("float16", numpy.float16), _Kind("float64", numpy.float64)
int64, uint8 = _Kind("int64", numpy.int64), _Kind("uint8", numpy.uint8)
_KINDS = {numpy.dtype(kind.own): kind for kind in (float32, float16, float64, int64, uint8)}
strided = "strided"


class device:
    def __init__(self, type="cpu", index=None):
        self.type, self.index = str(type), index

    def __repr__(self):
        return self.type


class Size(tuple):
    pass


class Tensor:
    requires_grad = False
    device = device("cpu")
    layout = strided

    def __init__(self, array):
        self.array = array

    shape = property(lambda self: Size(self.array.shape))
    ndim = property(lambda self: self.array.ndim)
    dtype = property(lambda self: _KINDS[self.array.dtype])

    def numpy(self):
        return self.array

    def detach(self):
        return self

    def cpu(self):
        return self

    def contiguous(self):
        return Tensor(numpy.ascontiguousarray(self.array))

    def clone(self):
        return Tensor(self.array.copy())

    def to(self, *args, device=None, dtype=None, **kwargs):
        kinds = [one for one in args if isinstance(one, _Kind)]
        dtype = dtype or (kinds[0] if kinds else None)
        return self if dtype is None or self.dtype is dtype else Tensor(self.array.astype(dtype.own))

    def reshape(self, *shape):
        return Tensor(self.array.reshape(shape[0] if len(shape) == 1 else shape))

    def size(self, dim=None):
        return self.shape if dim is None else self.shape[dim]

    def dim(self):
        return self.array.ndim

    def unsqueeze(self, dim):
        return Tensor(numpy.expand_dims(self.array, dim))

    def repeat(self, *times):
        return Tensor(numpy.tile(self.array, times))

    def movedim(self, source, destination):
        return Tensor(numpy.moveaxis(self.array, source, destination))

    def flatten(self, start_dim=0):
        return Tensor(self.array.reshape(self.array.shape[:start_dim] + (-1,)))

    def tolist(self):
        return self.array.tolist()

    def item(self):
        return self.array.item()

    def _reduced(self, name, dim):
        out = getattr(self.array, name)(axis=dim)
        return Tensor(numpy.asarray(out, dtype=self.array.dtype))

    def min(self, dim=None):
        return self._reduced("min", dim)

    def max(self, dim=None):
        return self._reduced("max", dim)

    def mean(self, dim=None):
        return self._reduced("mean", dim)

    def mul_(self, other):
        self.array *= _plain(other)
        return self

    def __len__(self):
        return len(self.array)

    def __getitem__(self, place):
        return Tensor(self.array[place])

    def __setitem__(self, place, value):
        self.array[place] = _plain(value)

    def __iter__(self):
        return (Tensor(numpy.asarray(part)) for part in self.array)

    def __float__(self):
        return float(self.array)

    def __bool__(self):
        return bool(self.array)

    def __eq__(self, other):
        return Tensor(self.array == _plain(other))

    def __ne__(self, other):
        return Tensor(self.array != _plain(other))

    __hash__ = object.__hash__


def _plain(value):
    return value.array if isinstance(value, Tensor) else value


def _operator(name):
    def function(self, other):
        return Tensor(numpy.asarray(getattr(self.array, name)(_plain(other)), dtype=self.array.dtype))

    return function


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow"):
    setattr(Tensor, f"__{_name}__", _operator(f"__{_name}__"))


def frombuffer(buffer, dtype, count=-1, offset=0):
    return Tensor(numpy.frombuffer(buffer, dtype=dtype.own, count=count, offset=offset))


def from_numpy(array):
    return Tensor(array)


def tensor(values, dtype=float32, **kwargs):
    return Tensor(numpy.array(values, dtype=dtype.own))


def _filled(function):
    def make(*shape, dtype=float32, **kwargs):
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return Tensor(function(tuple(shape), dtype=dtype.own))

    return make


ones, zeros, empty = _filled(numpy.ones), _filled(numpy.zeros), _filled(numpy.empty)


def full(shape, value, dtype=float32, **kwargs):
    return Tensor(numpy.full(tuple(shape), value, dtype=dtype.own))


def stack(tensors, dim=0):
    return Tensor(numpy.stack([one.array for one in tensors], axis=dim))


def cat(tensors, dim=0):
    return Tensor(numpy.concatenate([one.array for one in tensors], axis=dim))


@contextlib.contextmanager
def inference_mode(mode=True):
    yield


no_grad = inference_mode


class OutOfMemoryError(RuntimeError):
    pass


class cuda:
    OutOfMemoryError = OutOfMemoryError

    @staticmethod
    def is_available():
        return False
