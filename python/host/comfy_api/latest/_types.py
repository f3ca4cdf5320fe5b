"""Plain records."""

import enum
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Optional


class VideoCodec(str, enum.Enum):
    AUTO = "auto"
    H264 = "h264"

    @classmethod
    def as_input(cls):
        return [member.value for member in cls]


class VideoContainer(str, enum.Enum):
    AUTO = "auto"
    MP4 = "mp4"

    @classmethod
    def as_input(cls):
        return [member.value for member in cls]

    @classmethod
    def get_extension(cls, value):
        return "mp4"


@dataclass
class VideoComponents:
    images: Any
    frame_rate: Fraction
    audio: Optional[dict] = None
    metadata: Optional[dict] = None


class MESH:
    def __init__(self, vertices, faces):
        self.vertices = vertices
        self.faces = faces


class VOXEL:
    def __init__(self, data):
        self.data = data
