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


class CallsWeights:
    """Prompts with weights of the pack's own, by the networks of the encoder."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"clip": ("CLIP",), "text": ("STRING",), "how": ("STRING",)}}

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "go"

    def _encoded(self, clip, name, tokens):
        stage = clip.cond_stage_model
        stage.reset_clip_options()
        if clip.layer_idx is not None:
            stage.set_clip_options({"layer": clip.layer_idx})
        stage.set_clip_options({"execution_device": clip.patcher.load_device})
        return getattr(clip.cond_stage_model, name).encode_token_weights(tokens)

    def go(self, clip, text, how):
        tokenized = clip.tokenize(text, return_word_ids=True)
        clip = clip.clone()
        clip.clip_layer(-2)
        conds = []
        for key, name in (("l", "clip_l"), ("g", "clip_g")):
            if key not in tokenized:
                continue
            if how == "own":
                plain = [[(token, 1.0) for token, _, _ in chunk] for chunk in tokenized[key]]
                cond, pooled = self._encoded(clip, name, plain)
                weights = torch.tensor([[weight for _, weight, _ in chunk] for chunk in tokenized[key]]).reshape(1, -1, 1)
                weighted = cond * weights
                cond = weighted * (cond.mean() / weighted.mean())
            else:
                cond, pooled = self._encoded(clip, name, [[(token, weight) for token, weight, _ in chunk] for chunk in tokenized[key]])
            assert torch.isfinite(cond).all()
            conds.append(cond)
        return ([[torch.cat(conds, dim=-1), {"pooled_output": pooled}]],)


class CallsSame:
    """How far two conditionings are apart."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"a": ("CONDITIONING",), "b": ("CONDITIONING",)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, a, b):
        pooled = [cond[0][1]["pooled_output"] for cond in (a, b)]
        off = [(a[0][0] - b[0][0]).abs().max().item(), (pooled[0] - pooled[1]).abs().max().item()]
        return (json.dumps(off),)


class CallsEncoder:
    """What a pack asks of an encoder."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"clip": ("CLIP",)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, clip):
        from comfy import sd1_clip, sdxl_clip
        from comfy.text_encoders import flux, sd3_clip

        stage, tokenizer = clip.cond_stage_model, clip.tokenizer
        kinds = {
            "sd1": sd1_clip.SD1ClipModel, "sdxl": sdxl_clip.SDXLClipModel, "refiner": sdxl_clip.SDXLRefinerClipModel,
            "g": sdxl_clip.SDXLClipG, "sd3": sd3_clip.SD3ClipModel, "flux": flux.FluxClipModel,
        }
        tokenizers = [part for part in tokenizer.__dict__.values() if isinstance(part, sd1_clip.SDTokenizer)]
        words = tokenizer.clip_l.tokenizer
        own = clip.clone()

        class Tokenizer:
            def tokenize_with_weights(self, text, return_word_ids=False, **kwargs):
                return tokenizer.tokenize_with_weights(text.upper() + " house", return_word_ids)

        own.tokenizer = Tokenizer()
        replaced = clip.clone()
        replaced.cond_stage_model = stage
        told = {
            "kinds": sorted(name for name, cls in kinds.items() if isinstance(stage, cls)),
            "sdxl tokenizer": isinstance(tokenizer, sdxl_clip.SDXLTokenizer),
            "has": [bool(stage), *(hasattr(stage, name) for name in ("set_clip_options", "clip_l", "clip_g", "t5xxl"))],
            "parts": [isinstance(stage.clip_l, sd1_clip.SDClipModel), stage.clip_l.special_tokens, stage.clip_l is clip.patcher.model.clip_l],
            "tokenizers": [[part.embedding_key, part.start_token, part.end_token, part.pad_token, part.pad_with_end] for part in tokenizers],
            "lengths": [tokenizer.clip_l.max_length, tokenizer.clip_l.min_length, tokenizer.clip_l.embedding_size],
            "words": [words("a photo")["input_ids"], words.get_vocab()["photo</w>"], tokenizer.clip_l.inv_vocab[1125], words.decode([320, 1125])],
            "untokenize": tokenizer.untokenize([(1125, 1.0)])[0][1],
            "own": own.tokenize("a")["l"] == clip.tokenize("A house")["l"],
            "replaced": _error(lambda: replaced.encode_from_tokens(clip.tokenize("a"))),
            "hooks": own.add_hooks_to_dict({"pooled": 1}),
            "negative": clip.cond_stage_model.clip_l.encode([[49406, 320, 49407]])[0].shape[:2],
        }
        return (json.dumps(told),)


NODE_CLASS_MAPPINGS.update(CallsWeights=CallsWeights, CallsSame=CallsSame, CallsEncoder=CallsEncoder)


class CallsPatched:
    """A model with functions of the pack, or with a change of its weights."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "how": ("STRING",)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "go"

    def go(self, model, how):
        from comfy.patcher_extension import WrappersMP

        model = model.clone()
        if how == "weights":
            key = "diffusion_model.out.2.weight"
            model.add_patches({key: ("diff", (torch.full(model.model_state_dict()[key].shape, 0.02),))})
        elif how == "guidance":
            model.set_model_sampler_cfg_function(self.guide)
            model.set_model_sampler_post_cfg_function(self.after)
            model.set_model_sampler_pre_cfg_function(self.before)
        elif how == "around":
            model.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, "calls", self.around)
        else:
            kind = WrappersMP.APPLY_MODEL if how == "inside" else WrappersMP.OUTER_SAMPLE
            model.add_wrapper_with_key(kind, "calls", lambda *_: 1 / 0)
            assert len(model.get_wrappers(kind, "calls")) == 1 and len(model.clone().get_all_wrappers(kind)) == 1
            if how == "removed":
                model.remove_wrappers_with_key(kind, "calls")
        return (model,)

    @staticmethod
    def levels(args):
        inner = args["model_options"]["transformer_options"]
        inner["steps"] = inner.get("steps", 0) + 1
        assert len(inner["sample_sigmas"]) == 3 and inner["sigmas"][0] in inner["sample_sigmas"], inner
        return inner["steps"]

    @classmethod
    def guide(cls, args):
        from comfy.samplers import calc_cond_batch

        step = cls.levels(args)
        conds = [args["input_cond"], args["input_uncond"], None]
        again = calc_cond_batch(args["model"], conds, args["input"], args["timestep"], args["model_options"])
        same = torch.equal(again[0], args["cond_denoised"]) and torch.equal(again[1], args["uncond_denoised"])
        print("guided", step, same, again[2].abs().sum().item(), flush=True)
        return args["uncond"] + (args["cond"] - args["uncond"]) * args["cond_scale"]

    @classmethod
    def after(cls, args):
        print("after", cls.levels(args), args["cond"] is not None, flush=True)
        return args["denoised"]

    @classmethod
    def before(cls, args):
        cls.levels(args)
        return args["conds_out"]

    @staticmethod
    def around(executor, noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed, latent_shapes):
        steps = []
        told = lambda step, x0, x, total: steps.append(step)  # noqa: E731
        made = executor(noise, latent_image, sampler, sigmas, denoise_mask, told, disable_pbar, seed, latent_shapes=latent_shapes)
        levels = executor.class_obj.model_options["transformer_options"]["sample_sigmas"]
        print("around", seed, steps, len(levels), latent_shapes, executor.class_obj.model_patcher is not None, flush=True)
        return made


