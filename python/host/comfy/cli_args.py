"""The program's flags, as the engine was started with."""

import argparse
import enum

from fresco_host import state

parser = argparse.ArgumentParser()


class LatentPreviewMethod(enum.Enum):
    NoPreviews = "none"
    Auto = "auto"
    Latent2RGB = "latent2rgb"
    TAESD = "taesd"

    @classmethod
    def from_string(cls, value):
        for member in cls:
            if member.value == value:
                return member
        return None


class PerformanceFeature(enum.Enum):
    Fp16Accumulation = "fp16_accumulation"
    Fp8MatrixMultiplication = "fp8_matrix_mult"
    CublasOps = "cublas_ops"
    AutoTune = "autotune"


_DEFAULTS = {
    "listen": "127.0.0.1", "port": 8188, "tls_keyfile": None, "tls_certfile": None, "enable_cors_header": None,
    "max_upload_size": 100, "base_directory": None, "extra_model_paths_config": None, "output_directory": None,
    "temp_directory": None, "input_directory": None, "auto_launch": False, "disable_auto_launch": True,
    "cuda_device": None, "default_device": None, "cuda_malloc": False, "disable_cuda_malloc": False, "force_fp32": False,
    "force_fp16": False, "fp32_unet": False, "fp64_unet": False, "bf16_unet": False, "fp16_unet": False,
    "fp8_e4m3fn_unet": False, "fp8_e5m2_unet": False, "fp16_vae": False, "fp32_vae": False, "bf16_vae": False,
    "cpu_vae": False, "fp8_e4m3fn_text_enc": False, "fp8_e5m2_text_enc": False, "fp16_text_enc": False,
    "fp32_text_enc": False, "bf16_text_enc": False, "force_channels_last": False, "directml": None,
    "preview_size": 512, "cache_classic": False, "cache_lru": 0, "cache_none": False, "cache_ram": 0,
    "force_upcast_attention": False, "dont_upcast_attention": False,
    "use_split_cross_attention": False, "use_quad_cross_attention": False, "use_pytorch_cross_attention": False,
    "use_sage_attention": False, "use_flash_attention": False, "disable_xformers": True, "gpu_only": False,
    "highvram": False, "normalvram": False, "lowvram": False, "novram": False, "cpu": False, "reserve_vram": None,
    "async_offload": False, "force_non_blocking": False, "default_hashing_function": "sha256", "disable_smart_memory": False,
    "deterministic": False, "fast": set(), "mmap_torch_files": False, "disable_mmap": False, "dont_print_server": False,
    "quick_test_for_ci": False, "windows_standalone_build": False, "disable_metadata": False,
    "disable_all_custom_nodes": False, "whitelist_custom_nodes": [], "disable_api_nodes": False, "enable_manager": False,
    "multi_user": False, "verbose": "INFO", "log_stdout": False, "front_end_version": "comfyanonymous/ComfyUI@latest",
    "front_end_root": None, "user_directory": None, "enable_compress_response_body": False,
    "comfy_api_base": "https://api.comfy.org", "database_url": None, "preview_method": LatentPreviewMethod.NoPreviews,
}
args = argparse.Namespace(**_DEFAULTS)
for _name, _value in (state.hello.get("args") or {}).items():
    if _name == "preview_method":
        _value = LatentPreviewMethod.from_string(_value) or LatentPreviewMethod.NoPreviews
    elif _name == "fast":
        _value = set(_value or ())
    setattr(args, _name, _value)
