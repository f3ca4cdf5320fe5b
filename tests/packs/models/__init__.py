"""Models of the host, used from Python: clones, LoRA, prompts, sampling, guidance and samplers of a pack's own."""

import comfy.sample
import comfy.samplers
import comfy.sd
import comfy.utils
import folder_paths
import latent_preview
import nodes
import numpy


def _array(value):
    return value.numpy() if hasattr(value, "numpy") else numpy.asarray(value)


class ModelsPicture:
    """A whole picture through the host's objects."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "clip": ("CLIP",), "vae": ("VAE",), "latent": ("LATENT",), "how": ("STRING",)}}

    RETURN_TYPES = ("IMAGE", "STRING")
    FUNCTION = "go"

    def go(self, model, clip, vae, latent, how):
        told = []
        words = clip.tokenize("a (red:1.5) house")
        positive = clip.encode_from_tokens_scheduled(words)
        cond, pooled = clip.encode_from_tokens(clip.tokenize(""), return_pooled=True)
        negative = [[cond, {"pooled_output": pooled}]]
        if how == "ksampler":
            out = nodes.common_ksampler(model, 5, 2, 3.0, "euler", "normal", positive, negative, latent)[0]
            samples = out["samples"]
        elif how == "custom":
            sigmas = comfy.samplers.KSampler(model, 2, None, "euler", "normal").sigmas
            sampler = comfy.samplers.sampler_object("euler")
            samples = comfy.sample.sample_custom(
                model, None, 3.0, sampler, sigmas, positive, negative, latent["samples"], seed=5,
                callback=lambda step, x0, x, total: told.append([step, total, list(x0.shape)]),
            )
        else:
            preview = latent_preview.prepare_callback(model, 2)
            samples = comfy.sample.sample(
                model, None, 2, 3.0, "euler", "normal", positive, negative, latent["samples"], seed=5, callback=preview
            )
        tokens = {name: [len(chunk) for chunk in chunks] for name, chunks in words.items()}
        weights = sorted({place[1] for chunk in words["l"] for place in chunk})
        facts = [
            type(model.model).__name__, model.model.latent_format.latent_channels, vae.latent_channels, vae.downscale_ratio,
            model.get_model_object("model_sampling").sigma_data, hasattr(model.model, "diffusion_model"), model.is_clone(model.clone()),
        ]
        return (vae.decode(samples), repr((tokens, weights, facts, told)))


class ModelsLora:
    """A LoRA from its file, or as tensors by add_patches."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "clip": ("CLIP",), "how": ("STRING",)}}

    RETURN_TYPES = ("MODEL", "CLIP", "STRING")
    FUNCTION = "go"

    def go(self, model, clip, how):
        if how == "file":
            path = folder_paths.get_full_path("loras", "small.safetensors")
            content = comfy.utils.FileContent(x=None)
            content.fresco_path, content.fresco_size = path, 1
            return (*comfy.sd.load_lora_for_models(model, clip, content, 0.8, 0.8), "")
        made = model.clone()
        key = "diffusion_model.out.2.weight"
        shape = dict(made.model_state_dict("diffusion_model.out.")) and made._keys()[key]
        change = numpy.full(shape, 0.01, dtype=numpy.float32)
        added = made.add_patches({key: ("diff", (change,)), "no.such.key": ("diff", (change,))}, 1.0)
        return (made, clip, repr(sorted(added)))


class ModelsGuidance:
    """Guidance of a pack's own: a cfg function, one before and one after."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "how": ("STRING",)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "go"

    def go(self, model, how):
        model = model.clone()
        if how == "cfg":

            def guide(args):
                cond, uncond = _array(args["cond"]), _array(args["uncond"])
                return uncond + (cond - uncond) * args["cond_scale"]

            model.set_model_sampler_cfg_function(guide)
        elif how == "post":
            model.set_model_sampler_post_cfg_function(lambda args: _array(args["denoised"]) * 0.5)
        elif how == "pre":
            model.set_model_sampler_pre_cfg_function(lambda args: [_array(part) for part in args["conds_out"]])
        elif how == "fails":

            def fails(args):
                raise ValueError("this guidance fails")

            model.set_model_sampler_cfg_function(fails)
        elif how == "sampling":
            import comfy.model_sampling

            class Own(comfy.model_sampling.ModelSamplingDiscrete, comfy.model_sampling.V_PREDICTION):
                pass

            model.add_object_patch("model_sampling", Own())
        elif how == "loops":

            def loops(args):
                while True:
                    pass

            model.set_model_sampler_cfg_function(loops)
        else:
            model.set_model_attn2_patch(lambda q, k, v, options: (q, k, v))
        return (model,)


def sample_euler_of_a_pack(model, x, sigmas, extra_args=None, callback=None, disable=None):
    levels, x = _array(sigmas).tolist(), _array(x)
    # What samplers of packs look at in the model that they are given.
    base = model.inner_model.inner_model
    assert str(base.device) == "cpu" and not hasattr(base.diffusion_model, "marked_by_a_pack")
    assert model.inner_model.model_patcher.model.diffusion_model._get_name()
    for i in range(len(levels) - 1):
        denoised = _array(model(x, levels[i]))
        d = (x - denoised) / numpy.float32(levels[i])
        if callback is not None:
            callback({"x": x, "i": i, "sigma": levels[i], "sigma_hat": levels[i], "denoised": denoised})
        x = (x + d * numpy.float32(levels[i + 1] - levels[i])).astype(numpy.float32)
    return x


class ModelsExpand:
    """Hands a model on as a literal of the nodes that it makes."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "go"

    def go(self, model):
        from comfy_execution.graph_utils import GraphBuilder

        graph = GraphBuilder()
        inner = graph.node("ModelsGuidance", model=model, how="pre")
        return {"result": (inner.out(0),), "expand": graph.finalize()}


