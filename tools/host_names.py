"""Writes `python/fresco_host/host_names.py`: which names the modules of ComfyUI 0.7.0 have, as far as packs ask for them.

    python tools/host_names.py REFERENCE

REFERENCE is a folder with `packs_host_names.json` (names that 50 packs use), `packs_call_order.json` (classes of the nodes)
and `object_info.json`. What these files do not say is in the tables below, from the notes on how packs use their host. Names
and nothing else: no code of the host is read or copied.
"""

import json
import os
import sys

# Names that packs ask for and that the host never had, had long ago, or gets from the packs themselves.
NOT_OF_THE_HOST = """
comfy.cli_args comfy.cmd comfy.sd3_clip comfy.model_downloader comfy.model_downloader_types comfy.multigpu comfy_aimdo
comfy.model_management.unet_dtype_orig comfy.sample.prepare_noise_orig comfy.samplers.original_sample comfy.samplers.get
comfy.samplers.items comfy.samplers.CFGNoisePredictor comfy.samplers.wrap_model nodes.items server.PromptServer
comfy.ldm.modules.diffusionmodules.openaimodel.original_apply_control comfy.model_patcher.ModelPatcher._distorch_patched
comfy.model_management.in_training comfy.model_management.raise_non_oom comfy.model_patcher.CoreModelPatcher
""".split()

