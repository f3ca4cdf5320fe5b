"""Hooks: changes of weights that hold for some conditionings, and for some of the steps.

Fresco samples with hooks itself. A group of hooks that is made here becomes one of Fresco's when it leaves Python, if all of its
hooks are weights of a file; hooks with functions of Python stay objects of Python.
"""

import enum
import math
import os

from fresco_host import handles, models
from fresco_host.placeholders import fallback
from node_helpers import conditioning_set_values


class EnumHookMode(enum.Enum):
    MinVram = "minvram"
    MaxSpeed = "maxspeed"


class EnumHookType(enum.Enum):
    Weight = "weight"
    ObjectPatch = "object_patch"
    AdditionalModels = "add_models"
    TransformerOptions = "transformer_options"
    Injections = "add_injections"


class EnumWeightTarget(enum.Enum):
    Model = "model"
    Clip = "clip"


class EnumHookScope(enum.Enum):
    AllConditioning = "all_conditioning"
    HookedOnly = "hooked_only"


class _HookRef:
    """Clones of a hook share this: by it they are the same hook."""


def default_should_register(hook, model, model_options, target_dict, registered):
    return True


def create_target_dict(target=None, **kwargs):
    made = dict(kwargs)
    if target is not None:
        made["target"] = target
    return made


# Keyframes


class HookKeyframe:
    """How strong a hook is from a part of the steps on."""

    def __init__(self, strength, start_percent=0.0, guarantee_steps=1):
        self.strength = strength
        self.start_percent = float(start_percent)
        self.start_t = 999999999.9
        self.guarantee_steps = guarantee_steps

    def get_effective_guarantee_steps(self, max_sigma):
        # One that began before the steps that are sampled guarantees none.
        return 0 if self.start_percent <= 0.0 and self.start_t > max_sigma else self.guarantee_steps

    def clone(self):
        made = HookKeyframe(self.strength, self.start_percent, self.guarantee_steps)
        made.start_t = self.start_t
        return made


class HookKeyframeGroup:
    def __init__(self):
        self.keyframes = []
        self.reset()

    @property
    def strength(self):
        return 1.0 if self._current_keyframe is None else self._current_keyframe.strength

    def reset(self):
        self._current_keyframe = None
        self._current_used_steps = 0
        self._current_index = 0
        self._current_strength = None
        self._curr_t = -1.0
        self._set_first_as_current()

    def _set_first_as_current(self):
        self._current_keyframe = self.keyframes[0] if self.keyframes else None

    def add(self, keyframe):
        # Those of one start keep their order.
        self.keyframes.append(keyframe)
        self.keyframes = get_sorted_list_via_attr(self.keyframes, "start_percent")
        self._set_first_as_current()

    def has_index(self, index):
        return 0 <= index < len(self.keyframes)

    def is_empty(self):
        return not self.keyframes

    def clone(self):
        made = HookKeyframeGroup()
        made.keyframes = list(self.keyframes)
        made._set_first_as_current()
        return made

    def initialize_timesteps(self, model):
        for keyframe in self.keyframes:
            keyframe.start_t = float(model.model_sampling.percent_to_sigma(keyframe.start_percent))

    def prepare_current_keyframe(self, curr_t, transformer_options):
        """Goes on to the keyframe of a noise level, and says whether the strength changed by that."""
        if not self.keyframes or curr_t == self._curr_t:
            return False
        sigmas = transformer_options.get("sample_sigmas")
        most = float(max(sigmas)) if sigmas is not None and len(sigmas) else 999999999.9
        index, strength = self._current_index, self._current_strength
        if self._current_used_steps >= self._current_keyframe.get_effective_guarantee_steps(most):
            for place in range(self._current_index + 1, len(self.keyframes)):
                following = self.keyframes[place]
                if following.start_t < curr_t:
                    break
                self._current_index, self._current_keyframe = place, following
                self._current_strength = following.strength
                self._current_used_steps = 0
                if following.get_effective_guarantee_steps(most) > 0:
                    break
        self._current_used_steps += 1
        self._curr_t = curr_t
        return index != self._current_index and strength != self._current_strength

    def fresco_handle(self):
        """The same as an object of Fresco."""
        made = None
        for keyframe in self.keyframes:
            given = {"strength_mult": float(keyframe.strength), "start_percent": float(keyframe.start_percent)}
            if made is not None:
                given["prev_hook_kf"] = made
            made = models.run_node("CreateHookKeyframe", given)[0]
        return made


