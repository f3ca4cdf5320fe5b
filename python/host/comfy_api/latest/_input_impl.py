"""Films."""

from ._input import VideoInput


class VideoFromComponents(VideoInput):
    def __init__(self, components):
        self._components = components

    def get_components(self):
        return self._components

    def save_to(self, path, format="auto", codec="auto", metadata=None):
        raise NotImplementedError("films are saved by the node SaveVideo; give the VIDEO to it")


class VideoFromFile(VideoInput):
    def __init__(self, file):
        self._file = file

    def get_stream_source(self):
        return self._file

    def get_components(self):
        from fractions import Fraction

        import av
        import numpy
        import torch

        from ._types import VideoComponents

        with av.open(self._file) as container:
            stream = container.streams.video[0]
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
            rate = Fraction(stream.average_rate)
        images = torch.from_numpy(numpy.stack(frames).astype(numpy.float32) / 255.0)
        return VideoComponents(images=images, frame_rate=rate)