# What the notes on the host's surface say beside those files.
MORE = {
    "comfy.cldm.cldm": "ControlNet ControlNet.forward OptimizedAttention",
    "comfy.cldm.control_types": "UNION_CONTROLNET_TYPES",
    "comfy.cldm.mmdit": "ControlNet",
    "comfy.checkpoint_pickle": "Unpickler load",
    "comfy.clip_model": "CLIPTextModel CLIPVisionModelProjection CLIPVision",
    "comfy.clip_vision": "ClipVisionModel Output clip_preprocess load load_clipvision_from_sd convert_to_transformers",
    "comfy.conds": "CONDRegular CONDNoiseShape CONDCrossAttn CONDConstant CONDList",
    "comfy.context_windows": """IndexListContextWindow IndexListContextHandler IndexListCallbacks ContextSchedules ContextSchedule
        ContextFuseMethod ContextHandlerABC ContextWindowABC ContextFuseMethods get_matching_context_schedule
        get_matching_fuse_method create_prepare_sampling_wrapper create_sampler_sample_wrapper""",
    "comfy.controlnet": """ControlBase ControlNet ControlLora T2IAdapter ControlNetSD35 QwenFunControlNet StrengthType broadcast_image_to
        load_controlnet load_controlnet_state_dict load_t2i_adapter ControlBase.get_control ControlBase.pre_run
        ControlBase.copy_to ControlBase.control_merge ControlBase.inference_memory_requirements
        ControlNet.pre_run ControlNet.get_control ControlLora.pre_run T2IAdapter.get_control""",
    "comfy.diffusers_convert": "load_diffusers convert_unet_state_dict convert_vae_state_dict convert_text_enc_state_dict",
    "comfy.diffusers_load": "load_diffusers",
    "comfy.extra_samplers.uni_pc": "sample_unipc sample_unipc_bh2 UniPC SigmaConvert",
    "comfy.float": "stochastic_rounding manual_stochastic_round_to_float8 calc_mantissa",
    "comfy.gligen": "Gligen Gligen._set_position load_gligen",
    "comfy.hooks": """EnumHookMode EnumHookType EnumWeightTarget EnumHookScope HookRef Hook WeightHook ObjectPatchHook
        AdditionalModelsHook TransformerOptionsHook WrapperHook InjectionsHook HookGroup HookKeyframe HookKeyframeGroup
        InterpolationMethod get_sorted_list_via_attr create_transformer_options_from_hooks create_hook_lora
        create_hook_model_as_lora load_hook_lora_for_models set_hooks_for_conditioning set_timesteps_for_conditioning
        set_mask_for_conditioning combine_conditioning combine_with_new_conds set_conds_props set_conds_props_and_combine
        set_default_conds_and_combine set_default_conds_for_conditioning get_patch_weights_from_model HookGroup.combine_all_hooks""",
    "comfy.k_diffusion.sampling": """append_zero append_dims to_d get_ancestral_step default_noise_sampler get_sigmas_karras
        get_sigmas_exponential get_sigmas_polyexponential get_sigmas_vp get_sigmas_laplace BatchedBrownianTree
        BrownianTreeNoiseSampler PIDStepSizeController DPMSolver linear_multistep_coeff sigma_to_half_log_snr half_log_snr_to_sigma
        offset_first_sigma_for_snr ei_h_phi_1 ei_h_phi_2""",
    "comfy.k_diffusion.utils": "FolderOfImages append_dims",
    "comfy.k_diffusion.deis": "get_deis_coeff_list",
    "comfy.k_diffusion.sa_solver": "",
    "comfy.latent_formats": """LatentFormat SD15 SDXL SDXL_Playground_2_5 SD_X4 SC_Prior SC_B SD3 StableAudio1 Flux Flux2 Mochi LTXV LTXAV
        HunyuanVideo Cosmos1CV8x8x8 Wan21 Wan22 HunyuanImage21 HunyuanImage21Refiner HunyuanVideo15 Hunyuan3Dv2 Hunyuan3Dv2_1
        Hunyuan3Dv2mini ACEAudio ChromaRadiance Kandinsky5""",
    "comfy.ldm.common_dit": "pad_to_patch_size rms_norm",
    "comfy.ldm.flux.layers": """EmbedND MLPEmbedder QKNorm RMSNorm SelfAttention Modulation ModulationOut DoubleStreamBlock
        SingleStreamBlock LastLayer apply_mod timestep_embedding""",
    "comfy.ldm.flux.math": "attention rope apply_rope apply_rope1",
    "comfy.ldm.flux.model": "Flux Flux.forward Flux.forward_orig FluxParams",
    "comfy.ldm.modules.attention": """attention_basic attention_flash attention_pytorch attention_sage attention_split attention_sub_quad
        attention_xformers optimized_attention optimized_attention_masked optimized_attention_for_device register_attention_function
        get_attention_function REGISTERED_ATTENTION_FUNCTIONS wrap_attn BasicTransformerBlock SpatialTransformer
        SpatialVideoTransformer CrossAttention FeedForward GEGLU default exists Normalize zero_module""",
    "comfy.ldm.modules.diffusionmodules.openaimodel": """UNetModel UNetModel.forward UNetModel._forward TimestepBlock
        TimestepEmbedSequential Upsample Downsample ResBlock VideoResBlock Timestep apply_control forward_timestep_embed
        timestep_embedding SpatialTransformer SpatialVideoTransformer""",
    "comfy.ldm.modules.diffusionmodules.model": "AttnBlock Decoder Encoder ResnetBlock Upsample Downsample vae_attention",
    "comfy.ldm.modules.diffusionmodules.util": """AlphaBlender avg_pool_nd checkpoint conv_nd linear timestep_embedding zero_module
        make_beta_schedule""",
    "comfy.ldm.modules.diffusionmodules.upscaling": "AbstractLowScaleModel ImageConcatWithNoiseAugmentation SimpleImageConcat",
    "comfy.ldm.modules.encoders.noise_aug_modules": "CLIPEmbeddingNoiseAugmentation",
    "comfy.ldm.modules.ema": "LitEma",
    "comfy.ldm.models.autoencoder": "AbstractAutoencoder AutoencoderKL AutoencodingEngine AutoencodingEngineLegacy",
    "comfy.ldm.util": "exists default instantiate_from_config ismap isimage count_params",
    "comfy.lora": """calculate_weight load_lora model_lora_keys_clip model_lora_keys_unet pad_tensor_to_shape weight_decompose
        prefetch_prepared_value LORA_CLIP_MAP""",
    "comfy.lora_convert": "convert_lora",
    "comfy.model_base": """BaseModel ModelType model_sampling convert_tensor sdxl_pooled unclip_adm utm_image_cond Timestep
        CLIPEmbeddingNoiseAugmentation SD15_instructpix2pix IP2P LotusD SD21UNCLIP SDXL SDXLRefiner SDXL_instructpix2pix SVD_img2vid
        SV3D_u SV3D_p Stable_Zero123 SD_X4Upscaler StableCascade_C StableCascade_B SD3 AuraFlow StableAudio1 HunyuanDiT PixArt Flux
        Flux2 GenmoMochi LTXV LTXAV HunyuanVideo HunyuanVideoI2V HunyuanVideoSkyreelsI2V CosmosVideo CosmosPredict2 Lumina2 WAN21
        WAN21_Vace WAN21_Camera WAN22 WAN22_Animate WAN22_S2V WAN21_HuMo Hunyuan3Dv2 HiDream Chroma ChromaRadiance ACEStep Omnigen2
        QwenImage HunyuanImage21 HunyuanImage21Refiner HunyuanVideo15 Kandinsky5 Kandinsky5Image
        BaseModel.apply_model BaseModel._apply_model BaseModel.extra_conds BaseModel.extra_conds_shapes BaseModel.encode_adm
        BaseModel.concat_cond BaseModel.load_model_weights BaseModel.set_inpaint BaseModel.scale_latent_inpaint
        BaseModel.blank_inpaint_image_like BaseModel.is_adm SDXL.encode_adm""",
    "comfy.model_detection": """count_blocks calculate_transformer_depth detect_unet_config model_config_from_unet
        model_config_from_unet_config model_config_from_diffusers_unet unet_prefix_from_state_dict
        unet_config_from_diffusers_unet convert_config convert_diffusers_mmdit top_candidate state_dict_prefix_replace""",
    "comfy.model_management": """LoadedModel VRAMState CPUState current_loaded_models vram_state set_vram_to cpu_state total_vram total_ram
        offloaded_memory use_more_memory pin_memory unpin_memory module_size cleanup_models cleanup_models_gc extra_reserved_memory
        minimum_inference_memory loaded_models is_device_type is_device_cpu is_device_mps is_device_xpu is_device_cuda
        get_offload_stream sync_stream current_stream lora_compute_dtype maximum_vram_for_weights pick_weight_dtype
        unet_inital_load_device text_encoder_initial_device cast_to cast_to_device device_supports_non_blocking
        force_upcast_attention_dtype unload_model_clones xformers_enabled_vae pytorch_attention_enabled_vae
        pytorch_attention_flash_attention sage_attention_enabled flash_attention_enabled supports_cast supports_dtype dtype_size
        get_torch_device_name is_nvidia is_amd is_intel_xpu is_ascend_npu is_mlu is_ixuca is_directml_enabled directml_enabled
        WINDOWS EXTRA_RESERVED_VRAM MIN_WEIGHT_MEMORY_RATIO FORCE_FP32 PRIORITIZE_FP16 lowvram_available xpu_available""",
    "comfy.model_patcher": """ModelPatcher PatcherInjection LowVramPatch LoadedModel AutoPatcherEjector MemoryCounter string_to_seed
        set_model_options_patch_replace set_model_options_post_cfg_function set_model_options_pre_cfg_function
        create_model_options_clone create_hook_patches_clone wipe_lowvram_weight move_weight_functions get_key_weight
        ModelPatcher.calculate_weight ModelPatcher.patch_weight_to_device ModelPatcher.patch_model ModelPatcher.unpatch_model
        ModelPatcher.load ModelPatcher.partially_load ModelPatcher.partially_unload ModelPatcher.detach""",
    "comfy.model_sampling": """EPS V_PREDICTION EDM CONST X0 IMG_TO_IMG COSMOS_RFLOW ModelSamplingDiscrete ModelSamplingDiscreteEDM
        ModelSamplingContinuousEDM ModelSamplingContinuousV ModelSamplingDiscreteFlow ModelSamplingFlux ModelSamplingCosmosRFlow
        StableCascadeSampling rescale_zero_terminal_snr_sigmas time_snr_shift flux_time_shift reshape_sigma""",
    "comfy.nested_tensor": "NestedTensor cat_nested",
    "comfy.ops": """disable_weight_init disable_weight_init.Linear disable_weight_init.Conv1d disable_weight_init.Conv2d
        disable_weight_init.Conv3d disable_weight_init.GroupNorm disable_weight_init.LayerNorm disable_weight_init.RMSNorm
        disable_weight_init.ConvTranspose1d disable_weight_init.ConvTranspose2d disable_weight_init.Embedding
        disable_weight_init.conv_nd manual_cast manual_cast.Linear manual_cast.Conv1d manual_cast.Conv2d manual_cast.Conv3d
        manual_cast.GroupNorm manual_cast.LayerNorm manual_cast.RMSNorm manual_cast.ConvTranspose1d manual_cast.ConvTranspose2d
        manual_cast.Embedding manual_cast.conv_nd fp8_ops fp8_linear cublas_ops mixed_precision_ops scaled_fp8_ops CastWeightBiasOp
        cast_to cast_to_input cast_bias_weight uncast_bias_weight pick_operations""",
    "comfy.patcher_extension": """CallbacksMP WrappersMP WrapperExecutor PatcherInjection add_callback add_callback_with_key
        get_callbacks_with_key get_all_callbacks add_wrapper add_wrapper_with_key get_wrappers_with_key get_all_wrappers
        merge_nested_dicts copy_nested_dicts""",
    "comfy.pixel_space_convert": "PixelspaceConversionVAE",
    "comfy.quant_ops": "QuantizedTensor QuantizedLayout TensorCoreFP8Layout QUANT_ALGOS ck",
    "comfy.rmsnorm": "rms_norm RMSNorm",
    "comfy.sample": "prepare_noise prepare_noise_inner fix_empty_latent_channels prepare_sampling cleanup_additional_models sample sample_custom np",
    "comfy.sampler_helpers": """convert_cond prepare_mask prepare_sampling cleanup_models cleanup_additional_models get_models_from_cond
        get_additional_models get_additional_models_from_model_options get_hooks_from_cond prepare_model_patcher
        estimate_memory""",
    "comfy.samplers": """KSampler KSAMPLER KSAMPLER_NAMES SAMPLER_NAMES SCHEDULER_NAMES SCHEDULER_HANDLERS SchedulerHandler Sampler
        CFGGuider KSamplerX0Inpaint beta_scheduler normal_scheduler simple_scheduler ddim_scheduler linear_quadratic_schedule
        kl_optimal_scheduler calculate_sigmas calc_cond_batch calc_cond_uncond_batch cfg_function sampling_function sample
        sampler_object ksampler process_conds get_area_and_mult cond_equal_size can_concat_cond cond_cat finalize_default_conds
        resolve_areas_and_cond_masks resolve_areas_and_cond_masks_multidim calculate_start_end_timesteps encode_model_conds
        create_cond_with_same_area_if_none pre_run_control apply_empty_x_to_equal_area cast_to_load_options get_mask_aabb
        get_total_hooks_in_conds preprocess_conds_hooks filter_registered_hooks_on_conds add_area_dims k_diffusion_sampling
        cast_transformer_options""",
    "comfy.sd": """CLIP CLIPType VAE StyleModel TEModel load_checkpoint load_checkpoint_guess_config load_state_dict_guess_config
        load_diffusion_model load_diffusion_model_state_dict load_unet load_unet_state_dict load_clip load_text_encoder_state_dicts
        load_lora_for_models load_style_model load_gligen load_controlnet save_checkpoint t5xxl_detect llama_detect detect_te_model
        model_detection""",
    "comfy.sd1_clip": """SD1CheckpointClipModel SD1ClipModel SD1Tokenizer SDClipModel SDTokenizer ClipTokenWeightEncoder SD1ClipG
        gen_empty_tokens token_weights parse_parentheses escape_important unescape_important load_embed expand_directory_list
        bundled_embed safe_load_embed_zip""",
    "comfy.sdxl_clip": """SDXLClipG SDXLClipGTokenizer SDXLClipModel SDXLRefinerClipModel SDXLTokenizer StableCascadeClipG
        StableCascadeClipModel StableCascadeTokenizer StableCascadeClipGTokenizer""",
    "comfy.supported_models": """SD15 SD15_instructpix2pix SD20 SD21UnclipL SD21UnclipH SDXL SDXLRefiner SSD1B Segmind_Vega KOALA_700M
        KOALA_1B SVD_img2vid SV3D_u SV3D_p Stable_Zero123 SD_X4Upscaler Stable_Cascade_C Stable_Cascade_B SDXL_instructpix2pix LotusD
        SD3 StableAudio AuraFlow PixArtAlpha PixArtSigma HunyuanDiT HunyuanDiT1 Flux FluxInpaint FluxSchnell Flux2 GenmoMochi LTXV
        HunyuanVideo HunyuanVideoI2V HunyuanVideoSkyreelsI2V CosmosT2V CosmosI2V CosmosT2IPredict2 CosmosI2VPredict2 Lumina2 ZImage
        WAN21_T2V WAN21_I2V WAN21_Vace WAN21_Camera WAN22_T2V HiDream Chroma ChromaRadiance ACEStep Omnigen2 QwenImage HunyuanImage21
        HunyuanImage21Refiner HunyuanVideo15 Kandinsky5 Kandinsky5Image models supported_models_base model_base""",
    "comfy.supported_models_base": "BASE ClipTarget",
    "comfy.t2i_adapter.adapter": "Adapter Adapter_light StyleAdapter ResnetBlock",
    "comfy.taesd.taesd": "TAESD Block Clamp conv Encoder Decoder",
    "comfy.taesd.taehv": "TAEHV apply_model_with_memblocks conv MemBlock TPool TGrow",
    "comfy.text_encoders.bert": "BertModel BertModel_",
    "comfy.text_encoders.flux": "FluxClipModel FluxTokenizer T5XXLTokenizer flux_clip",
    "comfy.text_encoders.llama": "Llama2 Llama2_ Qwen25_3B Gemma2_2B",
    "comfy.text_encoders.sd2_clip": "SD2ClipModel SD2ClipHModel SD2Tokenizer SD2ClipHTokenizer",
    "comfy.text_encoders.sd3_clip": "SD3ClipModel SD3Tokenizer T5XXLModel T5XXLTokenizer sd3_clip",
    "comfy.text_encoders.spiece_tokenizer": "SPieceTokenizer",
    "comfy.text_encoders.t5": "T5 T5Stack T5LayerNorm T5Attention relative_position_bucket",
    "comfy.text_encoders.wan": "WanT5Model WanT5Tokenizer UMT5XXlModel",
    "comfy.text_encoders.qwen_image": "QwenImageTokenizer QwenImageTEModel",
    "comfy.utils": """pack_latents unpack_latents upscale_dit_mask resize_to_batch_size resize_list_to_batch_size reshape_mask
        UNET_MAP_ATTENTIONS UNET_MAP_RESNET UNET_MAP_BASIC TRANSFORMER_BLOCKS MMDIT_MAP_BASIC MMDIT_MAP_BLOCK PIXART_MAP_BASIC
        PIXART_MAP_BLOCKS unet_to_diffusers mmdit_to_diffusers flux_to_diffusers pixart_to_diffusers auraflow_to_diffusers
        z_image_to_diffusers transformers_convert clip_text_transformers_convert convert_sd_to convert_old_quants
        PROGRESS_BAR_ENABLED PROGRESS_BAR_HOOK MMAP_TORCH_FILES DISABLE_MMAP ALWAYS_SAFE_LOAD set_attr_param copy_to_param
        set_attr get_attr calculate_parameters weight_dtype safetensors_header tiled_scale_multidim get_tiled_scale_steps""",
    "comfy.weight_adapter": "WeightAdapterBase WeightAdapterTrainBase LoRAAdapter LoHaAdapter LoKrAdapter GLoRAAdapter OFTAdapter BOFTAdapter adapters adapter_maps",
    "comfy.weight_adapter.base": "WeightAdapterBase WeightAdapterTrainBase weight_decompose pad_tensor_to_shape factorization",
    "comfy.weight_adapter.lora": "LoRAAdapter LoraDiff",
    "comfy_api.torch_helpers": "set_torch_compile_wrapper",
    "comfy_extras.chainner_models.model_loading": "load_state_dict",
    "comfy_extras.nodes_custom_sampler": "Noise_EmptyNoise Noise_RandomNoise Guider_Basic Guider_DualCFG",
    "comfy_extras.nodes_mask": "composite",
    "comfy_extras.nodes_lt": "get_noise_mask get_keyframe_idxs conditioning_get_any_value",
    "comfy_extras.nodes_model_advanced": "LCM X0 Lotus ModelSamplingDiscreteDistilled rescale_zero_terminal_snr_sigmas",
    "comfy_extras.nodes_perpneg": "Guider_PerpNeg perp_neg",
    "execution": """PromptExecutor PromptQueue PromptExecutor.handle_execution_error validate_prompt validate_inputs get_input_data
        map_node_over_list get_output_data full_type_name format_value recursive_execute MAXIMUM_HISTORY_SIZE
        SENSITIVE_EXTRA_DATA_KEYS CacheType ExecutionResult IsChangedCache CacheSet DuplicateNodeError""",
    "folder_paths": "",
    "latent_preview": """MAX_PREVIEW_RESOLUTION LatentPreviewer Latent2RGBPreviewer TAESDPreviewerImpl TAESD get_previewer prepare_callback
        preview_to_image set_preview_method default_preview_method""",
    "nodes": """before_node_execution interrupt_processing MAX_RESOLUTION common_ksampler load_custom_node init_external_custom_nodes
        init_builtin_extra_nodes init_builtin_api_nodes init_public_apis init_extra_nodes get_module_name get_relative_module_name
        LOADED_MODULE_DIRS EXTENSION_WEB_DIRS NODE_CLASS_MAPPINGS NODE_DISPLAY_NAME_MAPPINGS load_custom_node ImagePadForOutpaint
        EmptyImage LoadImageOutput PreviewImage""",
}