class InterpolationMethod:
    LINEAR = "linear"
    EASE_IN = "ease_in"
    EASE_OUT = "ease_out"
    EASE_IN_OUT = "ease_in_out"
    _LIST = [LINEAR, EASE_IN, EASE_OUT, EASE_IN_OUT]

    @classmethod
    def get_weights(cls, num_from, num_to, length, method, reverse=False):
        curves = {
            cls.LINEAR: lambda x: x, cls.EASE_IN: lambda x: x**2, cls.EASE_OUT: lambda x: 1 - (1 - x) ** 2,
            cls.EASE_IN_OUT: lambda x: (1 - math.cos(math.pi * x)) / 2,
        }
        if method not in curves:
            raise ValueError(f"Unrecognized interpolation method '{method}'; there are {', '.join(cls._LIST)}")
        places = [i / (length - 1) if length > 1 else 0.0 for i in range(length)]
        weights = [num_from + (num_to - num_from) * curves[method](place) for place in places]
        return weights[::-1] if reverse else weights


def get_sorted_list_via_attr(objects, attr):
    """In the order of an attribute; what has the same value keeps its order."""
    return sorted(objects, key=lambda each: getattr(each, attr))


# Hooks


class Hook:
    def __init__(
        self, hook_type=None, hook_ref=None, hook_id=None, hook_keyframe=None, hook_scope=EnumHookScope.AllConditioning
    ):
        self.hook_type = hook_type
        self.hook_ref = hook_ref if hook_ref else _HookRef()
        self.hook_id = hook_id
        self.hook_keyframe = hook_keyframe if hook_keyframe else HookKeyframeGroup()
        self.hook_scope = hook_scope
        self.custom_should_register = default_should_register

    @property
    def strength(self):
        return self.hook_keyframe.strength

    def initialize_timesteps(self, model):
        self.reset()
        self.hook_keyframe.initialize_timesteps(model)

    def reset(self):
        self.hook_keyframe.reset()

    def clone(self):
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def should_register(self, model, model_options, target_dict, registered):
        return self.custom_should_register(self, model, model_options, target_dict, registered)

    def add_hook_patches(self, model, model_options, target_dict, registered):
        raise NotImplementedError("add_hook_patches should be defined for Hook subclasses")

    def on_apply(self, model, transformer_options):
        pass

    def on_unapply(self, model, transformer_options):
        pass

    def __eq__(self, other):
        return type(other) is type(self) and self.hook_ref is other.hook_ref

    def __hash__(self):
        return hash(self.hook_ref)

    def fresco_handle(self):
        """The same as an object of Fresco, or None where it has a function of Python."""
        return None


class WeightHook(Hook):
    """Weights that are added, each with a strength for the model and one for the text encoder."""

    def __init__(self, strength_model=1.0, strength_clip=1.0):
        super().__init__(hook_type=EnumHookType.Weight, hook_scope=EnumHookScope.HookedOnly)
        self.weights = None
        self.weights_clip = None
        self.need_weight_init = True
        self._strength_model = strength_model
        self._strength_clip = strength_clip

    @property
    def strength_model(self):
        return self._strength_model * self.strength

    @property
    def strength_clip(self):
        return self._strength_clip * self.strength

    def fresco_handle(self):
        given = {"strength_model": float(self._strength_model), "strength_clip": float(self._strength_clip)}
        path = getattr(self.weights, "fresco_path", None)
        name = None if path is None or len(self.weights) != self.weights.fresco_size else _listed(path)
        if name is None:
            # Weights that were made or changed in Python.
            return None
        return models.run_node("CreateHookLora", {"lora_name": name, **given})[0]


def _listed(path):
    """The name of a LoRA file in its folder; None for a file somewhere else."""
    import folder_paths

    for folder in folder_paths.get_folder_paths("loras"):
        inside = os.path.relpath(path, os.path.abspath(folder))
        if not inside.startswith(".."):
            return inside
    return None


class ObjectPatchHook(Hook):
    def __init__(self, object_patches=None, hook_scope=EnumHookScope.AllConditioning):
        super().__init__(hook_type=EnumHookType.ObjectPatch, hook_scope=hook_scope)
        self.object_patches = object_patches


class AdditionalModelsHook(Hook):
    def __init__(self, models=None, key=None):
        super().__init__(hook_type=EnumHookType.AdditionalModels)
        self.models = models
        self.key = key