class ModelsSampler:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    RETURN_TYPES = ("SAMPLER",)
    FUNCTION = "go"

    def go(self):
        return (comfy.samplers.KSAMPLER(sample_euler_of_a_pack),)


class OwnNoise:
    def __init__(self, seed):
        self.seed = seed

    def generate_noise(self, latent):
        return numpy.zeros(latent["samples"].shape, dtype=numpy.float32)


class ModelsParts:
    """Noise and guider of a pack's own."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "positive": ("CONDITIONING",), "negative": ("CONDITIONING",)}}

    RETURN_TYPES = ("NOISE", "GUIDER")
    FUNCTION = "go"

    def go(self, model, positive, negative):
        guider = comfy.samplers.CFGGuider(model)
        guider.set_conds(positive, negative)
        guider.set_cfg(3.0)
        return (OwnNoise(3), guider)


class OwnGuider(comfy.samplers.CFGGuider):
    """A guider that joins predictions itself."""

    def __init__(self, model, how):
        super().__init__(model)
        self.how = how

    def set_own(self, positive, negative):
        self.inner_set_conds({"negative": negative, "towards": positive, "positive": positive})

    def predict_noise(self, x, timestep, model_options={}, seed=None):
        if self.how == "fails":
            raise ValueError("this guider fails")
        if self.how == "super":
            return super().predict_noise(x, timestep, model_options, seed)
        conds = [self.conds["towards"], self.conds.get("negative"), None]
        towards, away, none = map(_array, comfy.samplers.calc_cond_batch(self.inner_model, conds, x, timestep, model_options))
        assert not none.any() and seed == 5
        return away + (towards - away) * numpy.float32(self.cfg)


class LoopingGuider(comfy.samplers.CFGGuider):
    """A guider that does something around the steps."""

    def __init__(self, model, how):
        super().__init__(model)
        self.how = how
        self.seen = []

    def sample(self, noise, latent_image, sampler, sigmas, *args, **kwargs):
        self.seen.append("sample")
        if self.how == "fails":
            raise ValueError("this loop fails")
        if self.how == "shape":
            return numpy.zeros((1, 4, 2, 2), numpy.float32)
        if self.how == "nothing":
            return None
        return super().sample(noise, latent_image, sampler, sigmas, *args, **kwargs)

    def outer_sample(self, noise, latent_image, sampler, sigmas, *args, **kwargs):
        self.seen.append("outer")
        if self.how == "twice":
            # Steps to the middle, and on from there without more noise.
            sigmas = _array(sigmas)
            half = len(sigmas) // 2
            made = super().outer_sample(noise, latent_image, sampler, sigmas[: half + 1], *args, **kwargs)
            none = numpy.zeros_like(_array(noise))
            return super().outer_sample(none, made, sampler, sigmas[half:], *args, **kwargs)
        return super().outer_sample(noise, latent_image, sampler, sigmas, *args, **kwargs)

    def inner_sample(self, noise, latent_image, device, sampler, sigmas, denoise_mask, callback, disable_pbar, seed):
        self.seen.append("inner")
        steps = []
        told = lambda step, denoised, x, total: steps.append((step, total))  # noqa: E731
        if self.how == "sampler":
            extra = {"model_options": self.model_options, "seed": seed}
            made = sampler.sample(self, sigmas, extra, told, noise, latent_image, denoise_mask, disable_pbar)
            made = self.inner_model.process_latent_out(made)
        else:
            made = super().inner_sample(noise, latent_image, device, sampler, sigmas, denoise_mask, told, disable_pbar, seed)
        assert len(steps) == len(_array(sigmas)) - 1 and self.seen[:3] == ["sample", "outer", "inner"], (steps, self.seen)
        return made


class ModelsLoopingGuider:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "positive": ("CONDITIONING",), "negative": ("CONDITIONING",), "how": ("STRING",)}}

    RETURN_TYPES = ("GUIDER",)
    FUNCTION = "go"

    def go(self, model, positive, negative, how):
        guider = LoopingGuider(model, how)
        guider.set_conds(positive, negative)
        guider.set_cfg(3.0)
        return (guider,)


class ModelsOwnGuider:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "positive": ("CONDITIONING",), "negative": ("CONDITIONING",), "how": ("STRING",)}}

    RETURN_TYPES = ("GUIDER",)
    FUNCTION = "go"

    def go(self, model, positive, negative, how):
        guider = OwnGuider(model, how)
        guider.set_own(positive, negative)
        guider.set_cfg(3.0)
        return (guider,)


class ModelsEven:
    """A model that is sampled with steps of noise of another shape."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "shape": ("STRING",), "first": ("FLOAT",), "last": ("FLOAT",)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "go"

    def go(self, model, shape, first, last):
        import comfy.model_base

        class Config:
            sampling_settings = {"beta_schedule": shape, "linear_start": first, "linear_end": last}

        model = model.clone()
        model.add_object_patch("model_sampling", comfy.model_base.model_sampling(Config, comfy.model_base.ModelType.EPS))
        return (model,)


