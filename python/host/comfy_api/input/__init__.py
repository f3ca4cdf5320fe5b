from comfy_api.latest._input import AudioInput, ImageInput, LatentInput, MaskInput, VideoInput

__all__ = ["AudioInput", "ImageInput", "LatentInput", "MaskInput", "VideoInput"]
