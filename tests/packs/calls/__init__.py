"""Built-in classes, called and asked from Python as packs do it."""

import json

import comfy_extras.nodes_custom_sampler
import comfy_extras.nodes_lt
import comfy_extras.nodes_post_processing
import nodes
import numpy
import torch
from comfy_api.latest import io
from comfy_extras.nodes_mask import MaskComposite


class CallsPicture:
    """A picture by methods of the host's classes, in the order of their arguments."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "clip": ("CLIP",), "vae": ("VAE",)}}

    RETURN_TYPES = ("IMAGE", "STRING")
    FUNCTION = "go"

    def go(self, model, clip, vae):
        positive = nodes.CLIPTextEncode().encode(clip, "a (red:1.5) house")[0]
        negative = nodes.NODE_CLASS_MAPPINGS["CLIPTextEncode"]().encode(text="", clip=clip)[0]
        latent = nodes.EmptyLatentImage().generate(numpy.int64(64), 64)[0]
        samples = nodes.KSampler().sample(
            model, numpy.int64(5), 2, numpy.float32(3.0), "euler", "normal", positive, negative, latent
        )[0]
        image = nodes.VAEDecode().decode(vae, samples)[0]
        mask = torch.ones(1, 64, 64)
        shape = lambda value: list(value["samples"].shape)  # noqa: E731
        inpaint = nodes.InpaintModelConditioning().encode(positive, negative, image, vae, mask)
        masked = nodes.ConditioningSetMask().append(tuple(positive), mask, False, 0.5)[0]
        told = {
            "tiled": list(nodes.VAEDecodeTiled().decode(vae, samples, 512)[0].shape),
            "encode": shape(nodes.VAEEncode().encode(vae, image)[0]),
            "encode_tiled": shape(nodes.VAEEncodeTiled().encode(vae, image, 512, 64)[0]),
            "for_inpaint": shape(nodes.VAEEncodeForInpaint().encode(vae, image, mask)[0]),
            "inpaint": [sorted(inpaint[0][0][1]), shape(inpaint[2]), "noise_mask" in inpaint[2]],
            "masked": [masked[0][1]["set_area_to_bounds"], masked[0][1]["mask_strength"]],
        }
        return (image, json.dumps(told))


class Shouting(nodes.CLIPTextEncode):
    """A class of the host with its method in a form of the pack's own."""

    def encode(self, clip, text):
        return super().encode(clip, text.upper())


class OwnGuide(comfy_extras.nodes_lt.LTXVAddGuide):
    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="CallsOwnGuide", inputs=[io.Latent.Input("latent")], outputs=[io.Latent.Output()])

    @classmethod
    def execute(cls, latent):
        mask = comfy_extras.nodes_lt.get_noise_mask(latent)
        guide = torch.full((1, 128, 1, 2, 2), 7.0)
        cond = [[torch.zeros(1, 1, 8), {}]]
        frame, place = cls.get_latent_index(cond, 3, 1, -8, (8, 32, 32))
        positive, _, samples, mask = cls.append_keyframe(
            cond, cond, frame, latent["samples"], mask, guide, 0.75, (8, 32, 32)
        )
        assert comfy_extras.nodes_lt.get_keyframe_idxs(positive)[1] == 1
        positions = positive[0][1]["keyframe_idxs"][0].tolist()
        print("guides", frame, place, positions, mask.flatten().tolist(), list(samples.shape))
        return io.NodeOutput({"samples": samples, "noise_mask": mask})


def _error(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


class CallsReport:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"clip": ("CLIP",)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, clip):
        image = torch.linspace(0, 1, 1 * 4 * 4 * 3).reshape(1, 4, 4, 3)
        cond = nodes.CLIPTextEncode().encode(clip, "a house")[0]
        scale = nodes.ImageScale()
        plain = scale.upscale(image, "bilinear", 8, 4, "disabled")[0]
        newer = comfy_extras.nodes_custom_sampler.SplitSigmas
        sigmas = torch.tensor([3.0, 2.0, 1.0, 0.0])
        split = newer.execute(sigmas, 1)
        average = nodes.ConditioningAverage.addWeighted(None, cond, cond, 0.5)[0]
        told = {
            "methods": [nodes.ImageScale.upscale_methods, scale.upscale_methods, scale.crop_methods],
            "functions": [nodes.VAEDecode.FUNCTION, nodes.ConditioningAverage.FUNCTION, nodes.KSampler().FUNCTION, newer.FUNCTION],
            "has": [hasattr(nodes.ImageScale, "encode"), hasattr(scale, "no_such"), callable(nodes.ConditioningAverage().addWeighted)],
            "crop": [
                torch.equal(plain, scale.upscale(image, "bilinear", 8, 4, crop=False)[0]),
                torch.equal(plain, scale.upscale(image, "bilinear", 8.0, numpy.int64(4), "center")[0]),
            ],
            "average": torch.allclose(average[0][0], cond[0][0]),
            "newer": [
                type(split).__name__, split[0].tolist(), split.result[1].tolist(), len(split.args),
                newer().get_sigmas(sigmas, 2)[1].tolist(), issubclass(newer, io.ComfyNode),
                getattr(newer(), newer.FUNCTION)(sigmas=sigmas, step=3)[0].tolist(),
            ],
            "mask": MaskComposite.execute(torch.zeros(1, 4, 4), torch.ones(1, 2, 2), 1, 1, "add")[0].sum().item(),
            "renamed": comfy_extras.nodes_post_processing.Blend is nodes.NODE_CLASS_MAPPINGS["ImageBlend"],
            "blend": comfy_extras.nodes_post_processing.Blend.g(torch.tensor([0.25])).tolist(),
            "types": [nodes.VAEDecode.RETURN_TYPES, list(newer.RETURN_TYPES), nodes.VAEDecode().CATEGORY],
            "inputs": sorted(nodes.VAEDecode.INPUT_TYPES()["required"]),
            "merge": nodes.NODE_CLASS_MAPPINGS["ModelMergeSDXL"].FUNCTION,
            "errors": [
                _error(lambda: nodes.VAEDecode().decode(1, 2, 3)), _error(lambda: nodes.VAEDecode().decode(samples=1)),
                _error(lambda: nodes.VAEDecode().decode(1, vae=2)), _error(lambda: nodes.VAEDecode().decode(1, 2, tiles=3)),
                _error(lambda: nodes.LatentComposite().composite({}, {}, 0, 0, "fancy")),
            ],
            "named": [nodes.VAEDecode.decode.__name__, str(__import__("inspect").signature(nodes.VAEDecodeTiled.decode))],
            "gradients": scale.upscale(torch.nn.Parameter(image), "area", 2, 2, "center")[0].shape[1],
        }
        return (json.dumps(told),)


NODE_CLASS_MAPPINGS = {"CallsPicture": CallsPicture, "CallsShouting": Shouting, "CallsOwnGuide": OwnGuide, "CallsReport": CallsReport}
