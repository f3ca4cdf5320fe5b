"""Functions of the host on tensors, next to what the program's own nodes give. Needs torch."""

import os

import comfy.sample
import comfy.utils
import folder_paths
import node_helpers
import torch


class GoldenUpscale:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"samples": ("LATENT",), "method": ("STRING",), "width": ("INT",), "height": ("INT",), "crop": ("STRING",)}}

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "go"

    def go(self, samples, method, width, height, crop):
        changed = comfy.utils.common_upscale(samples["samples"], width // 8, height // 8, method, crop)
        return ({**samples, "samples": changed},)


class GoldenNoise:
    """A latent of noise."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"samples": ("LATENT",), "seed": ("INT",)}}

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "go"

    def go(self, samples, seed):
        return ({"samples": comfy.sample.prepare_noise(samples["samples"], seed)},)


class GoldenSame:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"a": ("LATENT",), "b": ("LATENT",)}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, a, b):
        a, b = a["samples"], b["samples"]
        same = a.shape == b.shape
        off = float((a - b).abs().max()) if same else 0.0
        return {"ui": {"same": [same], "off": [off], "kinds": [type(a) is torch.Tensor, str(a.dtype), torch.is_inference_mode_enabled(), a.is_inference()]}}


class GoldenReport:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self):
        path = os.path.join(folder_paths.get_temp_directory(), "golden.safetensors")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        weights = {"a.weight": torch.arange(6, dtype=torch.float16).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)}
        comfy.utils.save_torch_file(weights, path, metadata={"k": "v"})
        loaded, about = comfy.utils.load_torch_file(path, return_metadata=True)
        old = path.replace(".safetensors", ".pt")
        torch.save({"state_dict": {"c": torch.zeros(3)}}, old)
        cond = [[torch.zeros(1, 2, 3), {"a": 1}]]
        changed = node_helpers.conditioning_set_values(cond, {"b": 2})
        noise = comfy.sample.prepare_noise(torch.zeros(2, 1, 1, 2), 7)
        some = comfy.sample.prepare_noise(torch.zeros(2, 1, 1, 2), 7, noise_inds=[1, 1])
        renamed = comfy.utils.state_dict_prefix_replace({"x.a": 1, "y": 2}, {"x.": "z."}, filter_keys=True)
        linear = torch.nn.Linear(2, 2)
        before = comfy.utils.set_attr(linear, "bias", torch.nn.Parameter(torch.ones(2)))
        tiles = comfy.utils.tiled_scale(torch.ones(1, 3, 40, 24), lambda x: torch.nn.functional.interpolate(x, scale_factor=2), 16, 16, 4, 2)
        report = {
            "loaded": [sorted(loaded), str(loaded["a.weight"].dtype), loaded["b"].tolist(), about],
            "old": sorted(comfy.utils.load_torch_file(old)),
            "cond": [changed[0][1], cond[0][1], changed[0][0] is cond[0][0]],
            "noise": [round(float(value), 4) for value in noise.flatten()],
            "picked": bool((some[0] == noise[1]).all() and (some[1] == noise[1]).all()),
            "renamed": renamed,
            "set": [before.shape[0], float(comfy.utils.get_attr(linear, "bias").sum())],
            "tiles": [list(tiles.shape), bool(torch.allclose(tiles, torch.ones_like(tiles)))],
            "repeat": list(comfy.utils.repeat_to_batch_size(torch.zeros(2, 3), 5).shape),
        }
        return {"ui": {"report": [report]}}


NODE_CLASS_MAPPINGS = {cls.__name__: cls for cls in (GoldenUpscale, GoldenNoise, GoldenSame, GoldenReport)}