class TransformerOptionsHook(Hook):
    def __init__(self, transformers_dict=None, hook_scope=EnumHookScope.AllConditioning):
        super().__init__(hook_type=EnumHookType.TransformerOptions, hook_scope=hook_scope)
        self.transformers_dict = transformers_dict
        self._skip_adding = False


WrapperHook = TransformerOptionsHook


class InjectionsHook(Hook):
    def __init__(self, key=None, injections=None, hook_scope=EnumHookScope.AllConditioning):
        super().__init__(hook_type=EnumHookType.Injections, hook_scope=hook_scope)
        self.key = key
        self.injections = injections


class _EngineHook(Hook):
    """Hooks that Fresco made, as one."""

    def __init__(self, handle):
        super().__init__(hook_type=EnumHookType.Weight, hook_scope=EnumHookScope.HookedOnly)
        # The same object of Fresco is the same hook.
        self.hook_ref = self.handle = handle

    def fresco_handle(self):
        return self.handle


# Groups


def _group(value):
    if value is None or isinstance(value, HookGroup):
        return value
    made = HookGroup()
    made.add(_EngineHook(value))
    return made


class HookGroup:
    def __init__(self):
        self.hooks = []
        self._hook_dict = {}

    def __len__(self):
        return len(self.hooks)

    def __repr__(self):
        kinds = ", ".join(type(hook).__name__ for hook in self.hooks) or "none"
        return f"<hooks of Python ({kinds}); Fresco samples with hooks whose weights are a LoRA file of its folders>"

    def add(self, hook):
        if hook not in self.hooks:
            self.hooks.append(hook)
            self._hook_dict.setdefault(hook.hook_type, []).append(hook)

    def remove(self, hook):
        if hook in self.hooks:
            self.hooks.remove(hook)
            self._hook_dict[hook.hook_type].remove(hook)

    def get_type(self, hook_type):
        return self._hook_dict.get(hook_type, [])

    def contains(self, hook):
        return hook in self.hooks

    def is_subset_of(self, other):
        return set(self.hooks) <= set(_group(other).hooks)

    def new_with_common_hooks(self, other):
        made = HookGroup()
        for hook in self.hooks:
            if _group(other).contains(hook):
                made.add(hook.clone())
        return made

    def clone(self):
        made = HookGroup()
        for hook in self.hooks:
            made.add(hook.clone())
        return made

    def clone_and_combine(self, other):
        made = self.clone()
        for hook in [] if other is None else _group(other).hooks:
            made.add(hook.clone())
        return made

    def set_keyframes_on_hooks(self, hook_kf):
        hook_kf = HookKeyframeGroup() if hook_kf is None else hook_kf.clone() if hasattr(hook_kf, "clone") else hook_kf
        for hook in self.hooks:
            hook.hook_keyframe = hook_kf

    def get_hooks_for_clip_schedule(self):
        """The ranges of the steps in which the same keyframes hold: [(start, end), [(hook, keyframe), ...]]."""
        kept = {hook: list(hook.hook_keyframe.keyframes) for hook in self.get_type(EnumHookType.Weight)}
        kept = {hook: keyframes for hook, keyframes in kept.items() if keyframes}
        starts = sorted({0.0, *(keyframe.start_percent for keyframes in kept.values() for keyframe in keyframes)})
        ranges = []
        for start, end in zip(starts, [*starts[1:], 1.0]):
            if start >= 1.0:
                continue
            here = []
            for hook, keyframes in kept.items():
                begun = [keyframe for keyframe in keyframes if keyframe.start_percent <= start]
                here.append((hook, begun[-1] if begun else keyframes[0]))
            ranges.append([(start, end), here])
        return ranges

    def reset(self):
        for hook in self.hooks:
            hook.reset()

    @staticmethod
    def combine_all_hooks(hooks_list, require_count=0):
        """One group of all. None where there are fewer than two and fewer than required."""
        actual = [_group(hooks) for hooks in hooks_list if hooks is not None]
        if len(actual) < require_count:
            raise Exception(f"Need at least {require_count} hooks to combine, but only had {len(actual)}.")
        if not actual:
            return None
        if len(actual) == 1:
            return actual[0]
        made = actual[0].clone()
        for each in actual[1:]:
            made = made.clone_and_combine(each)
        return made

    def fresco_handle(self):
        """The same as an object of Fresco, or None where a hook has a function of Python."""
        whole = None
        for hook in self.hooks:
            made = hook.fresco_handle()
            if made is None:
                return None
            keyframes = hook.hook_keyframe
            if not isinstance(keyframes, HookKeyframeGroup):
                made = models.run_node("SetHookKeyframes", {"hooks": made, "hook_kf": keyframes})[0]
            elif not keyframes.is_empty():
                made = models.run_node("SetHookKeyframes", {"hooks": made, "hook_kf": keyframes.fresco_handle()})[0]
            whole = made if whole is None else models.run_node("CombineHooks2", {"hooks_A": whole, "hooks_B": made})[0]
        return whole


