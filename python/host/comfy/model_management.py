"""Devices, memory and the interrupt."""

import enum
import sys
import threading

from comfy.cli_args import args
from fresco_host import state
from fresco_host.placeholders import fallback


class VRAMState(enum.Enum):
    DISABLED = 0
    NO_VRAM = 1
    LOW_VRAM = 2
    NORMAL_VRAM = 3
    HIGH_VRAM = 4
    SHARED = 5


class CPUState(enum.Enum):
    GPU = 0
    CPU = 1
    MPS = 2


class InterruptProcessingException(Exception):
    pass


class _NoOutOfMemory(MemoryError):
    """Where torch, which has its own, is not installed."""


try:
    import importlib.util

    _has_torch = importlib.util.find_spec("torch") is not None
except (ImportError, ValueError):
    _has_torch = False

vram_state = VRAMState.NORMAL_VRAM
set_vram_to = VRAMState.NORMAL_VRAM
cpu_state = CPUState.CPU if args.cpu else CPUState.GPU
total_vram = 0
total_ram = (state.hello.get("total_ram") or 0) / (1024 * 1024)
lowvram_available = True
directml_enabled = False
xpu_available = False
XFORMERS_IS_AVAILABLE = False
XFORMERS_VERSION = ""
XFORMERS_ENABLED_VAE = False
FORCE_FP32 = False
PRIORITIZE_FP16 = False
DISABLE_SMART_MEMORY = False
EXTRA_RESERVED_VRAM = 400 * 1024 * 1024
MIN_WEIGHT_MEMORY_RATIO = 0.4
WINDOWS = sys.platform == "win32"
current_loaded_models = []
interrupt_processing_mutex = threading.RLock()
interrupt_processing = False


def _torch():
    import torch

    return torch


def __getattr__(name):
    # torch is imported when somebody asks for something of it.
    if name == "OOM_EXCEPTION":
        if not _has_torch:
            return _NoOutOfMemory
        torch = _torch()
        return getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    if name == "torch_version":
        return _torch().version.__version__ if _has_torch else ""
    if name == "FLOAT8_TYPES":
        return [_torch().float8_e4m3fn, _torch().float8_e5m2] if _has_torch else []
    return _missing(name)


_missing = fallback(__name__)


# Interrupt


def interrupt_current_processing(value=True):
    if value:
        call = state.call()
        state.channel.event("interrupt", prompt=call.prompt_id if call else None)
    else:
        state.interrupted.clear()


def processing_interrupted():
    return state.interrupted.is_set()


def throw_exception_if_processing_interrupted():
    if state.interrupted.is_set():
        state.interrupted.clear()
        raise InterruptProcessingException()


# Devices


def get_torch_device():
    torch = _torch()
    if not args.cpu and state.hello.get("device", "cpu") != "cpu" and torch.cuda.is_available():
        return torch.device(state.hello["device"])
    return torch.device("cpu")


def get_torch_device_name(device):
    return str(device)


def get_total_memory(dev=None, torch_total_too=False):
    total = state.hello.get("total_ram") or 0
    dev = get_torch_device() if dev is None else dev
    if getattr(dev, "type", "cpu") == "cuda":
        total = _torch().cuda.mem_get_info(dev)[1]
    return (total, total) if torch_total_too else total


def get_free_memory(dev=None, torch_free_too=False):
    dev = get_torch_device() if dev is None else dev
    if getattr(dev, "type", "cpu") == "cuda":
        free = _torch().cuda.mem_get_info(dev)[0]
    else:
        free = _free_ram()
    return (free, free) if torch_free_too else free


def _free_ram():
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return state.hello.get("total_ram") or 0


def is_nvidia():
    return _has_torch and get_torch_device().type == "cuda"


def _no(*args, **kwargs):
    return False


is_amd = is_intel_xpu = is_ascend_npu = is_mlu = is_ixuca = is_directml_enabled = mps_mode = _no
is_device_mps = is_device_xpu = force_channels_last = supports_fp8_compute = extended_fp16_support = _no
xformers_enabled = xformers_enabled_vae = sage_attention_enabled = flash_attention_enabled = _no
pytorch_attention_flash_attention = device_supports_non_blocking = _no


def pytorch_attention_enabled():
    return True


pytorch_attention_enabled_vae = pytorch_attention_enabled


def cpu_mode():
    return cpu_state == CPUState.CPU


def mac_version():
    return None


def is_device_type(device, type):
    return getattr(device, "type", None) == type


def is_device_cpu(device):
    return is_device_type(device, "cpu")


def is_device_cuda(device):
    return is_device_type(device, "cuda")


def get_autocast_device(dev):
    return getattr(dev, "type", "cuda")


def _cpu(*args, **kwargs):
    return _torch().device("cpu")


def intermediate_dtype():
    """The numbers of pictures and latents between nodes."""
    import torch

    return torch.float32


intermediate_device = unet_offload_device = text_encoder_offload_device = vae_offload_device = _cpu


def text_encoder_device():
    return get_torch_device()


def vae_device():
    return get_torch_device()


