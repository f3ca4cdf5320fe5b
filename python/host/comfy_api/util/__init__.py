from comfy_api.latest._types import MESH, VOXEL, VideoCodec, VideoComponents, VideoContainer

__all__ = ["MESH", "VOXEL", "VideoCodec", "VideoComponents", "VideoContainer"]
