"""Names under which packs hook into models. Fresco calls those that see latents only; see `docs/packs.md`."""

from fresco_host.placeholders import fallback


class CallbacksMP:
    ON_CLONE = "on_clone"
    ON_LOAD = "on_load_after"
    ON_DETACH = "on_detach_after"
    ON_CLEANUP = "on_cleanup"
    ON_PRE_RUN = "on_pre_run"
    ON_PREPARE_STATE = "on_prepare_state"
    ON_APPLY_HOOKS = "on_apply_hooks"
    ON_REGISTER_ALL_HOOK_PATCHES = "on_register_all_hook_patches"
    ON_INJECT_MODEL = "on_inject_model"
    ON_EJECT_MODEL = "on_eject_model"


class WrappersMP:
    OUTER_SAMPLE = "outer_sample"
    PREPARE_SAMPLING = "prepare_sampling"
    SAMPLER_SAMPLE = "sampler_sample"
    PREDICT_NOISE = "predict_noise"
    CALC_COND_BATCH = "calc_cond_batch"
    APPLY_MODEL = "apply_model"
    DIFFUSION_MODEL = "diffusion_model"


class PatcherInjection:
    def __init__(self, inject, eject):
        self.inject = inject
        self.eject = eject


def _add(kind, call_type, key, function, options, is_model_options):
    inner = options.setdefault("transformer_options", {}) if is_model_options else options
    inner.setdefault(kind, {}).setdefault(call_type, {}).setdefault(key, []).append(function)


def add_callback(call_type, callback, transformer_options, is_model_options=False):
    _add("callbacks", call_type, None, callback, transformer_options, is_model_options)


def add_callback_with_key(call_type, key, callback, transformer_options, is_model_options=False):
    _add("callbacks", call_type, key, callback, transformer_options, is_model_options)


def add_wrapper(wrapper_type, wrapper, transformer_options, is_model_options=False):
    _add("wrappers", wrapper_type, None, wrapper, transformer_options, is_model_options)


def add_wrapper_with_key(wrapper_type, key, wrapper, transformer_options, is_model_options=False):
    _add("wrappers", wrapper_type, key, wrapper, transformer_options, is_model_options)


def _all(kind, call_type, options, is_model_options):
    inner = options.get("transformer_options", {}) if is_model_options else options
    return [function for functions in inner.get(kind, {}).get(call_type, {}).values() for function in functions]


def get_all_callbacks(call_type, transformer_options, is_model_options=False):
    return _all("callbacks", call_type, transformer_options, is_model_options)


def get_all_wrappers(wrapper_type, transformer_options, is_model_options=False):
    return _all("wrappers", wrapper_type, transformer_options, is_model_options)


class WrapperExecutor:
    """Calls a function through the functions around it."""

    def __init__(self, original, class_obj, wrappers, idx):
        self.original, self.class_obj, self.wrappers, self.idx = original, class_obj, list(wrappers), idx
        self.is_last = idx == len(self.wrappers)

    def __call__(self, *args, **kwargs):
        inner = WrapperExecutor(self.original, self.class_obj, self.wrappers, self.idx + 1)
        return inner.execute(*args, **kwargs)

    def execute(self, *args, **kwargs):
        if self.is_last:
            return self.original(*args, **kwargs)
        return self.wrappers[self.idx](self, *args, **kwargs)

    @classmethod
    def new_executor(cls, original, wrappers, idx=0):
        return cls(original, None, wrappers, idx)

    @classmethod
    def new_class_executor(cls, original, class_obj, wrappers, idx=0):
        return cls(original, class_obj, wrappers, idx)


def copy_nested_dicts(input_dict):
    from fresco_host.models import _copied

    return _copied(input_dict)


def merge_nested_dicts(dict1, dict2, copy_dict1=True):
    merged = copy_nested_dicts(dict1) if copy_dict1 else dict1
    for key, value in dict2.items():
        if isinstance(value, dict):
            merged[key] = merge_nested_dicts(merged.get(key, {}), value)
        elif isinstance(value, list):
            merged[key] = merged.get(key, []) + value
        else:
            merged[key] = value
    return merged


__getattr__ = fallback(__name__)