def unet_inital_load_device(parameters, dtype):
    return _cpu()


def text_encoder_initial_device(load_device, offload_device, model_size=0):
    return offload_device


def current_stream(device):
    return None


def get_offload_stream(device):
    return None


def sync_stream(device, stream):
    return None


# Kinds of numbers


def should_use_fp16(device=None, model_params=0, prioritize_performance=True, manual_cast=False):
    return getattr(device if device is not None else get_torch_device(), "type", "cpu") == "cuda"


def should_use_bf16(device=None, model_params=0, prioritize_performance=True, manual_cast=False):
    return should_use_fp16(device) and _torch().cuda.is_bf16_supported()


def unet_dtype(device=None, model_params=0, supported_dtypes=None, weight_dtype=None):
    torch = _torch()
    supported = supported_dtypes or [torch.float16, torch.bfloat16, torch.float32]
    for kind, usable in ((torch.float16, should_use_fp16), (torch.bfloat16, should_use_bf16)):
        if kind in supported and usable(device):
            return kind
    return torch.float32


def unet_manual_cast(weight_dtype, inference_device, supported_dtypes=None):
    torch = _torch()
    if weight_dtype in (torch.float32, torch.float64):
        return None
    wanted = unet_dtype(inference_device)
    return None if weight_dtype == wanted else wanted


def text_encoder_dtype(device=None):
    torch = _torch()
    return torch.float16 if should_use_fp16(device) else torch.float32


def vae_dtype(device=None, allowed_dtypes=()):
    torch = _torch()
    for kind in allowed_dtypes:
        if kind == torch.float16 and should_use_fp16(device):
            return kind
        if kind == torch.bfloat16 and should_use_bf16(device):
            return kind
    return torch.float32


def lora_compute_dtype(device):
    return text_encoder_dtype(device)


def force_upcast_attention_dtype():
    return None


def dtype_size(dtype):
    return _torch().empty((), dtype=dtype).element_size()


def supports_dtype(device, dtype):
    return True


def supports_cast(device, dtype):
    return True


def pick_weight_dtype(dtype, fallback_dtype, device=None):
    return fallback_dtype if dtype is None else dtype


def cast_to(weight, dtype=None, device=None, non_blocking=False, copy=False, stream=None):
    return weight.to(device=device, dtype=dtype, non_blocking=non_blocking, copy=copy)


def cast_to_device(tensor, device, dtype, copy=False):
    return cast_to(tensor, dtype=dtype, device=device, copy=copy)


def maximum_vram_for_weights(device=None):
    return get_total_memory(device) * 0.88 - minimum_inference_memory()


# Memory


def extra_reserved_memory():
    return EXTRA_RESERVED_VRAM


def minimum_inference_memory():
    return (1024 * 1024 * 1024) * 0.8 + extra_reserved_memory()


def module_size(module):
    return sum(t.nelement() * t.element_size() for t in module.state_dict().values())


def soft_empty_cache(force=False):
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def load_models_gpu(models, memory_required=0, force_patch_weights=False, minimum_memory_required=None, force_full_load=False):
    from fresco_host.handles import Handle

    own = [model for model in models if not isinstance(model, Handle) and hasattr(model, "model") and hasattr(model.model, "to")]
    sizes = sum(model.model_size() for model in own if model not in current_loaded_models and hasattr(model, "model_size"))
    if own and _has_torch:
        free_memory(memory_required + sizes, getattr(own[0], "load_device", None) or get_torch_device())
    for model in models:
        # Models of the engine are loaded by it when they are used.
        if not isinstance(model, Handle) and hasattr(model, "model") and hasattr(model.model, "to"):
            model.model.to(getattr(model, "load_device", None) or get_torch_device())
            if model not in current_loaded_models:
                current_loaded_models.insert(0, model)


def load_model_gpu(model):
    return load_models_gpu([model])


def free_memory(memory_required, device, keep_loaded=()):
    """The engine makes room as far as nothing of it is in use."""
    soft_empty_cache()
    kind = getattr(device, "type", "cpu")
    if kind != "cpu" and threading.current_thread() is not state.server_thread:
        call = state.call()
        name = f"{kind}:{getattr(device, 'index', None) or 0}"
        asked = {"bytes": max(int(memory_required), 0), "device": name, "prompt": call.prompt_id if call else ""}
        state.channel.call("make_room", asked)
    return []


def _release():
    """Own models of packs go to main memory, and torch gives back what it keeps."""
    for model in list(current_loaded_models):
        if hasattr(model, "model") and hasattr(model.model, "to"):
            model.model.to(getattr(model, "offload_device", None) or "cpu")
    current_loaded_models.clear()
    soft_empty_cache()


def loaded_models(only_currently_used=False):
    return list(current_loaded_models)


def unload_all_models():
    _release()
    call = state.call()
    state.channel.event("flag", name="unload_models", value=True, call=call.number if call else 0)


def _nothing(*args, **kwargs):
    return None


cleanup_models = cleanup_models_gc = unload_model_clones = _nothing


def pin_memory(tensor):
    return False


def unpin_memory(tensor):
    return False