class CallsMerge:
    """Two models mixed as packs do it."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model1": ("MODEL",), "model2": ("MODEL",)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "go"

    def go(self, model1, model2):
        merged = model1.clone()
        theirs = model2.get_key_patches("diffusion_model.")
        weight, read = theirs["diffusion_model.out.2.weight"][0]
        assert list(weight.shape) == list(read(weight).to(torch.float32).shape)
        for key in theirs:
            merged.add_patches({key: theirs[key]}, 0.75, 0.25)
        return (merged,)


class CallsParts:
    """Parts of models that packs ask for."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"vae": ("VAE",)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"

    def go(self, vae):
        import comfy.model_management
        import comfy.sd
        import comfy.utils
        import folder_paths
        from comfy_api.latest import InputImpl, Types

        latent = torch.zeros(1, 4, 8, 8)
        stage = vae.first_stage_model.to("cpu")
        decoded = stage.decode(latent)
        path = folder_paths.get_full_path("checkpoints", "tiny.safetensors")
        sd, metadata = comfy.utils.load_torch_file(path, return_metadata=True)
        model = comfy.sd.load_diffusion_model_state_dict(sd, model_options={}, metadata=metadata)
        video = InputImpl.VideoFromComponents(Types.VideoComponents(images=torch.rand(4, 32, 32, 3), frame_rate=8))
        try:
            film = video.get_stream_source().getvalue()[4:8].decode()
        except RuntimeError as error:
            film = "ftyp" if "PyAV" in str(error) else str(error)
        told = {
            "decoded": [list(decoded.shape), torch.allclose(vae.process_output(decoded.movedim(1, -1)), vae.decode(latent), atol=1e-5)],
            "encoded": list(stage.encode(decoded).shape),
            "layers": hasattr(stage, "decoder"),
            "dtype": str(comfy.model_management.intermediate_dtype()),
            "model": type(model.model).__name__,
            "changed": _error(lambda: comfy.sd.load_diffusion_model_state_dict({"a": latent})),
            "film": film,
        }
        return (json.dumps(told),)


NODE_CLASS_MAPPINGS.update(CallsPatched=CallsPatched, CallsMerge=CallsMerge, CallsParts=CallsParts)
