"""Films."""

import io
from fractions import Fraction

from ._input import VideoInput


def _encoded(components, target, metadata):
    """Writes pictures and sound as an MP4 film."""
    import json

    try:
        import av
    except ImportError:
        raise RuntimeError("a film is encoded with PyAV, which is not installed: install it (pip install av), or give the VIDEO to the node SaveVideo") from None
    rate = Fraction(components.frame_rate).limit_denominator(1000)
    container = av.open(target, mode="w", format="mp4", options={"movflags": "use_metadata_tags"})
    with container:
        for key, value in (metadata or {}).items():
            container.metadata[key] = json.dumps(value)
        frames = (components.images[..., :3] * 255).clamp(0, 255).byte().cpu().numpy()
        stream = container.add_stream("h264", rate=rate)
        # The format has half as many colours in each direction.
        stream.width, stream.height = frames.shape[2] // 2 * 2, frames.shape[1] // 2 * 2
        stream.pix_fmt = "yuv420p"
        sound = _sound_stream(container, components.audio)
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(frame[: stream.height, : stream.width].copy(order="C"), format="rgb24")
            container.mux(stream.encode(picture.reformat(format="yuv420p")))
        container.mux(stream.encode(None))
        if sound is not None:
            _write_sound(container, sound, components)


def _sound_stream(container, audio):
    return None if not audio else container.add_stream("aac", rate=int(audio["sample_rate"]))


def _write_sound(container, stream, components):
    import av

    rate = int(components.audio["sample_rate"])
    # As long as the pictures.
    length = round(rate * len(components.images) / float(components.frame_rate))
    wave = components.audio["waveform"][0][:, :length].float().cpu().numpy()
    frame = av.AudioFrame.from_ndarray(wave.T.reshape(1, -1).copy(order="C"), format="flt", layout="mono" if wave.shape[0] == 1 else "stereo")
    frame.sample_rate, frame.pts = rate, 0
    container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


class VideoFromComponents(VideoInput):
    def __init__(self, components):
        self._components = components

    def get_components(self):
        return self._components

    def save_to(self, path, format="auto", codec="auto", metadata=None):
        """Writes an MP4 film to a path or into a buffer."""
        for name, value, known in (("format", format, ("auto", "mp4")), ("codec", codec, ("auto", "h264"))):
            if getattr(value, "value", value) not in known:
                raise ValueError(f"films are saved as MP4 with H.264 only; {name} is {value}")
        _encoded(self._components, path, metadata)

    def get_stream_source(self):
        """The film as the content of a file."""
        buffer = io.BytesIO()
        self.save_to(buffer)
        buffer.seek(0)
        return buffer


class VideoFromFile(VideoInput):
    def __init__(self, file):
        self._file = file

    def get_stream_source(self):
        return self._file

    def get_components(self):
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
