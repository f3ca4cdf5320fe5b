"""Writes the .pt and .ckpt files of this folder in the layouts of torch.save, without torch: python3 make_pickles.py

Stand-in classes carry torch's names, so that the pickles hold the same globals and opcodes as torch's own.
"""

import collections
import io
import os
import pickle
import struct
import sys
import types
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
EPOCH = (1980, 1, 1, 0, 0, 0)


def module(name):
    parent = name.rpartition(".")[0]
    if parent:
        module(parent)
    made = sys.modules.get(name) or types.ModuleType(name)
    sys.modules[name] = made
    return made


def put(name, qualified):
    """Makes `name` importable from the module that torch has it in."""

    def wrap(thing):
        thing.__module__, thing.__qualname__, thing.__name__ = qualified, name, name
        setattr(module(qualified), name, thing)
        return thing

    return wrap


STORAGES = {}
for kind, code in [
    ("FloatStorage", "f"), ("HalfStorage", "e"), ("BFloat16Storage", "H"), ("DoubleStorage", "d"), ("ByteStorage", "B"),
    ("CharStorage", "b"), ("ShortStorage", "h"), ("IntStorage", "i"), ("LongStorage", "q"), ("BoolStorage", "?"),
    ("ComplexFloatStorage", "q"),
]:
    STORAGES[kind] = (put(kind, "torch")(type(kind, (), {})), code)
STORAGES["UntypedStorage"] = (put("UntypedStorage", "torch.storage")(type("U", (), {})), "B")


class DtypeGlobal:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


for dtype in ("float8_e4m3fn", "float8_e5m2"):
    value = DtypeGlobal(dtype)
    value.__module__ = "torch"
    setattr(module("torch"), dtype, value)


@put("_rebuild_tensor_v2", "torch._utils")
def _rebuild_tensor_v2(*a):
    pass


@put("_rebuild_tensor_v3", "torch._utils")
def _rebuild_tensor_v3(*a):
    pass


@put("_rebuild_parameter", "torch._utils")
def _rebuild_parameter(*a):
    pass


@put("scalar", "numpy.core.multiarray")
def scalar(*a):
    pass


class Storage:
    """A storage object: what persistent_id turns into a name."""

    count = 0

    def __init__(self, kind, values):
        self.kind, self.values = kind, values
        self.key = str(Storage.count)
        Storage.count += 1

    def data(self):
        return struct.pack("<%d%s" % (len(self.values), STORAGES[self.kind][1]), *self.values)


def row_major(shape):
    strides, n = [], 1
    for size in reversed(shape):
        strides.insert(0, n)
        n *= size
    return tuple(strides)


class Tensor:
    def __init__(self, storage, shape, strides=None, offset=0, dtype=None):
        self.storage, self.shape, self.offset, self.dtype = storage, shape, offset, dtype
        self.strides = row_major(shape) if strides is None else strides

    def __reduce_ex__(self, protocol):
        parts = (self.storage, self.offset, self.shape, self.strides, False, collections.OrderedDict())
        if self.dtype:
            return _rebuild_tensor_v3, (*parts, getattr(sys.modules["torch"], self.dtype))
        return _rebuild_tensor_v2, parts


class Parameter(Tensor):
    def __reduce_ex__(self, protocol):
        plain = Tensor(self.storage, self.shape, self.strides, self.offset)
        return _rebuild_parameter, (plain, True, collections.OrderedDict())


@put("ParameterDict", "torch.nn.modules.container")
class ParameterDict:
    def __init__(self, parameters):
        self.training = True
        self._parameters = collections.OrderedDict(parameters)


@put("ModelCheckpoint", "pytorch_lightning.callbacks.model_checkpoint")
class ModelCheckpoint:
    pass


@put("system", "posix")
class System:
    def __reduce_ex__(self, protocol):
        return self.__class__, ("touch /tmp/a-pickle-was-run",)


class Pickler(pickle._Pickler):
    def __init__(self, out, protocol, legacy):
        super().__init__(out, protocol)
        self.legacy, self.seen = legacy, {}

    def persistent_id(self, value):
        if isinstance(value, Storage):
            self.seen[value.key] = value
            name = ("storage", STORAGES[value.kind][0], value.key, "cpu", len(value.values))
            return (*name, None) if self.legacy else name
        return None


def dump(value, protocol=2, legacy=False):
    out = io.BytesIO()
    pickler = Pickler(out, protocol, legacy)
    pickler.dump(value)
    return out.getvalue(), pickler.seen


def save_zip(name, value, protocol=2, method=zipfile.ZIP_STORED, order=b"little"):
    data, storages = dump(value, protocol)
    with zipfile.ZipFile(os.path.join(HERE, name), "w", method) as archive:

        def add(entry, content):
            info = zipfile.ZipInfo("archive/" + entry, EPOCH)
            info.compress_type = method
            # torch aligns the data of every entry to 64 bytes with an extra field.
            start = archive.fp.tell() + 30 + len(info.filename) + 4
            info.extra = struct.pack("<HH", 0x4246, -start % 64) + b"Z" * (-start % 64)
            archive.writestr(info, content)

        add("data.pkl", data)
        add("byteorder", order)
        for key, storage in storages.items():
            add("data/" + key, storage.data())
        add("version", b"3\n")