# Modules that exist and of which no name is known.
EMPTY = """
comfy comfy.cldm comfy.extra_samplers comfy.k_diffusion comfy.ldm comfy.ldm.ace comfy.ldm.ace.model comfy.ldm.anima comfy.ldm.audio
comfy.ldm.audio.dit comfy.ldm.aura comfy.ldm.cascade comfy.ldm.cascade.common comfy.ldm.cascade.stage_a comfy.ldm.cascade.stage_b
comfy.ldm.cascade.stage_c comfy.ldm.chroma comfy.ldm.cosmos comfy.ldm.cosmos.model comfy.ldm.flux comfy.ldm.flux.controlnet
comfy.ldm.genmo comfy.ldm.genmo.joint_model comfy.ldm.genmo.joint_model.asymm_models_joint comfy.ldm.hidream comfy.ldm.hunyuan_video
comfy.ldm.hunyuan_video.model comfy.ldm.hydit comfy.ldm.hydit.models comfy.ldm.lightricks comfy.ldm.lightricks.vae comfy.ldm.lumina
comfy.ldm.models comfy.ldm.modules comfy.ldm.modules.diffusionmodules comfy.ldm.modules.distributions comfy.ldm.modules.encoders
comfy.ldm.modules.temporal_ae comfy.ldm.omnigen comfy.ldm.omnigen.omnigen2 comfy.ldm.pixart comfy.ldm.pixart.blocks
comfy.ldm.pixart.pixartms comfy.ldm.qwen_image comfy.ldm.wan comfy.memory_management comfy.t2i_adapter comfy.taesd
comfy.text_encoders app.app_settings app.custom_node_manager app.database app.database.db app.frontend_management
app.model_manager app.user_manager comfy_extras comfy_extras.chainner_models
""".split()

