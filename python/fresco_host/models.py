"""Models of the engine as packs see them. What is asked of them runs there; what packs change about them is gathered here and
handed over when the model leaves the pack."""

import copy
import sys
import uuid
import weakref

from . import Unsupported, callbacks, encoders, handles, state, values
from .channel import Outgoing
from .networks import FirstStage, UpscaleModel
from .weights import LazyWeights, _kind_of_patch, _Weights


def _ask(name, arguments):
    """The engine's answer as it came, with the numbers of it."""
    call = state.call()
    out = Outgoing()
    encoder = values.Encoder(out, call)
    asked = {key: encoder.item(_plain(value), "CONDITIONING") for key, value in arguments.items()}
    return state.channel.call("run_node", {"class": name, "args": asked, "call": call.number if call is not None else 0}, out)


def plain_number(value):
    """A number of numpy, or a tensor with one number, as Python's own."""
    if isinstance(value, (str, bytes, int, float)) and type(value).__module__ != "numpy":
        return value
    if hasattr(value, "item") and getattr(value, "shape", None) == () and not isinstance(value, values.MissingTorch):
        return value.item()
    return value


def _plain(value):
    """What the engine takes in place of a parameter of a module, a tensor with gradients, or a number of numpy."""
    if type(value).__module__ == "numpy":
        return plain_number(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and (type(value) is not torch.Tensor or value.requires_grad):
        return value.detach().as_subclass(torch.Tensor)
    return value


def run_node(name, arguments):
    """Runs a built-in node in the engine and gives the values of its slots."""
    return run_shown(name, arguments)[0]


def run_shown(name, arguments):
    """The same, with what the node shows."""
    (slots, ui), segments = _ask(name, arguments)
    return values.decode(slots, segments, None), ui


def method(name, **arguments):
    """Runs a method of a model in the engine."""
    answer, segments = _ask("fresco." + name, arguments)
    return values.decode(answer, segments, None)


# MODEL

# What a pack may set, and where in the engine it belongs; all else is inside the network.
_GUIDANCE = {
    "sampler_cfg_function", "sampler_post_cfg_function", "sampler_pre_cfg_function", "disable_cfg1_optimization",
}
_INSIDE = """set_model_unet_function_wrapper set_model_denoise_mask_function set_model_patch set_model_patch_replace
set_model_attn1_patch set_model_attn2_patch set_model_attn1_replace set_model_attn2_replace
set_model_attn1_output_patch set_model_attn2_output_patch set_model_input_block_patch
set_model_input_block_patch_after_skip set_model_output_block_patch set_model_emb_patch set_model_forward_timestep_embed_patch
set_model_double_block_patch set_model_post_input_patch set_model_rope_options set_model_noise_refiner_patch
set_model_compute_dtype set_model_sampler_calc_cond_batch_function add_weight_wrapper""".split()


class ModelPatcher:
    """A model with what packs set on it. Packs also put their own torch modules into one."""

    def __init__(self, model, load_device=None, offload_device=None, size=0, weight_inplace_update=False):
        self.model = model
        self.load_device = load_device
        self.offload_device = offload_device
        self.size = size
        self.weight_inplace_update = weight_inplace_update
        self.parent = None
        self._start()

    def _start(self):
        self.model_options = {"transformer_options": {}}
        self.attachments = {}
        self.additional_models = {}
        self.callbacks = {}
        self.wrappers = {}
        self.injections = {}
        self.object_patches = {}
        self.patches = {}
        self.patches_uuid = uuid.uuid4()
        self._fresco_patched = []
        self._fresco_patches = []

    def clone(self):
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.parent = self
        options = {key: list(value) if isinstance(value, list) else value for key, value in self.model_options.items()}
        options["transformer_options"] = _copied(options.get("transformer_options", {}))
        made.model_options = options
        made.attachments = {key: _attached(value) for key, value in self.attachments.items()}
        made.additional_models = dict(self.additional_models)
        made.callbacks, made.wrappers = _copied(self.callbacks), _copied(self.wrappers)
        made.injections = {key: list(parts) for key, parts in self.injections.items()}
        made.object_patches = dict(self.object_patches)
        made.patches = {key: list(value) for key, value in self.patches.items()}
        made._fresco_patched = list(self._fresco_patched)
        made._fresco_patches = list(self._fresco_patches)
        made.__dict__.pop("_fresco_derived", None)
        for function in self.get_all_callbacks("on_clone"):
            function(self, made)
        return made

    def _root(self):
        return getattr(self, "_fresco_base", None) or id(self.__dict__.get("model"))

    def is_clone(self, other):
        return isinstance(other, ModelPatcher) and other._root() == self._root()

    def clone_has_same_weights(self, other):
        return self.is_clone(other) and self.patches_uuid == other.patches_uuid

    # Devices

    def model_size(self):
        if not self.size:
            import comfy.model_management as management

            self.size = management.module_size(self.model)
        return self.size

    def loaded_size(self):
        return self.model_size()

    def model_dtype(self):
        return getattr(self.model, "dtype", None)

    def current_loaded_device(self):
        return getattr(self.model, "device", self.load_device)

    def memory_required(self, input_shape):
        return self.model.memory_required(input_shape) if hasattr(self.model, "memory_required") else 0

    def patch_model(self, device_to=None, *args, **kwargs):
        if device_to is not None and hasattr(self.model, "to"):
            self.model.to(device_to)
        return self.model

    def unpatch_model(self, device_to=None, unpatch_weights=True):
        return self.patch_model(device_to)

    def partially_load(self, device_to, extra_memory=0, **kwargs):
        self.patch_model(device_to)
        return 0

    def partially_unload(self, device_to, memory_to_free=0, **kwargs):
        self.patch_model(device_to)
        return self.model_size()

    def detach(self, unpatch_all=True):
        return self.unpatch_model(self.offload_device)

    def cleanup(self):
        for function in self.get_all_callbacks("on_cleanup"):
            function(self)

    def lowvram_patch_counter(self):
        return 0

    # What packs set

    def set_attachments(self, key, attachment):
        self.attachments[key] = attachment

    def get_attachment(self, key):
        return self.attachments.get(key)

    def remove_attachments(self, key):
        self.attachments.pop(key, None)

    def set_additional_models(self, key, models):
        self.additional_models[key] = models

    def get_additional_models_with_key(self, key):
        return self.additional_models.get(key, [])

    def get_additional_models(self):
        return [model for models in self.additional_models.values() for model in models]

    def remove_additional_models(self, key):
        self.additional_models.pop(key, None)

    def set_model_sampler_cfg_function(self, sampler_cfg_function, disable_cfg1_optimization=False):
        import inspect

        if len(inspect.signature(sampler_cfg_function).parameters) == 3:
            # The old form, with three arguments.
            old = sampler_cfg_function

            def sampler_cfg_function(args):
                return old(args["cond"], args["uncond"], args["cond_scale"])

        self.model_options["sampler_cfg_function"] = sampler_cfg_function
        self._keep_uncond(disable_cfg1_optimization)

    def set_model_sampler_post_cfg_function(self, post_cfg_function, disable_cfg1_optimization=False):
        functions = self.model_options.get("sampler_post_cfg_function", [])
        self.model_options["sampler_post_cfg_function"] = functions + [post_cfg_function]
        self._keep_uncond(disable_cfg1_optimization)

    def set_model_sampler_pre_cfg_function(self, pre_cfg_function, disable_cfg1_optimization=False):
        functions = self.model_options.get("sampler_pre_cfg_function", [])
        self.model_options["sampler_pre_cfg_function"] = functions + [pre_cfg_function]
        self._keep_uncond(disable_cfg1_optimization)

    def disable_model_cfg1_optimization(self):
        self.model_options["disable_cfg1_optimization"] = True

    def _keep_uncond(self, wanted):
        if wanted:
            self.model_options["disable_cfg1_optimization"] = True

    def add_object_patch(self, name, obj):
        self.object_patches[name] = obj
        if name != "model_sampling":
            self._fresco_patched.append(f'add_object_patch("{name}")')

    def get_model_object(self, name):
        if name in self.object_patches:
            return self.object_patches[name]
        found = self.model
        for part in name.split("."):
            found = getattr(found, part)
        return found

    # Functions around parts of sampling, and at events: by their kind and by the key of who added them.

    def add_callback(self, call_type, callback):
        self.add_callback_with_key(call_type, None, callback)

    def add_callback_with_key(self, call_type, key, callback):
        self.callbacks.setdefault(call_type, {}).setdefault(key, []).append(callback)

    def remove_callbacks_with_key(self, call_type, key):
        self.callbacks.get(call_type, {}).pop(key, None)

    def get_callbacks(self, call_type, key):
        return self.callbacks.get(call_type, {}).get(key, [])

    def get_all_callbacks(self, call_type):
        return [function for functions in self.callbacks.get(call_type, {}).values() for function in functions]

    def add_wrapper(self, wrapper_type, wrapper):
        self.add_wrapper_with_key(wrapper_type, None, wrapper)

    def add_wrapper_with_key(self, wrapper_type, key, wrapper):
        self.wrappers.setdefault(wrapper_type, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, wrapper_type, key):
        self.wrappers.get(wrapper_type, {}).pop(key, None)

    def get_wrappers(self, wrapper_type, key):
        return self.wrappers.get(wrapper_type, {}).get(key, [])

    def get_all_wrappers(self, wrapper_type):
        return [function for functions in self.wrappers.get(wrapper_type, {}).values() for function in functions]

    def set_injections(self, key, injections):
        self.injections[key] = injections

    def remove_injections(self, key):
        self.injections.pop(key, None)

    def get_injections(self, key):
        return self.injections.get(key)

    def get_attr(self, name):
        return self.get_model_object(name)

    def to(self, *args, **kwargs):
        return self

    def add_patches(self, patches, strength_patch=1.0, strength_model=1.0):
        import comfy.lora

        return comfy.lora._patch_module(self, patches, strength_patch, strength_model)


def _copied(options):
    return {key: _copied(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value for key, value in options.items()}


def _attached(value):
    return value.on_model_patcher_clone() if hasattr(value, "on_model_patcher_clone") else value


def _inside(name):
    def function(self, *args, **kwargs):
        self._fresco_patched.append(name)

    function.__name__ = name
    return function


for _name in _INSIDE:
    setattr(ModelPatcher, _name, _inside(_name))


class Model(_Weights, ModelPatcher, handles.Handle):
    """MODEL of the engine."""

    add_patches = _Weights.add_patches

    def __init__(self, number, kind, text):
        handles.Handle.__init__(self, number, kind, text)
        self._fresco_base = number
        self.parent = None
        self.size = 0
        self._start()

    def _fresco_info(self):
        if "_fresco_facts" not in self.__dict__:
            self._fresco_facts = method("model.info", model=self)
        return self._fresco_facts

    @property
    def model(self):
        if "_fresco_model" not in self.__dict__:
            import comfy.model_base

            self._fresco_model = comfy.model_base._of_engine(self)
        return self._fresco_model

    def get_model_object(self, name):
        if name in self.object_patches:
            return self.object_patches[name]
        if name in ("model_sampling", "latent_format", "model_config"):
            return getattr(self.model, name)
        return ModelPatcher.get_model_object(self, name)

    @property
    def load_device(self):
        import comfy.model_management as management

        return management.get_torch_device()

    @property
    def offload_device(self):
        import comfy.model_management as management

        return management.unet_offload_device()

    def model_size(self):
        return self._fresco_info()["bytes"]

    def model_dtype(self):
        return values._torch().float32 if values._torch() is not None else None

    def current_loaded_device(self):
        return self.load_device

    def memory_required(self, input_shape):
        return 0

    def patch_model(self, device_to=None, *args, **kwargs):
        return self.model

    def _changes(self):
        """What differs from the engine's model, and a mark that is equal for equal changes."""
        options = self.model_options
        cfg = options.get("sampler_cfg_function")
        pre, post = options.get("sampler_pre_cfg_function") or [], options.get("sampler_post_cfg_function") or []
        keep = bool(options.get("disable_cfg1_optimization"))
        sampling = self.object_patches.get("model_sampling")
        around = self.get_all_wrappers(callbacks.AROUND)
        mark = (len(self._fresco_patches), cfg, tuple(pre), tuple(post), keep, sampling, tuple(around))
        changes = {}
        if self._fresco_patches:
            changes["patches"] = self._fresco_patches
        if cfg is not None:
            changes["cfg"] = callbacks.Guidance(cfg, self)
        if pre:
            changes["pre"] = [callbacks.Guidance(function, self) for function in pre]
        if post:
            changes["post"] = [callbacks.Guidance(function, self) for function in post]
        if around:
            changes["around"] = callbacks.Around(self)
        if keep:
            changes["keep_uncond"] = True
        if sampling is not None:
            changes["sampling"] = _sampling_of(sampling)
        return changes, mark

    def _inner(self):
        """Points inside of the network that were patched, which no engine call can replace."""
        points = list(self._fresco_patched)
        options = self.model_options
        points += [f'model_options["{key}"]' for key in options if key not in _GUIDANCE and key != "transformer_options" and options[key]]
        points += [f'add_wrapper("{kind}")' for kind in self.wrappers if kind != callbacks.AROUND and self.get_all_wrappers(kind)]
        points += [f'set_injections("{key}")' for key, parts in self.injections.items() if parts]
        inner = options.get("transformer_options") or {}
        points += [f'transformer_options["{key}"]' for key in ("patches", "patches_replace", "wrappers", "callbacks") if inner.get(key)]
        return points


def _sampling_of(sampling):
    wanted = getattr(sampling, "fresco_describe", None)
    if wanted is None:
        raise Unsupported(
            "add_object_patch(\"model_sampling\"): only objects made of the classes of comfy.model_sampling can be used by Fresco"
        )
    return wanted()


# CLIP


class Clip(_Weights, handles.Handle):
    """CLIP of the engine."""

    def __init__(self, number, kind, text):
        handles.Handle.__init__(self, number, kind, text)
        self._fresco_base = number
        self.layer_idx = None
        self.tokenizer_options = {}
        self.use_clip_schedule = False
        self.apply_hooks_to_conds = None
        self.patches = {}
        self.patches_uuid = uuid.uuid4()
        self._fresco_patches = []
        self._fresco_patched = []
        # What packs chose for the networks, by their names.
        self._fresco_stage = {}

    @property
    def patcher(self):
        return self

    def _held(self, name, make):
        """A part of this object: one for all while somebody has it. It holds this object, and not the other way round."""
        known = self.__dict__.get(name)
        part = known() if known is not None else None
        if part is None:
            part = make(self)
            self.__dict__[name] = weakref.ref(part)
        return part

    @property
    def cond_stage_model(self):
        return self._held("_fresco_stage_part", encoders.stage_of)

    @cond_stage_model.setter
    def cond_stage_model(self, value):
        self._fresco_patched.append("clip.cond_stage_model = ...")

    model = cond_stage_model

    @property
    def tokenizer(self):
        own = self.__dict__.get("_fresco_tokenizer_own")
        return own if own is not None else self._held("_fresco_tokenizer", encoders.tokenizer_of)

    @tokenizer.setter
    def tokenizer(self, value):
        self._fresco_tokenizer_own = value

    @property
    def load_device(self):
        import comfy.model_management as management

        return management.text_encoder_device()

    @property
    def offload_device(self):
        import comfy.model_management as management

        return management.text_encoder_offload_device()

    def clone(self):
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._fresco_parent = self
        made.tokenizer_options = copy.copy(self.tokenizer_options)
        made.patches = {key: list(value) for key, value in self.patches.items()}
        made._fresco_patches, made._fresco_patched = list(self._fresco_patches), list(self._fresco_patched)
        made._fresco_stage = {name: dict(options) for name, options in self._fresco_stage.items()}
        for name in ("_fresco_derived", "_fresco_stage_part", "_fresco_tokenizer"):
            made.__dict__.pop(name, None)
        return made

    def clip_layer(self, layer_idx):
        self.layer_idx = layer_idx

    def set_tokenizer_option(self, option_name, value):
        self.tokenizer_options[option_name] = value

    def get_sd(self):
        return LazyWeights(self)

    def load_model(self):
        return self

    def tokenize(self, text, return_word_ids=False, **kwargs):
        own = self.__dict__.get("_fresco_tokenizer_own")
        if own is not None:
            return own.tokenize_with_weights(text, return_word_ids, **kwargs)
        return tokens_of(self, text, return_word_ids)

    def encode_from_tokens_scheduled(self, tokens, unprojected=False, add_dict=None, show_pbar=True):
        return method("clip.encode", clip=self, tokens=_plain_tokens(tokens), extra=add_dict or {})

    def encode_from_tokens(self, tokens, return_pooled=False, return_dict=False):
        out = method("clip.encode", clip=self, tokens=_plain_tokens(tokens), plain=True)
        if return_dict:
            return out
        return (out["cond"], out.get("pooled_output")) if return_pooled else out["cond"]

    def encode(self, text):
        return self.encode_from_tokens(self.tokenize(text))

    def add_hooks_to_dict(self, pooled_dict):
        if self.apply_hooks_to_conds:
            pooled_dict["hooks"] = self.apply_hooks_to_conds
        return pooled_dict

    def _changes(self):
        changes = {}
        if self._fresco_patches:
            changes["patches"] = self._fresco_patches
        if self.layer_idx is not None:
            changes["layer"] = self.layer_idx
        if self.tokenizer_options:
            changes["options"] = dict(self.tokenizer_options)
        return changes, (len(self._fresco_patches), self.layer_idx, tuple(sorted(self.tokenizer_options.items())))

    def _inner(self):
        return self._fresco_patched


def tokens_of(clip, text, return_word_ids=False):
    """Chunks of tokens with weights, for every network that the kind of encoder has."""
    tokens = method("clip.tokenize", clip=clip, text=text)
    length = 3 if return_word_ids else 2
    found = {encoders.short(name): [[tuple(place[:length]) for place in chunk] for chunk in chunks] for name, chunks in tokens.items()}
    for part in encoders.info(clip)["parts"]:
        found.setdefault(encoders.short(part["name"]), [])
    return found


def _plain_tokens(tokens):
    return {encoders.LONG.get(name, name): [[list(place) for place in chunk] for chunk in chunks] for name, chunks in tokens.items()}


# VAE


class Vae(_Weights, handles.Handle):
    """VAE of the engine."""

    def _fresco_info(self):
        if "_fresco_facts" not in self.__dict__:
            self._fresco_facts = method("vae.info", vae=self)
        return self._fresco_facts

    latent_channels = property(lambda self: self._fresco_info()["latent_channels"])
    output_channels = property(lambda self: self._fresco_info()["channels"])
    downscale_ratio = property(lambda self: self._fresco_info()["spatial"])
    upscale_ratio = property(lambda self: self._fresco_info()["spatial"])
    latent_dim = property(lambda self: 3 if self._fresco_info()["temporal"] else 2)
    patcher = property(lambda self: self)

    @property
    def device(self):
        import comfy.model_management as management

        return management.vae_device()

    load_device = device
    output_device = property(lambda self: values._torch().device("cpu"))
    vae_dtype = property(lambda self: values._torch().float32)
    working_dtypes = property(lambda self: [values._torch().float32])

    @property
    def first_stage_model(self):
        return FirstStage(self)

    @property
    def downscale_index_formula(self):
        """How many frames, columns and rows a cell of a film's latent stands for; nothing where latents are of pictures."""
        facts = self._fresco_info()
        return (facts["temporal"], facts["spatial"], facts["spatial"]) if facts["temporal"] else None

    upscale_index_formula = downscale_index_formula

    @staticmethod
    def process_input(image):
        return image * 2.0 - 1.0

    @staticmethod
    def process_output(image):
        return ((image + 1.0) / 2.0).clamp(min=0.0, max=1.0)

    def spacial_compression_decode(self):
        return self._fresco_info()["spatial"]

    spacial_compression_encode = spacial_compression_decode

    def temporal_compression_decode(self):
        return self._fresco_info()["temporal"]

    def vae_encode_crop_pixels(self, pixels):
        ratio = self._fresco_info()["spatial"]
        height, width = (pixels.shape[1] // ratio) * ratio, (pixels.shape[2] // ratio) * ratio
        top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
        return pixels[:, top : top + height, left : left + width, :]

    def memory_used_decode(self, shape, dtype):
        return 0

    memory_used_encode = memory_used_decode

    def get_sd(self):
        return LazyWeights(self)

    def decode(self, samples, vae_options=None):
        return run_node("VAEDecode", {"vae": self, "samples": {"samples": samples}})[0]

    def decode_tiled(self, samples, tile_x=None, tile_y=None, overlap=None, tile_t=None, overlap_t=None):
        ratio = self._fresco_info()["spatial"]
        arguments = {"vae": self, "samples": {"samples": samples}, "tile_size": (tile_x or 64) * ratio}
        arguments.update(overlap=(overlap if overlap is not None else 8) * ratio, temporal_size=tile_t or 64, temporal_overlap=overlap_t or 8)
        return run_node("VAEDecodeTiled", arguments)[0]

    def encode(self, pixels):
        return run_node("VAEEncode", {"vae": self, "pixels": pixels})[0]["samples"]

    def encode_tiled(self, pixels, tile_x=None, tile_y=None, overlap=None, tile_t=None, overlap_t=None):
        arguments = {"vae": self, "pixels": pixels, "tile_size": tile_x or 512, "overlap": overlap if overlap is not None else 64}
        arguments.update(temporal_size=tile_t or 64, temporal_overlap=overlap_t or 8)
        return run_node("VAEEncodeTiled", arguments)[0]["samples"]

    def throw_exception_if_invalid(self):
        return None


# Others


class Control(handles.Handle):
    """CONTROL_NET of the engine, with the hint that a pack set on it."""

    def __init__(self, number, kind, text):
        super().__init__(number, kind, text)
        self._hint = None
        self.previous_controlnet = None
        self.strength = 1.0
        self.timestep_percent_range = (0.0, 1.0)
        self.cond_hint_original = None
        self.extra_args = {}

    def copy(self):
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._fresco_parent = self
        made.extra_args = dict(self.extra_args)
        return made

    def set_cond_hint(self, cond_hint, strength=1.0, timestep_percent_range=(0.0, 1.0), vae=None, extra_concat=()):
        self.cond_hint_original, self.strength, self.timestep_percent_range = cond_hint, strength, timestep_percent_range
        self._hint = vae
        return self

    def set_previous_controlnet(self, controlnet):
        self.previous_controlnet = controlnet
        return self

    def set_extra_arg(self, argument, value=None):
        self.extra_args[argument] = value

    def get_models(self):
        return [self]

    def cleanup(self):
        return None

    def _with_hint(self):
        """The engine's control net with the hint of this one: what the built-in node puts into a conditioning."""
        if self.extra_args:
            raise Unsupported(f"ControlNet.set_extra_arg: {', '.join(self.extra_args)} cannot be handed to Fresco yet")
        hint = self.cond_hint_original
        hint = hint.movedim(1, -1) if hasattr(hint, "movedim") else hint
        options = {} if self.previous_controlnet is None else {"control": self.previous_controlnet}
        start, end = self.timestep_percent_range
        made = run_node(
            "ControlNetApplyAdvanced",
            {
                "positive": [[None, options]], "negative": [[None, {}]], "control_net": self._fresco_parent_handle(), "image": hint,
                "strength": self.strength, "start_percent": start, "end_percent": end, "vae": self._hint,
            },
        )
        return made[0][0][1]["control"]

    def _fresco_parent_handle(self):
        plain = object.__new__(handles.Handle)
        plain.__dict__.update(_fresco_number=self._fresco_number, _fresco_kind=self._fresco_kind, _fresco_text=self._fresco_text)
        return plain


class ClipVision(handles.Handle):
    """CLIP_VISION of the engine."""

    patcher = property(lambda self: self)

    def encode_image(self, image, crop=True):
        return run_node("CLIPVisionEncode", {"clip_vision": self, "image": image, "crop": "center" if crop else "none"})[0]


class Noise(handles.Handle):
    """NOISE of the engine."""

    @property
    def seed(self):
        words = self._fresco_text.split()
        return int(words[-1]) if words and words[-1].isdigit() else 0

    def generate_noise(self, input_latent):
        import comfy.sample

        samples = input_latent["samples"]
        if self._fresco_text == "no noise":
            return values._torch().zeros(samples.shape, dtype=samples.dtype, layout=samples.layout, device="cpu")
        return comfy.sample.prepare_noise(samples, self.seed, input_latent.get("batch_index"))


class Sampler(handles.Handle):
    """SAMPLER of the engine."""

    def max_denoise(self, model_wrap, sigmas):
        return float(sigmas[0]) >= float(model_wrap.inner_model.model_sampling.sigma_max)

    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False):
        import comfy.samplers as samplers

        return samplers.run_sampler(self, model_wrap, sigmas, extra_args, callback, noise, latent_image, denoise_mask, disable_pbar)


class Guider(handles.Handle):
    """GUIDER of the engine."""

    def sample(self, noise, latent_image, sampler, sigmas, denoise_mask=None, callback=None, disable_pbar=False, seed=None):
        latent = {"samples": latent_image}
        if denoise_mask is not None:
            latent["noise_mask"] = denoise_mask
        return sample(guider=self, noise=noise, seed=seed, sampler=sampler, sigmas=sigmas, latent=latent, callback=callback)


def sample(**arguments):
    """One run in the engine; gives the samples."""
    callback = arguments.get("callback")
    arguments["callback"] = callback if callback is None else _Keep(callback)
    arguments = {name: value for name, value in arguments.items() if value is not None}
    return method("sample", **arguments)[0]["samples"]


class _Keep:
    """A function as a value: it stays here, and the engine calls it."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        self.function(*args)


CLASSES = {
    "model": Model, "clip": Clip, "vae": Vae, "control_net": Control, "clip_vision": ClipVision, "noise": Noise, "sampler": Sampler,
    "guider": Guider, "upscale_model": UpscaleModel,
}


def proxy_class(kind):
    return CLASSES.get(kind, handles.Handle)


def to_wire(handle, encoder):
    """A handle on its way to the engine, with what was changed about it here."""
    if isinstance(handle, (Model, Clip)):
        points = handle._inner()
        if points:
            raise Unsupported(
                f"{', '.join(sorted(set(points)))}: patches of a model's inside by Python do not run in Fresco (level L3b); the node "
                "changed a MODEL with them, and giving it on without would silently leave them out"
            )
        changes, mark = handle._changes()
        if changes:
            return {"$h": _derived(handle, changes, mark)}
        return {"$h": handle._fresco_base}
    if isinstance(handle, Control) and handle.cond_hint_original is not None:
        return to_wire(handle._with_hint(), encoder)
    return {"$h": handle._fresco_number}


def _derived(handle, changes, mark):
    """The number of the engine's model with these changes; made once for equal changes."""
    known = handle.__dict__.get("_fresco_derived")
    if known is not None and known[0] == mark:
        return known[1]
    # Under the number that it had: the changes are all that is put onto that one.
    plain = object.__new__(handles.Handle)
    plain.__dict__.update(_fresco_number=handle._fresco_base, _fresco_kind=handle._fresco_kind, _fresco_text=handle._fresco_text)
    name, word = ("model.derive", "model") if isinstance(handle, Model) else ("clip.derive", "clip")
    answer, _ = _ask("fresco." + name, {word: plain, **changes})
    number = answer["$h"][0]
    handles.adopt(number, handle)
    handle._fresco_derived = (mark, number)
    return number
