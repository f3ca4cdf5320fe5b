"""Values that only Python knows: named tuples, pipes, mappings that read late, dictionaries of a pack's own class."""

import collections
import collections.abc
import enum

SEG = collections.namedtuple("SEG", ["cropped_image", "confidence", "crop_region", "label"], defaults=[None])


class Kind(str, enum.Enum):
    SEGS = "SEGS"


class LateAudio(collections.abc.Mapping):
    """Reads its sound when somebody looks, as nodes that load videos do."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.content = None

    def _read(self):
        import numpy

        if self.content is None:
            wave = numpy.sin(numpy.arange(int(self.seconds * 8000), dtype=numpy.float32) * 0.05).astype(numpy.float32)
            self.content = {"waveform": wave.reshape(1, 1, -1), "sample_rate": 8000}
        return self.content

    def __getitem__(self, key):
        return self._read()[key]

    def __iter__(self):
        return iter(self._read())

    def __len__(self):
        return len(self._read())


class Own(dict):
    """A dictionary that says more."""


class Odd:
    """Cannot be compared, counted or turned into text, like some models."""

    __hash__ = None

    def __eq__(self, other):
        raise ValueError("no")

    def __len__(self):
        raise TypeError("no")

    def __repr__(self):
        raise RuntimeError("no")


kept = {}


class WaysMake:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",), "seed": ("INT", {"default": 0, "min": 0, "max": 0xFFFFFFFFFFFFFFFF})}}

    RETURN_TYPES = (Kind.SEGS, "PIPE_LINE", "AUDIO", "LATENT", "ODD")
    FUNCTION = "go"

    def go(self, image, seed):
        import numpy

        segs = (tuple(image.shape[1:3]), [SEG(image, 0.5, (0, 0, 8, 8), "face"), SEG(None, 0.25, (1, 1, 4, 4))])
        pipe = {"image": image, "settings": {"seed": seed}, "more": (1, "two", None)}
        latent = Own(samples=numpy.zeros((1, 4, 8, 8), dtype=numpy.float32))
        latent.more = "kept here"
        odd = kept.setdefault("odd", Odd())
        return (segs, pipe, LateAudio(0.5), latent, odd)


class WaysTake:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"segs": ("SEGS",), "pipe": ("PIPE_LINE",), "odd": ("ODD",)}}

    RETURN_TYPES = ("IMAGE", "STRING")
    FUNCTION = "go"

    def go(self, segs, pipe, odd):
        shape, parts = segs
        first = parts[0]
        text = [
            list(shape), type(first).__name__, first.confidence, first.crop_region, [part.label for part in parts], pipe["settings"],
            type(pipe["more"]).__name__, odd is kept["odd"], first.cropped_image is pipe["image"],
        ]
        return (pipe["image"], repr(text))


class SoundOfFile(collections.abc.Mapping):
    """Sound that is read when somebody asks for it, from a file that has none."""

    def __getitem__(self, key):
        raise ValueError("the film has no sound")

    __iter__ = __len__ = lambda self: self["waveform"]


class WaysSoundlessFilm:
    INPUT_TYPES = classmethod(lambda cls: {"required": {}})
    RETURN_TYPES = ("AUDIO", "STRING")
    FUNCTION = "run"
    CATEGORY = "ways"

    def run(self):
        return SoundOfFile(), "frames"


class WaysSoundKind:
    INPUT_TYPES = classmethod(lambda cls: {"required": {"audio": ("AUDIO",)}})
    RETURN_TYPES = ("STRING",)
    FUNCTION = "run"
    CATEGORY = "ways"

    def run(self, audio):
        return (type(audio).__name__,)


NODE_CLASS_MAPPINGS = {
    "WaysMake": WaysMake, "WaysTake": WaysTake, "WaysSoundlessFilm": WaysSoundlessFilm, "WaysSoundKind": WaysSoundKind,
}