# Classes of nodes by the name under which the host registers them, where that is another one.
REGISTERED = {
    "CLIPAdd": "CLIPMergeAdd", "CLIPSubtract": "CLIPMergeSubtract", "ModelAdd": "ModelMergeAdd", "ModelSubtract": "ModelMergeSubtract",
    "CombineHooks": "CombineHooks2", "CombineHooksFour": "CombineHooks4", "CombineHooksEight": "CombineHooks8",
    "ConditioningSetDefaultAndCombine": "ConditioningSetDefaultCombine",
    "PairConditioningSetDefaultAndCombine": "PairConditioningSetDefaultCombine", "EpsilonScaling": "Epsilon Scaling",
    "Blend": "ImageBlend", "Blur": "ImageBlur", "Quantize": "ImageQuantize", "Sharpen": "ImageSharpen",
    "Boolean": "PrimitiveBoolean", "Float": "PrimitiveFloat", "Int": "PrimitiveInt", "String": "PrimitiveString",
    "StringMultiline": "PrimitiveStringMultiline", "ImageRebatch": "RebatchImages", "LatentRebatch": "RebatchLatents",
    "SwitchNode": "ComfySwitchNode",
}

# Names of a module that are other things of the host, or modules of other libraries.
ALIASES = {
    "comfy.k_diffusion.sampling.torch": "torch",
    "comfy.model_patcher.CoreModelPatcher": "comfy.model_patcher.ModelPatcher",
    "comfy.model_patcher.PatcherInjection": "comfy.patcher_extension.PatcherInjection",
    "comfy.model_patcher.QuantizedTensor": "comfy.quant_ops.QuantizedTensor",
    "comfy.sample.np": "numpy",
    "comfy_extras.nodes_lt.SymmetricPatchifier": "comfy.ldm.lightricks.symmetric_patchifier.SymmetricPatchifier",
    "comfy_extras.nodes_lt.latent_to_pixel_coords": "comfy.ldm.lightricks.symmetric_patchifier.latent_to_pixel_coords",
    "comfy.samplers.k_diffusion_sampling": "comfy.k_diffusion.sampling",
    "comfy.sd.model_detection": "comfy.model_detection",
    "comfy.supported_models.model_base": "comfy.model_base",
    "comfy.supported_models.supported_models_base": "comfy.supported_models_base",
}


