"""What nodes are given."""

from typing import Any, TypedDict

ImageInput = Any
MaskInput = Any
LatentInput = dict


class AudioInput(TypedDict):
    waveform: Any
    sample_rate: int


class VideoInput:
    def get_components(self):
        raise NotImplementedError

    def get_dimensions(self):
        images = self.get_components().images
        return images.shape[2], images.shape[1]

    def get_frame_count(self):
        return self.get_components().images.shape[0]

    def get_frame_rate(self):
        return self.get_components().frame_rate

    def get_duration(self):
        parts = self.get_components()
        return float(parts.images.shape[0] / parts.frame_rate)