class _EngineHooks(handles.Handle):
    """A group of hooks of Fresco, which packs use like one of theirs."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(_group(self), name)

    def __len__(self):
        return 1


models.CLASSES.setdefault("hooks", _EngineHooks)


def create_transformer_options_from_hooks(model, hooks, transformer_options={}):
    """The options that hooks add to what a network is called with."""
    import comfy.patcher_extension

    made = dict(transformer_options)
    for hook in [] if hooks is None else _group(hooks).get_type(EnumHookType.TransformerOptions):
        made = comfy.patcher_extension.merge_nested_dicts(made, hook.transformers_dict or {})
    return made


def create_hook_lora(lora, strength_model, strength_clip):
    group = HookGroup()
    hook = WeightHook(strength_model=strength_model, strength_clip=strength_clip)
    hook.weights = lora
    group.add(hook)
    return group


def create_hook_model_as_lora(weights_model, weights_clip, strength_model, strength_clip):
    group = HookGroup()
    hook = WeightHook(strength_model=strength_model, strength_clip=strength_clip)
    hook.weights, hook.weights_clip = weights_model, weights_clip
    group.add(hook)
    return group


def get_patch_weights_from_model(model, discard_model_sampling=True):
    """All weights of a model, as patches that put them in the place of others."""
    if model is None:
        return None
    weights = model.model_state_dict()
    return {
        key: ("model_as_lora", (value,))
        for key, value in weights.items()
        if not (discard_model_sampling and key.startswith("model_sampling."))
    }


def load_hook_lora_for_models(model, clip, lora, strength_model, strength_clip):
    """Copies of both, and the hooks, which are given on with conditionings."""
    copies = [None if each is None else each.clone() for each in (model, clip)]
    return (*copies, create_hook_lora(lora, strength_model, strength_clip))


# Conditionings


def set_hooks_for_conditioning(cond, hooks, append_hooks=True, cache=None):
    if hooks is None:
        return cond
    made = []
    for entry in cond:
        options = entry[1].copy()
        before = options.get("hooks") if append_hooks else None
        options["hooks"] = hooks if before is None else _group(before).clone_and_combine(hooks)
        made.append([entry[0], options])
    return made


def set_mask_for_conditioning(cond, mask, set_cond_area, strength):
    if mask is None:
        return cond
    if len(mask.shape) < 3:
        mask = mask.unsqueeze(0)
    given = {"mask": mask, "set_area_to_bounds": set_cond_area != "default", "mask_strength": strength}
    return conditioning_set_values(cond, given)


def set_timesteps_for_conditioning(cond, timestep_range):
    if timestep_range is None:
        return cond
    return conditioning_set_values(cond, {"start_percent": timestep_range[0], "end_percent": timestep_range[1]})


def combine_conditioning(conds):
    return [entry for cond in conds for entry in cond]


def combine_with_new_conds(conds, new_conds):
    return [combine_conditioning([cond, new]) for cond, new in zip(conds, new_conds)]


def set_conds_props(conds, strength, set_cond_area, mask=None, hooks=None, timesteps_range=None, append_hooks=True):
    made = []
    for cond in conds:
        cond = set_hooks_for_conditioning(cond, hooks, append_hooks=append_hooks)
        cond = set_mask_for_conditioning(cond, mask, set_cond_area, strength)
        made.append(set_timesteps_for_conditioning(cond, timesteps_range))
    return made


def set_conds_props_and_combine(
    conds, new_conds, strength=1.0, set_cond_area="default", mask=None, hooks=None, timesteps_range=None, append_hooks=True
):
    changed = set_conds_props(new_conds, strength, set_cond_area, mask, hooks, timesteps_range, append_hooks)
    return combine_with_new_conds(conds, changed)


def set_default_conds_and_combine(conds, new_conds, hooks=None, append_hooks=True):
    """The new ones fill what the others leave open."""
    changed = [
        conditioning_set_values(set_hooks_for_conditioning(cond, hooks, append_hooks=append_hooks), {"default": True})
        for cond in new_conds
    ]
    return combine_with_new_conds(conds, changed)


__getattr__ = fallback(__name__)