def used(reference, names, modules):
    """Names that packs use, by the longest module that they stand in."""
    with open(os.path.join(reference, "packs_host_names.json"), encoding="utf-8") as file:
        listed = json.load(file)
    for name, about in listed.items():
        if not excluded(name) and about["state"] == "empty module":
            modules.add(name)
    for name in listed:
        if excluded(name) or name in modules or name.endswith(".__doc__") or any(within(name, alias) for alias in ALIASES):
            continue
        parts = name.split(".")
        count = max((n for n in range(1, len(parts)) if ".".join(parts[:n]) in modules), default=1)
        if parts[0] == "comfy_extras":
            count = max(count, 2)
        # Networks of families: a part in small letters before the last one is a module that nothing else names.
        while parts[:2] == ["comfy", "ldm"] and count < len(parts) - 1 and parts[count].islower():
            count += 1
        module = ".".join(parts[:count])
        modules.add(module)
        names.setdefault(module, set()).add(".".join(parts[count:]))


def within(name, whole):
    return name == whole or name.startswith(whole + ".")


def excluded(name):
    return any(within(name, other) for other in NOT_OF_THE_HOST)


def registered(reference):
    """Nodes of all versions with the modules that they come from."""
    for file in ("object_info.json", "object_info_new.json", "object_info_2026.json"):
        with open(os.path.join(reference, file), encoding="utf-8") as content:
            listed = json.load(content)
        for name, about in listed.items():
            module = about.get("python_module", "") if isinstance(about, dict) else ""
            if module.startswith("comfy_extras.") or module == "nodes":
                yield name, module


