"""What clients are shown."""

import json
import os
import random

import folder_paths

from ._io import FolderType


class SavedResult(dict):
    def __init__(self, filename, subfolder, type):
        super().__init__(filename=filename, subfolder=subfolder, type=getattr(type, "value", type))


class _Shown:
    def as_dict(self):
        raise NotImplementedError


class SavedImages(_Shown):
    def __init__(self, results, is_animated=False):
        self.results, self.is_animated = results, is_animated

    def as_dict(self):
        shown = {"images": [dict(result) for result in self.results]}
        if self.is_animated:
            shown["animated"] = (True,)
        return shown


class SavedAudios(_Shown):
    def __init__(self, results):
        self.results = results

    def as_dict(self):
        return {"audio": [dict(result) for result in self.results]}


class ImageSaveHelper:
    @staticmethod
    def save_images(images, filename_prefix, folder_type, cls, compress_level=4):
        import nodes

        saver = nodes.SaveImage()
        kind = getattr(folder_type, "value", folder_type)
        saver.output_dir, saver.type, saver.compress_level = folder_paths.get_directory_by_type(kind), kind, compress_level
        hidden = getattr(cls, "hidden", None)
        shown = saver.save_images(images, filename_prefix, getattr(hidden, "prompt", None), getattr(hidden, "extra_pnginfo", None))
        return [SavedResult(**entry) for entry in shown["ui"]["images"]]

    @staticmethod
    def _frames(images):
        import numpy
        from PIL import Image

        array = images.cpu().numpy() if hasattr(images, "cpu") else numpy.asarray(images)
        return [Image.fromarray(numpy.clip(255.0 * frame, 0, 255).astype(numpy.uint8)) for frame in array]

    @staticmethod
    def _place(frames, filename_prefix, folder_type, ending):
        kind = getattr(folder_type, "value", folder_type)
        folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(
            filename_prefix, folder_paths.get_directory_by_type(kind), frames[0].width, frames[0].height
        )
        name = f"{name}_{counter:05}_.{ending}"
        return os.path.join(folder, name), SavedResult(name, subfolder, kind)

    @staticmethod
    def _texts(cls):
        from comfy.cli_args import args

        hidden = getattr(cls, "hidden", None)
        if args.disable_metadata or hidden is None:
            return {}
        texts = {}
        if hidden.prompt is not None:
            texts["prompt"] = json.dumps(hidden.prompt)
        for key, value in (hidden.extra_pnginfo or {}).items():
            texts[key] = json.dumps(value)
        return texts

    @staticmethod
    def save_animated_png(images, filename_prefix, folder_type, cls, fps, compress_level=4):
        from PIL.PngImagePlugin import PngInfo

        frames = ImageSaveHelper._frames(images)
        path, saved = ImageSaveHelper._place(frames, filename_prefix, folder_type, "png")
        info = PngInfo()
        for key, text in ImageSaveHelper._texts(cls).items():
            info.add(b"comf", key.encode("latin-1", "strict") + b"\0" + text.encode("latin-1", "strict"), after_idat=True)
        frames[0].save(
            path, pnginfo=info, compress_level=compress_level, save_all=True, duration=int(1000.0 / fps), append_images=frames[1:]
        )
        return saved

    @staticmethod
    def get_save_animated_png_ui(images, filename_prefix, cls, fps, compress_level=4):
        saved = ImageSaveHelper.save_animated_png(images, filename_prefix, FolderType.output, cls, fps, compress_level)
        return SavedImages([saved], is_animated=len(images) > 1)

    @staticmethod
    def save_animated_webp(images, filename_prefix, folder_type, cls, fps, lossless, quality, method):
        frames = ImageSaveHelper._frames(images)
        path, saved = ImageSaveHelper._place(frames, filename_prefix, folder_type, "webp")
        exif = frames[0].getexif()
        place = 0x010F
        for key, text in ImageSaveHelper._texts(cls).items():
            if key == "prompt":
                exif[0x0110] = f"prompt:{text}"
            else:
                exif[place] = f"{key}:{text}"
                place -= 1
        frames[0].save(
            path, save_all=True, duration=int(1000.0 / fps), append_images=frames[1:], exif=exif, lossless=lossless, quality=quality,
            method=method,
        )
        return saved

    @staticmethod
    def get_save_animated_webp_ui(images, filename_prefix, cls, fps, lossless, quality, method):
        saved = ImageSaveHelper.save_animated_webp(images, filename_prefix, FolderType.output, cls, fps, lossless, quality, method)
        return SavedImages([saved], is_animated=len(images) > 1)

    @staticmethod
    def get_save_images_ui(images, filename_prefix, cls, compress_level=4):
        return SavedImages(ImageSaveHelper.save_images(images, filename_prefix, FolderType.output, cls, compress_level))


class PreviewImage(_Shown):
    def __init__(self, image, animated=False, cls=None, **kwargs):
        prefix = "ComfyUI_temp_" + "".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(5))
        self.values = ImageSaveHelper.save_images(image, prefix, FolderType.temp, cls, compress_level=1)
        self.animated = animated

    def as_dict(self):
        return {"images": [dict(value) for value in self.values], "animated": (self.animated,)}


class PreviewMask(PreviewImage):
    def __init__(self, mask, animated=False, cls=None, **kwargs):
        image = mask.reshape((-1, 1, mask.shape[-2], mask.shape[-1])).movedim(1, -1).expand(-1, -1, -1, 3)
        super().__init__(image, animated, cls)


class PreviewText(_Shown):
    def __init__(self, value, **kwargs):
        self.value = value

    def as_dict(self):
        return {"text": (self.value,)}


class PreviewVideo(_Shown):
    def __init__(self, values, **kwargs):
        self.values = values

    def as_dict(self):
        return {"images": self.values, "animated": (True,)}


class PreviewUI3D(_Shown):
    def __init__(self, model_file, camera_info=None, **kwargs):
        self.model_file, self.camera_info = model_file, camera_info

    def as_dict(self):
        return {"result": [self.model_file, self.camera_info]}


class PreviewAudio(_Shown):
    def __init__(self, audio, cls=None, **kwargs):
        from fresco_host.models import run_shown

        self.values = run_shown("PreviewAudio", {"audio": audio})[1]["audio"]

    def as_dict(self):
        return {"audio": self.values}


class AudioSaveHelper:
    """Sounds are written by the engine."""

    _NODES = {"flac": "SaveAudio", "mp3": "SaveAudioMP3", "opus": "SaveAudioOpus"}

    @staticmethod
    def save_audio(audio, filename_prefix, folder_type, cls, format="flac", quality="128k"):
        from fresco_host.models import run_shown

        given = {"audio": audio, "filename_prefix": filename_prefix}
        if format != "flac":
            given["quality"] = quality
        kind = getattr(folder_type, "value", folder_type)
        node = AudioSaveHelper._NODES[format] if kind == "output" else "PreviewAudio"
        if node == "PreviewAudio":
            given = {"audio": audio}
        return [SavedResult(**entry) for entry in run_shown(node, given)[1]["audio"]]

    @staticmethod
    def get_save_audio_ui(audio, filename_prefix, cls, format="flac", quality="128k"):
        return SavedAudios(AudioSaveHelper.save_audio(audio, filename_prefix, FolderType.output, cls, format, quality))