def save_row(name, value, little=True):
    data, storages = dump(value, legacy=True)
    sizes = {"short": 2, "int": 4, "long": 4}
    with open(os.path.join(HERE, name), "wb") as out:
        pickle.dump(0x1950A86A20F9469CFC6C, out, 2)
        pickle.dump(1001, out, 2)
        pickle.dump({"protocol_version": 1001, "little_endian": little, "type_sizes": sizes}, out, 2)
        out.write(data)
        pickle.dump(sorted(storages), out, 2)
        for key in sorted(storages):
            out.write(struct.pack("<q", len(storages[key].values)))
            out.write(storages[key].data())


def state_dict():
    Storage.count = 0
    counting = Storage("FloatStorage", [float(i) for i in range(24)])
    return collections.OrderedDict(
        [
            ("model.plain", Tensor(Storage("FloatStorage", [1.5, -2.0, 0.25, 4.0, 5.0, 6.0]), (2, 3))),
            ("model.half", Tensor(Storage("HalfStorage", [1.0, -0.5]), (2,))),
            ("model.brain", Tensor(Storage("BFloat16Storage", [0x3F80, 0xC000]), (1, 2))),
            ("model.double", Tensor(Storage("DoubleStorage", [0.125]), ())),
            ("model.long", Tensor(Storage("LongStorage", [-3, 1 << 40]), (2,))),
            ("model.int", Tensor(Storage("IntStorage", [-7]), (1,))),
            ("model.short", Tensor(Storage("ShortStorage", [-8]), (1,))),
            ("model.char", Tensor(Storage("CharStorage", [-9]), (1,))),
            ("model.byte", Tensor(Storage("ByteStorage", [200]), (1,))),
            ("model.bool", Tensor(Storage("BoolStorage", [True, False]), (2,))),
            ("model.empty", Tensor(Storage("FloatStorage", []), (0, 4))),
            # Four views of one storage: whole, a part, transposed, every other column.
            ("model.whole", Tensor(counting, (2, 3, 4))),
            ("model.part", Tensor(counting, (4,), (1,), 20)),
            ("model.turned", Tensor(counting, (4, 3, 2), (1, 4, 12))),
            ("model.sparse", Tensor(counting, (3, 2), (4, 2), 13)),
            ("model.expanded", Tensor(counting, (3, 2), (0, 1), 4)),
            ("model.parameter", Parameter(Storage("FloatStorage", [9.0]), (1,))),
            ("model.complex", Tensor(Storage("ComplexFloatStorage", [1]), (1,))),
            ("model.f8", Tensor(Storage("UntypedStorage", [0x38, 0x7E]), (2,), dtype="float8_e4m3fn")),
            ("model.number", 3),
        ]
    )


def lightning():
    weights = state_dict()
    weights._metadata = collections.OrderedDict([("", {"version": 1})])
    best = scalar_value()
    return {
        "epoch": 6,
        "global_step": 470000,
        "pytorch-lightning_version": "1.4.2",
        "state_dict": weights,
        "callbacks": {ModelCheckpoint: {"monitor": "val/loss", "best_model_score": best, "dirpath": None}},
        "optimizer_states": [{"state": {}, "lr": 1e-05, "betas": (0.9, 0.999), "huge": 1 << 80}],
        "evil": System(),
    }


class scalar_value:
    def __reduce_ex__(self, protocol):
        return scalar, ("f8", b"\0\0\0\0\0\0\xf0?")


def inversion(parameters):
    return {
        "string_to_token": {"*": 265},
        "string_to_param": parameters,
        "name": "cat-toy",
        "step": 4999,
        "sd_checkpoint": None,
    }


def vectors():
    Storage.count = 0
    return Storage("FloatStorage", [i / 8 for i in range(8)])


def main():
    save_zip("lightning.ckpt", lightning())
    save_zip("protocol4.pt", lightning(), protocol=4)
    save_row("old.ckpt", lightning())
    save_row("big_endian.ckpt", {"a": Tensor(vectors(), (8,))}, little=False)
    save_zip("big_endian.pt", {"a": Tensor(vectors(), (8,))}, order=b"big")
    save_zip("nested.pth", {"params_ema": {"a": Tensor(vectors(), (2, 4))}})
    save_zip("compressed.pt", {"a": Tensor(vectors(), (8,))}, method=zipfile.ZIP_DEFLATED)
    save_zip("inversion.pt", inversion({"*": Parameter(vectors(), (2, 4))}))
    save_row("inversion_old.pt", inversion(ParameterDict({"*": Parameter(vectors(), (2, 4))})))
    save_zip("concept.bin", {"<cat-toy>": Tensor(vectors(), (8,))})
    # Small limits make the library write the records of large archives.
    zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = 10, 1
    save_zip("zip64.pt", {"a": Tensor(vectors(), (8,)), "b": Tensor(vectors(), (4,), (2,), 1)})


main()