def main():
    reference = sys.argv[1]
    names, modules = {}, set(EMPTY) | set(MORE)
    for module, text in MORE.items():
        names.setdefault(module, set()).update(text.split())
    used(reference, names, modules)
    with open(os.path.join(reference, "packs_call_order.json"), encoding="utf-8") as file:
        for name, about in json.load(file).items():
            modules.add(about["module"])
            found = names.setdefault(about["module"], set())
            found.add(name)
            found.update(f"{name}.{more}" for more in about.get("other_methods", ()))
    for name, module in registered(reference):
        if name not in REGISTERED.values() and name.isidentifier():
            modules.add(module)
            names.setdefault(module, set()).add(name)
    modules |= set(names)
    for module in list(modules):
        while "." in module:
            module = module.rpartition(".")[0]
            modules.add(module)
    for module, found in names.items():
        kept = {name for name in found if not any(within(f"{module}.{name}", alias) for alias in ALIASES)}
        names[module] = {name for name in kept if f"{module}.{name}" not in modules}
    names = {module: found for module, found in names.items() if found}
    write(names, sorted(modules - set(names)))


def write(names, empty):
    lines = [
        '"""Which names the modules of the host have. Written by tools/host_names.py; do not edit."""',
        "",
        "# Names by module; a name with a point is that of a class's attribute.",
        "NAMES = {",
    ]
    for module, found in sorted(names.items()):
        lines.append(f'    "{module}": """')
        lines += wrapped(sorted(found), "        ")
        lines.append('    """.split(),')
    lines += ["}", "", "# Modules of which no name is known.", 'EMPTY = """', *wrapped(empty, "    "), '""".split()', ""]
    lines += ["# Classes of nodes by the names under which they are registered, where these differ.", "REGISTERED = {"]
    lines += [f'    "{name}": "{other}",' for name, other in sorted(REGISTERED.items())]
    lines += ["}", "", "# Names that are other things of the host, or modules of libraries.", "ALIASES = {"]
    lines += [f'    "{name}": "{other}",' for name, other in sorted(ALIASES.items())]
    lines += ["}", ""]
    here = os.path.dirname(os.path.abspath(__file__))
    place = os.path.join(here, "..", "python", "fresco_host", "host_names.py")
    with open(place, "w", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(lines))


def wrapped(words, indent):
    lines, line = [], indent
    for word in words:
        if len(line) + len(word) + 1 > 120:
            lines.append(line.rstrip())
            line = indent
        line += word + " "
    if line.strip():
        lines.append(line.rstrip())
    return lines


if __name__ == "__main__":
    main()