class ModelsLevels:
    """The noise levels of a model as Fresco has them, and its family."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}

    RETURN_TYPES = ()
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, model):
        levels = model.model.model_sampling._list
        return {"ui": {"levels": [levels[0], levels[500], levels[999]], "family": [type(model.model.model_config).__name__]}}


class ModelsUpscale:
    """A picture made larger by a model from the content of its file."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",), "name": ("STRING",)}}

    RETURN_TYPES = ("IMAGE", "INT")
    FUNCTION = "go"

    def go(self, image, name):
        from comfy_extras.chainner_models import model_loading

        weights = comfy.utils.load_torch_file(folder_paths.get_full_path("upscale_models", name), safe_load=True)
        model = model_loading.load_state_dict(weights).eval()
        model.to("cpu")
        return (model(image.movedim(-1, -3)).movedim(-3, -1), model.scale)


class ModelsHooks:
    """A LoRA file as a hook on a conditioning, from half of the steps on."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "clip": ("CLIP",), "cond": ("CONDITIONING",)}, "optional": {"more": ("HOOKS",)}}

    RETURN_TYPES = ("CONDITIONING", "HOOKS")
    FUNCTION = "go"

    def go(self, model, clip, cond, more=None):
        import comfy.hooks as hooks

        file = comfy.utils.load_torch_file(folder_paths.get_full_path("loras", "small.safetensors"))
        _, _, group = hooks.load_hook_lora_for_models(model, clip, file, 0.8, 0.0)
        keyframes = hooks.HookKeyframeGroup()
        keyframes.add(hooks.HookKeyframe(strength=0.5, start_percent=0.0))
        keyframes.add(hooks.HookKeyframe(strength=1.0, start_percent=0.5))
        group.set_keyframes_on_hooks(keyframes)
        group = hooks.HookGroup.combine_all_hooks([group, more])
        (made,) = hooks.set_conds_props([cond], 1.0, "default", hooks=group)
        return (made, group)


class ModelsHostSampler:
    """A sampler of the host: itself, and inside of a function of the pack."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"name": ("STRING",), "how": ("STRING",)}}

    RETURN_TYPES = ("SAMPLER",)
    FUNCTION = "go"

    def go(self, name, how):
        function = getattr(comfy.k_diffusion.sampling, f"sample_{name}")
        if how == "itself":
            return (comfy.samplers.KSAMPLER(function),)
        if how == "options":
            return (comfy.samplers.ksampler(name, {"s_noise": 1.0}),)
        return (comfy.samplers.KSAMPLER(lambda model, x, sigmas, **more: function(model, x, sigmas, **more)),)


# A sampler and a schedule of the pack's own in the lists of the host.
import comfy.k_diffusion.sampling  # noqa: E402

comfy.k_diffusion.sampling.sample_euler_of_a_pack = sample_euler_of_a_pack
comfy.samplers.KSampler.SAMPLERS.append("euler_of_a_pack")
comfy.samplers.SCHEDULER_HANDLERS["levels_of_a_pack"] = comfy.samplers.SchedulerHandler(comfy.samplers.normal_scheduler)
comfy.samplers.SCHEDULER_NAMES.append("levels_of_a_pack")

NODE_CLASS_MAPPINGS = {
    cls.__name__: cls
    for cls in (
        ModelsPicture, ModelsLora, ModelsGuidance, ModelsSampler, ModelsParts, ModelsLoopingGuider, ModelsOwnGuider, ModelsExpand,
        ModelsHooks, ModelsHostSampler, ModelsEven, ModelsLevels, ModelsUpscale,
    )
}
