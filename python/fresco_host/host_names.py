"""Which names the modules of the host have. Written by tools/host_names.py; do not edit."""

# Names by module; a name with a point is that of a class's attribute.
NAMES = {
    "comfy.checkpoint_pickle": """
        Unpickler load
    """.split(),
    "comfy.cldm.cldm": """
        ControlNet ControlNet.forward OptimizedAttention
    """.split(),
    "comfy.cldm.control_types": """
        UNION_CONTROLNET_TYPES
    """.split(),
    "comfy.cldm.mmdit": """
        ControlNet
    """.split(),
    "comfy.clip_model": """
        CLIPTextModel CLIPVision CLIPVisionModelProjection
    """.split(),
    "comfy.clip_vision": """
        ClipVisionModel Output clip_preprocess convert_to_transformers load load_clipvision_from_sd
    """.split(),
    "comfy.conds": """
        CONDConstant CONDCrossAttn CONDList CONDNoiseShape CONDRegular
    """.split(),
    "comfy.context_windows": """
        ContextFuseMethod ContextFuseMethods ContextHandlerABC ContextSchedule ContextSchedules ContextWindowABC
        IndexListCallbacks IndexListContextHandler IndexListContextHandler.__init__ IndexListContextWindow
        create_prepare_sampling_wrapper create_sampler_sample_wrapper get_matching_context_schedule
        get_matching_fuse_method
    """.split(),
    "comfy.controlnet": """
        ControlBase ControlBase.control_merge ControlBase.copy_to ControlBase.get_control
        ControlBase.inference_memory_requirements ControlBase.pre_run ControlLora ControlLora.pre_run ControlNet
        ControlNet.get_control ControlNet.pre_run ControlNetSD35 QwenFunControlNet StrengthType StrengthType.CONSTANT
        T2IAdapter T2IAdapter.get_control broadcast_image_to load_controlnet load_controlnet_state_dict
        load_t2i_adapter
    """.split(),
    "comfy.diffusers_convert": """
        convert_text_enc_state_dict convert_unet_state_dict convert_vae_state_dict load_diffusers
    """.split(),
    "comfy.diffusers_load": """
        load_diffusers
    """.split(),
    "comfy.extra_samplers.uni_pc": """
        SigmaConvert UniPC sample_unipc sample_unipc_bh2
    """.split(),
    "comfy.float": """
        calc_mantissa manual_stochastic_round_to_float8 stochastic_rounding
    """.split(),
    "comfy.gligen": """
        Gligen Gligen._set_position load_gligen
    """.split(),
    "comfy.hooks": """
        AdditionalModelsHook EnumHookMode EnumHookScope EnumHookType EnumWeightTarget Hook HookGroup
        HookGroup.combine_all_hooks HookKeyframe HookKeyframeGroup HookRef InjectionsHook InterpolationMethod
        ObjectPatchHook TransformerOptionsHook WeightHook WrapperHook combine_conditioning combine_with_new_conds
        create_hook_lora create_hook_model_as_lora create_transformer_options_from_hooks get_patch_weights_from_model
        get_sorted_list_via_attr load_hook_lora_for_models set_conds_props set_conds_props_and_combine
        set_default_conds_and_combine set_default_conds_for_conditioning set_hooks_for_conditioning
        set_mask_for_conditioning set_timesteps_for_conditioning
    """.split(),
    "comfy.k_diffusion.deis": """
        get_deis_coeff_list
    """.split(),
    "comfy.k_diffusion.sampling": """
        BatchedBrownianTree BrownianTreeNoiseSampler DPMSolver PIDStepSizeController append_dims append_zero
        default_noise_sampler ei_h_phi_1 ei_h_phi_2 get_ancestral_step get_sigmas_exponential get_sigmas_karras
        get_sigmas_laplace get_sigmas_polyexponential get_sigmas_vp half_log_snr_to_sigma linear_multistep_coeff
        offset_first_sigma_for_snr sigma_to_half_log_snr to_d
    """.split(),
    "comfy.k_diffusion.utils": """
        FolderOfImages FolderOfImages.IMG_EXTENSIONS append_dims
    """.split(),
    "comfy.latent_formats": """
        ACEAudio ChromaRadiance Cosmos1CV8x8x8 Flux Flux2 Hunyuan3Dv2 Hunyuan3Dv2_1 Hunyuan3Dv2mini HunyuanImage21
        HunyuanImage21Refiner HunyuanVideo HunyuanVideo15 Kandinsky5 LTXAV LTXV LatentFormat Mochi SC_B SC_Prior SD15
        SD3 SDXL SDXL_Playground_2_5 SD_X4 StableAudio1 Wan21 Wan22
    """.split(),
    "comfy.ldm.anima.lllite": """
        AnimaLLLite
    """.split(),
    "comfy.ldm.anima.model": """
        Anima
    """.split(),
    "comfy.ldm.aura.mmdit": """
        DiTBlock DoubleAttention MMDiT MMDiTBlock SingleAttention
    """.split(),
    "comfy.ldm.cascade.stage_c_coder": """
        StageC_coder
    """.split(),
    "comfy.ldm.chroma.layers": """
        DoubleStreamBlock SingleStreamBlock
    """.split(),
    "comfy.ldm.chroma.model": """
        Chroma
    """.split(),
    "comfy.ldm.common_dit": """
        pad_to_patch_size rms_norm
    """.split(),
    "comfy.ldm.cosmos.predict2": """
        Attention apply_rotary_pos_emb
    """.split(),
    "comfy.ldm.flux.layers": """
        DoubleStreamBlock EmbedND LastLayer MLPEmbedder Modulation ModulationOut QKNorm RMSNorm SelfAttention
        SingleStreamBlock apply_mod timestep_embedding
    """.split(),
    "comfy.ldm.flux.math": """
        apply_rope apply_rope1 attention rope
    """.split(),
    "comfy.ldm.flux.model": """
        Flux Flux.forward Flux.forward_orig FluxParams
    """.split(),
    "comfy.ldm.flux.redux": """
        ReduxImageEncoder
    """.split(),
    "comfy.ldm.hidream.model": """
        HiDreamAttention HiDreamImageBlock HiDreamImageSingleTransformerBlock HiDreamImageTransformer2DModel
        HiDreamImageTransformerBlock
    """.split(),
    "comfy.ldm.lightricks.av_model": """
        LTXAVModel
    """.split(),
    "comfy.ldm.lightricks.model": """
        BasicTransformerBlock CrossAttention FeedForward GuideAttentionMask LTXFrequenciesPrecision
        LTXFrequenciesPrecision.FLOAT32 LTXFrequenciesPrecision.FLOAT64 LTXFrequenciesPrecision.from_dict LTXRopeType
        LTXRopeType.INTERLEAVED LTXRopeType.SPLIT LTXRopeType.from_dict LTXVModel TimestepEmbedding Timesteps
        _attention_with_guide_mask apply_rotary_emb generate_freq_grid_np interleaved_freqs_cis precompute_freqs_cis
        split_freqs_cis
    """.split(),
    "comfy.ldm.lightricks.symmetric_patchifier": """
        latent_to_pixel_coords
    """.split(),
    "comfy.ldm.lightricks.vae.audio_vae": """
        AudioVAE LATENT_DOWNSAMPLE_FACTOR
    """.split(),
    "comfy.ldm.lightricks.vae.causal_conv3d": """
        CausalConv3d
    """.split(),
    "comfy.ldm.lightricks.vae.causal_video_autoencoder": """
        Decoder Encoder ResnetBlock3D
    """.split(),
    "comfy.ldm.lightricks.vae.pixel_norm": """
        PixelNorm
    """.split(),
    "comfy.ldm.lumina.model": """
        FeedForward FeedForward.forward
    """.split(),
    "comfy.ldm.minimax.model": """
        MiniMaxH3Model PackedLayout PackedLayout.__init__ _mod_gate _mod_scale_shift
    """.split(),
    "comfy.ldm.models.autoencoder": """
        AbstractAutoencoder AutoencoderKL AutoencodingEngine AutoencodingEngineLegacy
    """.split(),
    "comfy.ldm.modules.attention": """
        BasicTransformerBlock BasicTransformerBlock.forward CrossAttention FeedForward GEGLU Normalize
        REGISTERED_ATTENTION_FUNCTIONS SpatialTransformer SpatialVideoTransformer attention_basic attention_flash
        attention_pytorch attention_sage attention_split attention_sub_quad attention_xformers default exists
        get_attention_function optimized_attention optimized_attention_for_device optimized_attention_masked
        register_attention_function wrap_attn zero_module
    """.split(),
    "comfy.ldm.modules.diffusionmodules.mmdit": """
        JointBlock OpenAISignatureMMDITWrapper RMSNorm
    """.split(),
    "comfy.ldm.modules.diffusionmodules.model": """
        AttnBlock Decoder Downsample Encoder ResnetBlock Upsample vae_attention
    """.split(),
    "comfy.ldm.modules.diffusionmodules.openaimodel": """
        Downsample ResBlock SpatialTransformer SpatialVideoTransformer Timestep TimestepBlock TimestepEmbedSequential
        UNetModel UNetModel._forward UNetModel.forward Upsample VideoResBlock apply_control forward_timestep_embed
        timestep_embedding
    """.split(),
    "comfy.ldm.modules.diffusionmodules.upscaling": """
        AbstractLowScaleModel ImageConcatWithNoiseAugmentation SimpleImageConcat
    """.split(),
    "comfy.ldm.modules.diffusionmodules.util": """
        AlphaBlender avg_pool_nd checkpoint conv_nd linear make_beta_schedule timestep_embedding zero_module
    """.split(),
    "comfy.ldm.modules.distributions.distributions": """
        DiagonalGaussianDistribution
    """.split(),
    "comfy.ldm.modules.ema": """
        LitEma
    """.split(),
    "comfy.ldm.modules.encoders.noise_aug_modules": """
        CLIPEmbeddingNoiseAugmentation
    """.split(),
    "comfy.ldm.modules.sub_quadratic_attention": """
        efficient_dot_product_attention
    """.split(),
    "comfy.ldm.qwen_image.model": """
        FeedForward GELU LastLayer QwenImageTransformer2DModel QwenTimestepProjEmbeddings apply_rotary_emb
    """.split(),
    "comfy.ldm.util": """
        count_params default exists instantiate_from_config isimage ismap
    """.split(),
    "comfy.ldm.wan.model": """
        WanAttentionBlock WanI2VCrossAttention WanModel WanSelfAttention WanT2VCrossAttention sinusoidal_embedding_1d
    """.split(),
    "comfy.ldm.wan.vae": """
        CausalConv3d RMS_norm
    """.split(),
    "comfy.lora": """
        LORA_CLIP_MAP calculate_weight load_lora model_lora_keys_clip model_lora_keys_unet pad_tensor_to_shape
        prefetch_prepared_value weight_decompose
    """.split(),
    "comfy.lora_convert": """
        convert_lora
    """.split(),
    "comfy.model_base": """
        ACEStep Anima AuraFlow BaseModel BaseModel._apply_model BaseModel.apply_model
        BaseModel.blank_inpaint_image_like BaseModel.concat_cond BaseModel.encode_adm BaseModel.extra_conds
        BaseModel.extra_conds_shapes BaseModel.is_adm BaseModel.load_model_weights BaseModel.scale_latent_inpaint
        BaseModel.set_inpaint CLIPEmbeddingNoiseAugmentation Chroma ChromaRadiance CosmosPredict2 CosmosVideo Flux
        Flux2 GenmoMochi HiDream Hunyuan3Dv2 HunyuanDiT HunyuanImage21 HunyuanImage21Refiner HunyuanVideo
        HunyuanVideo15 HunyuanVideoI2V HunyuanVideoSkyreelsI2V IP2P Kandinsky5 Kandinsky5Image LTXAV LTXV LotusD
        Lumina2 ModelType Omnigen2 PixArt QwenImage SD15_instructpix2pix SD21UNCLIP SD3 SDXL SDXL.encode_adm
        SDXLRefiner SDXL_instructpix2pix SD_X4Upscaler SV3D_p SV3D_u SVD_img2vid StableAudio1 StableCascade_B
        StableCascade_C Stable_Zero123 Timestep WAN21 WAN21_Camera WAN21_HuMo WAN21_Vace WAN22 WAN22_Animate WAN22_S2V
        convert_tensor model_sampling sdxl_pooled unclip_adm utm_image_cond
    """.split(),
    "comfy.model_detection": """
        calculate_transformer_depth convert_config convert_diffusers_mmdit count_blocks detect_unet_config
        model_config_from_diffusers_unet model_config_from_unet model_config_from_unet_config state_dict_prefix_replace
        top_candidate unet_config_from_diffusers_unet unet_prefix_from_state_dict
    """.split(),
    "comfy.model_management": """
        CPUState EXTRA_RESERVED_VRAM FORCE_FP32 LoadedModel MIN_WEIGHT_MEMORY_RATIO PRIORITIZE_FP16 VRAMState WINDOWS
        cast_to cast_to_device cleanup_models cleanup_models_gc cpu_state current_loaded_models current_stream
        device_supports_non_blocking directml_enabled dtype_size extra_reserved_memory flash_attention_enabled
        force_upcast_attention_dtype get_offload_stream get_torch_device_name intermediate_dtype is_amd is_ascend_npu
        is_device_cpu is_device_cuda is_device_mps is_device_type is_device_xpu is_directml_enabled is_intel_xpu
        is_ixuca is_mlu is_nvidia loaded_models lora_compute_dtype lowvram_available maximum_vram_for_weights
        minimum_inference_memory module_size offloaded_memory pick_weight_dtype pin_memory
        pytorch_attention_enabled_vae pytorch_attention_flash_attention sage_attention_enabled set_vram_to
        supports_cast supports_dtype sync_stream text_encoder_initial_device total_ram total_vram
        unet_inital_load_device unload_model_clones unpin_memory use_more_memory vram_state xformers_enabled_vae
        xpu_available
    """.split(),
    "comfy.model_patcher": """
        AutoPatcherEjector LoadedModel LowVramPatch MemoryCounter ModelPatcher ModelPatcher.calculate_weight
        ModelPatcher.detach ModelPatcher.load ModelPatcher.partially_load ModelPatcher.partially_unload
        ModelPatcher.patch_model ModelPatcher.patch_weight_to_device ModelPatcher.unpatch_model ModelPatcherDynamic
        ModelPatcherDynamic._load_list create_hook_patches_clone create_model_options_clone get_key_weight
        low_vram_patch_estimate_vram move_weight_functions set_model_options_patch_replace
        set_model_options_post_cfg_function set_model_options_pre_cfg_function string_to_seed wipe_lowvram_weight
    """.split(),
    "comfy.model_sampling": """
        CONST COSMOS_RFLOW EDM EPS IMG_TO_IMG ModelSamplingContinuousEDM ModelSamplingContinuousV
        ModelSamplingCosmosRFlow ModelSamplingDiscrete ModelSamplingDiscreteEDM ModelSamplingDiscreteFlow
        ModelSamplingFlux StableCascadeSampling V_PREDICTION X0 flux_time_shift rescale_zero_terminal_snr_sigmas
        reshape_sigma time_snr_shift
    """.split(),
    "comfy.nested_tensor": """
        NestedTensor cat_nested
    """.split(),
    "comfy.ops": """
        CastWeightBiasOp cast_bias_weight cast_to cast_to_input cublas_ops disable_weight_init
        disable_weight_init.Conv1d disable_weight_init.Conv2d disable_weight_init.Conv3d
        disable_weight_init.ConvTranspose1d disable_weight_init.ConvTranspose2d disable_weight_init.Embedding
        disable_weight_init.GroupNorm disable_weight_init.GroupNorm.forward_comfy_cast_weights
        disable_weight_init.LayerNorm disable_weight_init.Linear disable_weight_init.RMSNorm
        disable_weight_init.conv_nd fp8_linear fp8_ops linear_input_act manual_cast manual_cast.Conv1d
        manual_cast.Conv2d manual_cast.Conv3d manual_cast.ConvTranspose1d manual_cast.ConvTranspose2d
        manual_cast.Embedding manual_cast.GroupNorm manual_cast.LayerNorm manual_cast.Linear manual_cast.RMSNorm
        manual_cast.conv_nd mixed_precision_ops pick_operations scaled_fp8_ops uncast_bias_weight
    """.split(),
    "comfy.patcher_extension": """
        CallbacksMP PatcherInjection WrapperExecutor WrappersMP add_callback add_callback_with_key add_wrapper
        add_wrapper_with_key copy_nested_dicts get_all_callbacks get_all_wrappers get_callbacks_with_key
        get_wrappers_with_key merge_nested_dicts
    """.split(),
    "comfy.pixel_space_convert": """
        PixelspaceConversionVAE
    """.split(),
    "comfy.quant_ops": """
        QUANT_ALGOS QuantizedLayout QuantizedTensor TensorCoreFP8Layout ck ck.rms_rope_split_half
        ck.rms_rope_split_half_
    """.split(),
    "comfy.rmsnorm": """
        RMSNorm rms_norm
    """.split(),
    "comfy.sample": """
        cleanup_additional_models fix_empty_latent_channels prepare_noise prepare_noise_inner prepare_sampling sample
        sample_custom
    """.split(),
    "comfy.sampler_helpers": """
        cleanup_additional_models cleanup_models convert_cond estimate_memory get_additional_models
        get_additional_models_from_model_options get_hooks_from_cond get_models_from_cond prepare_mask
        prepare_model_patcher prepare_sampling
    """.split(),
    "comfy.samplers": """
        CFGGuider KSAMPLER KSAMPLER_NAMES KSampler KSamplerX0Inpaint SAMPLER_NAMES SCHEDULER_HANDLERS SCHEDULER_NAMES
        Sampler SchedulerHandler add_area_dims apply_empty_x_to_equal_area beta_scheduler calc_cond_batch
        calc_cond_uncond_batch calculate_sigmas calculate_start_end_timesteps can_concat_cond cast_to_load_options
        cast_transformer_options cfg_function cond_cat cond_equal_size create_cond_with_same_area_if_none
        ddim_scheduler encode_model_conds filter_registered_hooks_on_conds finalize_default_conds get_area_and_mult
        get_mask_aabb get_total_hooks_in_conds kl_optimal_scheduler ksampler linear_quadratic_schedule normal_scheduler
        pre_run_control preprocess_conds_hooks process_conds resolve_areas_and_cond_masks
        resolve_areas_and_cond_masks_multidim sample sampler_object sampling_function simple_scheduler
    """.split(),
    "comfy.sd": """
        CLIP CLIPType StyleModel TEModel VAE detect_te_model llama_detect load_checkpoint load_checkpoint_guess_config
        load_clip load_controlnet load_diffusion_model load_diffusion_model_state_dict load_gligen load_lora_for_models
        load_state_dict_guess_config load_style_model load_text_encoder_state_dicts load_unet load_unet_state_dict
        save_checkpoint t5xxl_detect
    """.split(),
    "comfy.sd1_clip": """
        ClipTokenWeightEncoder SD1CheckpointClipModel SD1ClipG SD1ClipModel SD1Tokenizer SDClipModel SDTokenizer
        bundled_embed escape_important expand_directory_list gen_empty_tokens load_embed parse_parentheses
        safe_load_embed_zip token_weights unescape_important
    """.split(),
    "comfy.sdxl_clip": """
        SDXLClipG SDXLClipGTokenizer SDXLClipModel SDXLRefinerClipModel SDXLTokenizer StableCascadeClipG
        StableCascadeClipGTokenizer StableCascadeClipModel StableCascadeTokenizer
    """.split(),
    "comfy.supported_models": """
        ACEStep AuraFlow Chroma ChromaRadiance CosmosI2V CosmosI2VPredict2 CosmosT2IPredict2 CosmosT2V Flux Flux2
        FluxInpaint FluxSchnell GenmoMochi HiDream HunyuanDiT HunyuanDiT1 HunyuanImage21 HunyuanImage21Refiner
        HunyuanVideo HunyuanVideo15 HunyuanVideoI2V HunyuanVideoSkyreelsI2V KOALA_1B KOALA_700M Kandinsky5
        Kandinsky5Image LTXV LotusD Lumina2 Omnigen2 PixArtAlpha PixArtSigma QwenImage SD15 SD15_instructpix2pix SD20
        SD21UnclipH SD21UnclipL SD3 SDXL SDXLRefiner SDXL_instructpix2pix SD_X4Upscaler SSD1B SV3D_p SV3D_u SVD_img2vid
        Segmind_Vega StableAudio Stable_Cascade_B Stable_Cascade_C Stable_Zero123 WAN21_Camera WAN21_I2V WAN21_T2V
        WAN21_Vace WAN22_T2V ZImage models
    """.split(),
    "comfy.supported_models_base": """
        BASE ClipTarget
    """.split(),
    "comfy.t2i_adapter.adapter": """
        Adapter Adapter_light ResnetBlock StyleAdapter
    """.split(),
    "comfy.taesd.taehv": """
        MemBlock TAEHV TGrow TPool apply_model_with_memblocks conv
    """.split(),
    "comfy.taesd.taesd": """
        Block Clamp Decoder Encoder TAESD conv
    """.split(),
    "comfy.text_encoders": """
        long_clipl long_clipl.model_options_long_clip
    """.split(),
    "comfy.text_encoders.bert": """
        BertModel BertModel_
    """.split(),
    "comfy.text_encoders.flux": """
        FluxClipModel FluxTokenizer T5XXLTokenizer flux_clip
    """.split(),
    "comfy.text_encoders.llama": """
        Gemma2_2B Llama2 Llama2_ Qwen25_3B
    """.split(),
    "comfy.text_encoders.qwen_image": """
        QwenImageTEModel QwenImageTokenizer
    """.split(),
    "comfy.text_encoders.sd2_clip": """
        SD2ClipHModel SD2ClipHTokenizer SD2ClipModel SD2Tokenizer
    """.split(),
    "comfy.text_encoders.sd3_clip": """
        SD3ClipModel SD3Tokenizer T5XXLModel T5XXLTokenizer sd3_clip
    """.split(),
    "comfy.text_encoders.spiece_tokenizer": """
        SPieceTokenizer
    """.split(),
    "comfy.text_encoders.t5": """
        T5 T5Attention T5LayerNorm T5Stack relative_position_bucket
    """.split(),
    "comfy.text_encoders.wan": """
        UMT5XXlModel WanT5Model WanT5Tokenizer
    """.split(),
    "comfy.utils": """
        ALWAYS_SAFE_LOAD DISABLE_MMAP MMAP_TORCH_FILES MMDIT_MAP_BASIC MMDIT_MAP_BLOCK PIXART_MAP_BASIC
        PIXART_MAP_BLOCKS PROGRESS_BAR_ENABLED PROGRESS_BAR_HOOK TRANSFORMER_BLOCKS UNET_MAP_ATTENTIONS UNET_MAP_BASIC
        UNET_MAP_BASIC.add UNET_MAP_BASIC.copy UNET_MAP_RESNET auraflow_to_diffusers calculate_parameters
        clip_text_transformers_convert convert_old_quants convert_sd_to copy_to_param flux_to_diffusers get_attr
        get_tiled_scale_steps mmdit_to_diffusers pack_latents pixart_to_diffusers reshape_mask
        resize_list_to_batch_size resize_to_batch_size safetensors_header set_attr set_attr_param tiled_scale_multidim
        transformers_convert unet_to_diffusers unpack_latents upscale_dit_mask weight_dtype z_image_to_diffusers
    """.split(),
    "comfy.weight_adapter": """
        BOFTAdapter GLoRAAdapter LoHaAdapter LoKrAdapter LoRAAdapter OFTAdapter WeightAdapterBase
        WeightAdapterTrainBase adapter_maps adapters
    """.split(),
    "comfy.weight_adapter.base": """
        WeightAdapterBase WeightAdapterTrainBase factorization pad_tensor_to_shape weight_decompose
    """.split(),
    "comfy.weight_adapter.lora": """
        LoRAAdapter LoraDiff
    """.split(),
    "comfy_api.torch_helpers": """
        set_torch_compile_wrapper
    """.split(),
    "comfy_extras.chainner_models.model_loading": """
        load_state_dict
    """.split(),
    "comfy_extras.image_formats": """
        ImageColorSpace
    """.split(),
    "comfy_extras.nodes_ace": """
        EmptyAceStepLatentAudio ReferenceTimbreAudio TextEncodeAceStepAudio
    """.split(),
    "comfy_extras.nodes_advanced_samplers": """
        SamplerEulerCFGpp SamplerLCM SamplerLCMUpscale
    """.split(),
    "comfy_extras.nodes_align_your_steps": """
        AlignYourStepsScheduler AlignYourStepsScheduler.get_sigmas loglinear_interp
    """.split(),
    "comfy_extras.nodes_apg": """
        APG
    """.split(),
    "comfy_extras.nodes_ar_video": """
        ARVideoI2V EmptyARVideoLatent SamplerARVideo
    """.split(),
    "comfy_extras.nodes_attention_multiply": """
        CLIPAttentionMultiply UNetCrossAttentionMultiply UNetSelfAttentionMultiply UNetTemporalAttentionMultiply
    """.split(),
    "comfy_extras.nodes_audio": """
        AudioAdjustVolume AudioConcat AudioEqualizer3Band AudioMerge ConditioningStableAudio EmptyAudio
        EmptyLatentAudio JoinAudioChannels LoadAudio PreviewAudio RecordAudio SaveAudio SaveAudioAdvanced SaveAudioMP3
        SaveAudioOpus SplitAudioChannels TrimAudioDuration VAEDecodeAudio VAEDecodeAudioTiled VAEEncodeAudio
    """.split(),
    "comfy_extras.nodes_audio_encoder": """
        AudioEncoderEncode AudioEncoderLoader
    """.split(),
    "comfy_extras.nodes_bernini": """
        BerniniConditioning
    """.split(),
    "comfy_extras.nodes_bg_removal": """
        LoadBackgroundRemovalModel RemoveBackground
    """.split(),
    "comfy_extras.nodes_boogu": """
        TextEncodeBooguEdit
    """.split(),
    "comfy_extras.nodes_bounding_boxes": """
        CreateBoundingBoxes
    """.split(),
    "comfy_extras.nodes_camera_trajectory": """
        WanCameraEmbedding
    """.split(),
    "comfy_extras.nodes_canny": """
        Canny Canny.detect_edge
    """.split(),
    "comfy_extras.nodes_cfg": """
        CFGNorm CFGZeroStar
    """.split(),
    "comfy_extras.nodes_chroma_radiance": """
        ChromaRadianceOptions EmptyChromaRadianceLatentImage
    """.split(),
    "comfy_extras.nodes_clip_sdxl": """
        CLIPTextEncodeSDXL CLIPTextEncodeSDXLRefiner
    """.split(),
    "comfy_extras.nodes_color": """
        ColorToRGBInt
    """.split(),
    "comfy_extras.nodes_compositing": """
        JoinImageWithAlpha PorterDuffImageComposite SplitImageWithAlpha
    """.split(),
    "comfy_extras.nodes_compositor": """
        AddLayer ImageCompositor LayersFromBoundingBoxes
    """.split(),
    "comfy_extras.nodes_cond": """
        CLIPTextEncodeControlnet ConditioningLoader SaveConditioning T5TokenizerOptions
    """.split(),
    "comfy_extras.nodes_context_windows": """
        ContextWindowsManual ContextWindowsManualNode LTXVContextWindows WanContextWindowsManual
        WanContextWindowsManualNode
    """.split(),
    "comfy_extras.nodes_controlnet": """
        ControlNetInpaintingAliMamaApply SetUnionControlNetType
    """.split(),
    "comfy_extras.nodes_cosmos": """
        CosmosImageToVideoLatent CosmosPredict2ImageToVideoLatent EmptyCosmosLatentVideo
    """.split(),
    "comfy_extras.nodes_curve": """
        CurveEditor ImageHistogram
    """.split(),
    "comfy_extras.nodes_custom_sampler": """
        AddNoise BasicGuider BasicScheduler BetaSamplingScheduler CFGGuider CFGOverride DisableNoise DualCFGGuider
        DualModelGuider ExponentialScheduler ExtendIntermediateSigmas FlipSigmas Guider_Basic Guider_DualCFG
        KSamplerSelect KarrasScheduler LaplaceScheduler ManualSigmas Noise_EmptyNoise Noise_RandomNoise
        PolyexponentialScheduler RandomNoise SDTurboScheduler SamplerCustom SamplerCustomAdvanced SamplerDPMAdaptative
        SamplerDPMPP_2M_SDE SamplerDPMPP_2S_Ancestral SamplerDPMPP_3M_SDE SamplerDPMPP_SDE SamplerER_SDE
        SamplerEulerAncestral SamplerEulerAncestralCFGPP SamplerLMS SamplerSASolver SamplerSEEDS2
        SamplingPercentToSigma SetFirstSigma SplitSigmas SplitSigmasDenoise VPScheduler
    """.split(),
    "comfy_extras.nodes_dataset": """
        AddTextPrefix AddTextSuffix AdjustBrightness AdjustContrast CenterCropImages ImageDeduplication ImageGrid
        ImageProcessingNode ImageProcessingNode._detect_processing_mode ImageProcessingNode._group_process
        ImageProcessingNode._process LoadImageDataSetFromFolder LoadImageDataSetFromFolderNode
        LoadImageTextDataSetFromFolder LoadImageTextDataSetFromFolderNode LoadTrainingDataset
        LoadVideoDataSetFromFolder LoadVideoTextDataSetFromFolder MakeTrainingDataset MergeImageLists MergeTextLists
        NormalizeImages RandomCropImages ReplaceText ResizeImagesByLongerEdge ResizeImagesByShorterEdge
        ResolutionBucket SaveImageDataSetToFolder SaveImageDataSetToFolderNode SaveImageTextDataSetToFolder
        SaveImageTextDataSetToFolderNode SaveTrainingDataset ShuffleDataset ShuffleImageTextDataset
        ShuffleImageTextDatasetNode ShuffleVideoDataset ShuffleVideoTextDataset StripWhitespace TextProcessingNode
        TextProcessingNode._detect_processing_mode TextProcessingNode._group_process TextProcessingNode._process
        TextToLowercase TextToUppercase TruncateText VideoFrameSample VideoRandomTemporalCrop VideoTemporalCrop
    """.split(),
    "comfy_extras.nodes_depth_anything_3": """
        DA3GeometryToMesh DA3Inference DA3Render LoadDA3Model
    """.split(),
    "comfy_extras.nodes_differential_diffusion": """
        DifferentialDiffusion DifferentialDiffusion.forward
    """.split(),
    "comfy_extras.nodes_easycache": """
        EasyCache EasyCacheNode LazyCache LazyCacheNode
    """.split(),
    "comfy_extras.nodes_edit_model": """
        ReferenceLatent
    """.split(),
    "comfy_extras.nodes_eps": """
        EpsilonScaling TemporalScoreRescaling
    """.split(),
    "comfy_extras.nodes_flux": """
        CLIPTextEncodeFlux EmptyFlux2LatentImage Flux2Scheduler FluxDisableGuidance FluxGuidance FluxKVCache
        FluxKontextImageScale FluxKontextMultiReferenceLatentMethod
    """.split(),
    "comfy_extras.nodes_frame_interpolation": """
        FrameInterpolate FrameInterpolationModelLoader
    """.split(),
    "comfy_extras.nodes_freelunch": """
        FreeU FreeU_V2
    """.split(),
    "comfy_extras.nodes_fresca": """
        FreSca
    """.split(),
    "comfy_extras.nodes_gaussian_splat": """
        CreateCameraInfo File3DToSplat GetSplatCount MergeSplat RenderSplat SplatToFile3D SplatToMesh TransformSplat
    """.split(),
    "comfy_extras.nodes_gits": """
        GITSScheduler NOISE_LEVELS
    """.split(),
    "comfy_extras.nodes_glsl": """
        GLSLShader
    """.split(),
    "comfy_extras.nodes_hidream": """
        CLIPTextEncodeHiDream QuadrupleCLIPLoader
    """.split(),
    "comfy_extras.nodes_hidream_o1": """
        EmptyHiDreamO1LatentImage HiDreamO1PatchSeamSmoothing HiDreamO1ReferenceImages
    """.split(),
    "comfy_extras.nodes_hooks": """
        CombineHooks CombineHooksEight CombineHooksFour ConditioningSetDefaultAndCombine ConditioningSetProperties
        ConditioningSetPropertiesAndCombine ConditioningTimestepsRange CreateHookKeyframe CreateHookKeyframesFromFloats
        CreateHookKeyframesInterpolated CreateHookLora CreateHookLoraModelOnly CreateHookModelAsLora
        CreateHookModelAsLoraModelOnly PairConditioningCombine PairConditioningSetDefaultAndCombine
        PairConditioningSetProperties PairConditioningSetPropertiesAndCombine SetClipHooks SetClipHooks.apply_hooks
        SetHookKeyframes SetModelHooksOnCond
    """.split(),
    "comfy_extras.nodes_hunyuan": """
        CLIPTextEncodeHunyuanDiT EmptyHunyuanImageLatent EmptyHunyuanLatentVideo EmptyHunyuanVideo15Latent
        HunyuanImageToVideo HunyuanRefinerLatent HunyuanVideo15ImageToVideo HunyuanVideo15LatentUpscaleWithModel
        HunyuanVideo15SuperResolution LatentUpscaleModelLoader TextEncodeHunyuanVideo_ImageToVideo
    """.split(),
    "comfy_extras.nodes_hunyuan3d": """
        EmptyLatentHunyuan3Dv2 Hunyuan3Dv2Conditioning Hunyuan3Dv2ConditioningMultiView SaveGLB VAEDecodeHunyuan3D
        VoxelToMesh VoxelToMeshBasic
    """.split(),
    "comfy_extras.nodes_hypernetwork": """
        HypernetworkLoader
    """.split(),
    "comfy_extras.nodes_hypertile": """
        HyperTile
    """.split(),
    "comfy_extras.nodes_ideogram4": """
        Ideogram4Scheduler
    """.split(),
    "comfy_extras.nodes_image_compare": """
        ImageCompare
    """.split(),
    "comfy_extras.nodes_images": """
        GetImageSize GetLatentSize ImageAddNoise ImageCrop ImageCropToMask ImageCropV2 ImageFlip ImageFromBatch
        ImageMergeTileList ImageRotate ImageScaleToMaxDimension ImageStitch PrimitiveBoundingBox RepeatImageBatch
        ResizeAndPadImage SaveAnimatedPNG SaveAnimatedWEBP SaveImageAdvanced SaveSVGNode SplitImageToTileList
    """.split(),
    "comfy_extras.nodes_ip2p": """
        InstructPixToPixConditioning
    """.split(),
    "comfy_extras.nodes_joyimage": """
        TextEncodeJoyImageEdit
    """.split(),
    "comfy_extras.nodes_json_prompt": """
        BuildJsonPromptIdeogram
    """.split(),
    "comfy_extras.nodes_kandinsky5": """
        CLIPTextEncodeKandinsky5 Kandinsky5ImageToVideo NormalizeVideoLatentStart
    """.split(),
    "comfy_extras.nodes_latent": """
        LatentAdd LatentApplyOperation LatentApplyOperationCFG LatentBatch LatentBatchSeedBehavior LatentConcat
        LatentCut LatentCutToBatch LatentInterpolate LatentMultiply LatentOperationBlend LatentOperationSharpen
        LatentOperationTonemapReinhard LatentSubtract ReplaceVideoLatentFrames
    """.split(),
    "comfy_extras.nodes_load_3d": """
        Load3D Load3DAdvanced Preview3D Preview3DAdvanced PreviewGaussianSplat PreviewPointCloud
    """.split(),
    "comfy_extras.nodes_logic": """
        AutogrowNamesTestNode AutogrowPrefixTestNode ComboOutputTestNode ComfyAndNode ComfyNotNode ComfyOrNode
        ComfyPassOrNoneNode ConvertStringToComboNode CustomCombo CustomComboNode DCTestNode InvertBooleanNode
        SoftSwitchNode SwitchNode
    """.split(),
    "comfy_extras.nodes_loop": """
        EndLoop LoopIteration LoopProgress LoopResult StartLoop
    """.split(),
    "comfy_extras.nodes_lora_debug": """
        LoraLoaderBypass LoraLoaderBypassModelOnly
    """.split(),
    "comfy_extras.nodes_lora_extract": """
        LoraSave
    """.split(),
    "comfy_extras.nodes_lora_stack": """
        LoadLoraModel LoadLoraTextEncoder
    """.split(),
    "comfy_extras.nodes_lotus": """
        LotusConditioning
    """.split(),
    "comfy_extras.nodes_lt": """
        EmptyLTXVLatentVideo GetICLoRAParameters LTXVAddGuide LTXVAddGuide.add_keyframe_index
        LTXVAddGuide.append_keyframe LTXVAddGuide.encode LTXVAddGuide.get_latent_index
        LTXVAddGuide.replace_latent_frames LTXVConcatAVLatent LTXVConditioning LTXVCropGuides LTXVDualCFGGuider
        LTXVDurationPredictor LTXVImgToVideo LTXVImgToVideoInplace LTXVModalityGuidance LTXVPreprocess
        LTXVReferenceAudio LTXVScheduler LTXVSeparateAVLatent LTXVSpatioTemporalGuidance ModelSamplingLTXV
        _append_guide_attention_entry conditioning_get_any_value get_keyframe_idxs get_noise_mask
    """.split(),
    "comfy_extras.nodes_lt_audio": """
        LTXAVTextEncoderLoader LTXVAudioVAEDecode LTXVAudioVAEEncode LTXVAudioVAELoader LTXVEmptyLatentAudio
    """.split(),
    "comfy_extras.nodes_lt_upsampler": """
        LTXVLatentUpsampler
    """.split(),
    "comfy_extras.nodes_lumina2": """
        CLIPTextEncodeLumina2 RenormCFG
    """.split(),
    "comfy_extras.nodes_mage": """
        TextEncodeMageFlowEdit
    """.split(),
    "comfy_extras.nodes_mahiro": """
        Mahiro
    """.split(),
    "comfy_extras.nodes_mask": """
        CropMask FeatherMask GrowMask ImageColorToMask ImageCompositeMasked ImageToMask InvertMask
        LatentCompositeMasked MaskComposite MaskPreview MaskToImage SolidMask ThresholdMask composite
    """.split(),
    "comfy_extras.nodes_math": """
        ComfyMathExpression
    """.split(),
    "comfy_extras.nodes_mediapipe": """
        LoadMediaPipeFaceLandmarker MediaPipeFaceLandmarker MediaPipeFaceMask MediaPipeFaceMeshVisualize
    """.split(),
    "comfy_extras.nodes_mesh_postprocess": """
        ApplyTextureToMesh BakeAmbientOcclusion BakeNormalMapFromMesh BakeTextureFromVoxel DecimateMesh FillHoles
        MeshSmoothNormals MeshTextureToImage PaintMesh RemeshMesh RenderMesh RenderUVAtlas UnwrapMesh WeldVertices
    """.split(),
    "comfy_extras.nodes_minimax_h3": """
        EmptyMiniMaxH3LatentAV MiniMaxH3AddGuide MiniMaxH3ImageToVideo MiniMaxH3ReferenceToVideo MiniMaxH3SigmaShift
    """.split(),
    "comfy_extras.nodes_minimax_music": """
        EmptyMiniMaxMusic3LatentAudio MiniMaxMusic3TextEncode
    """.split(),
    "comfy_extras.nodes_mochi": """
        EmptyMochiLatentVideo
    """.split(),
    "comfy_extras.nodes_model_advanced": """
        LCM Lotus ModelAttentionBackend ModelComputeDtype ModelNoiseScale ModelSamplingAuraFlow
        ModelSamplingContinuousEDM ModelSamplingContinuousV ModelSamplingDiscrete ModelSamplingDiscreteDistilled
        ModelSamplingFlux ModelSamplingSD3 ModelSamplingStableCascade RescaleCFG X0 rescale_zero_terminal_snr_sigmas
    """.split(),
    "comfy_extras.nodes_model_downscale": """
        PatchModelAddDownscale
    """.split(),
    "comfy_extras.nodes_model_merging": """
        CLIPAdd CLIPMergeSimple CLIPSave CLIPSubtract CheckpointSave ModelAdd ModelMergeBlocks ModelMergeSimple
        ModelSave ModelSubtract VAESave save_checkpoint
    """.split(),
    "comfy_extras.nodes_model_merging_model_specific": """
        ModelMergeAuraflow ModelMergeCosmos14B ModelMergeCosmos7B ModelMergeCosmosPredict2_14B
        ModelMergeCosmosPredict2_2B ModelMergeFlux1 ModelMergeKrea2 ModelMergeLTXV ModelMergeMochiPreview
        ModelMergeQwenImage ModelMergeSD1 ModelMergeSD2 ModelMergeSD35_Large ModelMergeSD3_2B ModelMergeSDXL
        ModelMergeWAN2_1
    """.split(),
    "comfy_extras.nodes_model_patch": """
        AnimaLLLiteApply ModelPatchLoader QwenImageDiffsynthControlnet SUPIRApply USOStyleReference
        WanUni3CControlnetApply ZImageFunControlnet
    """.split(),
    "comfy_extras.nodes_moge": """
        LoadMoGeModel MoGeGeometryToFOV MoGeInference MoGePanoramaInference MoGePointMapToMesh MoGeRender
    """.split(),
    "comfy_extras.nodes_morphology": """
        ImageRGBToYUV ImageYUVToRGB Morphology
    """.split(),
    "comfy_extras.nodes_multigpu": """
        MultiGPU_WorkUnits SelectCLIPDevice SelectModelDevice SelectVAEDevice
    """.split(),
    "comfy_extras.nodes_nag": """
        NAGuidance
    """.split(),
    "comfy_extras.nodes_nop": """
        wanBlockSwap
    """.split(),
    "comfy_extras.nodes_number_convert": """
        ComfyNumberConvert
    """.split(),
    "comfy_extras.nodes_optimalsteps": """
        OptimalStepsScheduler
    """.split(),
    "comfy_extras.nodes_pag": """
        PerturbedAttentionGuidance
    """.split(),
    "comfy_extras.nodes_painter": """
        Painter
    """.split(),
    "comfy_extras.nodes_perpneg": """
        Guider_PerpNeg PerpNeg PerpNegGuider perp_neg
    """.split(),
    "comfy_extras.nodes_photomaker": """
        PhotoMakerEncode PhotoMakerLoader
    """.split(),
    "comfy_extras.nodes_pid": """
        PiDConditioning
    """.split(),
    "comfy_extras.nodes_pixart": """
        CLIPTextEncodePixArtAlpha
    """.split(),
    "comfy_extras.nodes_post_processing": """
        BatchImagesMasksLatentsNode BatchImagesNode BatchLatentsNode BatchMasksNode Blend Blend.blend_mode Blend.g Blur
        Blur.execute ColorTransfer ImageScaleToTotalPixels Quantize Quantize.bayer ResizeImageMaskNode Sharpen
    """.split(),
    "comfy_extras.nodes_preview_any": """
        PreviewAny
    """.split(),
    "comfy_extras.nodes_primitive": """
        Boolean Float Int String StringMultiline
    """.split(),
    "comfy_extras.nodes_qwen": """
        EmptyQwenImageLayeredLatentImage TextEncodeQwenImageEdit TextEncodeQwenImageEditPlus
    """.split(),
    "comfy_extras.nodes_rebatch": """
        ImageRebatch LatentRebatch LatentRebatch.cat_batch LatentRebatch.get_batch LatentRebatch.get_slices
        LatentRebatch.slice_batch
    """.split(),
    "comfy_extras.nodes_resolution": """
        ResolutionSelector
    """.split(),
    "comfy_extras.nodes_rope": """
        ScaleROPE
    """.split(),
    "comfy_extras.nodes_rtdetr": """
        DrawBBoxes RTDETR_detect
    """.split(),
    "comfy_extras.nodes_sag": """
        SelfAttentionGuidance create_blur_map gaussian_blur_2d
    """.split(),
    "comfy_extras.nodes_sam3": """
        SAM3_Detect SAM3_TrackPreview SAM3_TrackToMask SAM3_VideoTrack
    """.split(),
    "comfy_extras.nodes_save_3d": """
        GetMeshInfo MergeMeshes MeshToFile3D RotateMesh Save3DAdvanced SaveGLB SaveGaussianSplat SavePointCloud
    """.split(),
    "comfy_extras.nodes_scail": """
        SCAIL2ColoredMask WanSCAILToVideo
    """.split(),
    "comfy_extras.nodes_sd3": """
        CLIPTextEncodeSD3 ControlNetApplySD3 EmptySD3LatentImage SkipLayerGuidanceSD3 TripleCLIPLoader
    """.split(),
    "comfy_extras.nodes_sdpose": """
        CropByBBoxes SDPoseDrawKeypoints SDPoseFaceBBoxes SDPoseKeypointExtractor
    """.split(),
    "comfy_extras.nodes_sdupscale": """
        SD_4XUpscale_Conditioning
    """.split(),
    "comfy_extras.nodes_seed": """
        SeedNode
    """.split(),
    "comfy_extras.nodes_seedvr": """
        SeedVR2Conditioning SeedVR2PostProcessing SeedVR2Preprocess SeedVR2TemporalChunk SeedVR2TemporalMerge
    """.split(),
    "comfy_extras.nodes_slg": """
        SkipLayerGuidanceDiT SkipLayerGuidanceDiTSimple
    """.split(),
    "comfy_extras.nodes_stable3d": """
        SV3D_Conditioning StableZero123_Conditioning StableZero123_Conditioning_Batched camera_embeddings
    """.split(),
    "comfy_extras.nodes_stable_cascade": """
        StableCascade_EmptyLatentImage StableCascade_StageB_Conditioning StableCascade_StageC_VAEEncode
        StableCascade_SuperResolutionControlnet
    """.split(),
    "comfy_extras.nodes_string": """
        CaseConverter ConvertArrayToString ConvertDictionaryToString JsonExtractString RegexExtract RegexMatch
        RegexReplace StringCompare StringConcatenate StringContains StringFormat StringLength StringReplace
        StringSubstring StringTrim
    """.split(),
    "comfy_extras.nodes_tag": """
        TangentialAmplifyingGuidance
    """.split(),
    "comfy_extras.nodes_tcfg": """
        TCFG score_tangential_damping
    """.split(),
    "comfy_extras.nodes_text": """
        SaveText
    """.split(),
    "comfy_extras.nodes_text_overlay": """
        TextOverlay
    """.split(),
    "comfy_extras.nodes_textgen": """
        TextGenerate TextGenerateLTX2Prompt
    """.split(),
    "comfy_extras.nodes_tomesd": """
        TomePatchModel
    """.split(),
    "comfy_extras.nodes_toolkit": """
        CreateList
    """.split(),
    "comfy_extras.nodes_torch_compile": """
        TorchCompileModel
    """.split(),
    "comfy_extras.nodes_train": """
        LoraModelLoader LossGraphNode SaveLoRA TrainLoraNode
    """.split(),
    "comfy_extras.nodes_trellis2": """
        EmptyTrellis2LatentStructure Pixal3DConditioning Trellis2Conditioning Trellis2ShapeStage Trellis2TextureStage
        Trellis2UpsampleStage VaeDecodeShapeTrellis VaeDecodeStructureTrellis2 VaeDecodeTextureTrellis
    """.split(),
    "comfy_extras.nodes_triposplat": """
        TripoSplatConditioning TripoSplatPreprocessImage TripoSplatSamplingPreview VAEDecodeTripoSplat
    """.split(),
    "comfy_extras.nodes_upscale_model": """
        ImageUpscaleWithModel UpscaleModelLoader
    """.split(),
    "comfy_extras.nodes_video": """
        ConcatenateVideo CreateVideo GetVideoComponents LoadVideo SaveVideo SaveWEBM VideoCrop VideoTrim
    """.split(),
    "comfy_extras.nodes_video_model": """
        ConditioningSetAreaPercentageVideo ImageOnlyCheckpointLoader ImageOnlyCheckpointSave SVD_img2vid_Conditioning
        VideoLinearCFGGuidance VideoTriangleCFGGuidance
    """.split(),
    "comfy_extras.nodes_void": """
        OpticalFlowLoader VOIDInpaintConditioning VOIDQuadmaskPreprocess VOIDSampler VOIDWarpedNoise
        VOIDWarpedNoiseSource
    """.split(),
    "comfy_extras.nodes_wan": """
        TrimVideoLatent Wan22FunControlToVideo Wan22ImageToVideoLatent WanAnimate2Cache WanAnimate2ToVideo
        WanAnimateToVideo WanCameraImageToVideo WanFirstLastFrameToVideo WanFunControlToVideo WanFunInpaintToVideo
        WanHuMoImageToVideo WanImageToVideo WanInfiniteTalkToVideo WanPhantomSubjectToVideo WanSoundImageToVideo
        WanSoundImageToVideoExtend WanTrackToVideo WanVaceToVideo
    """.split(),
    "comfy_extras.nodes_wandancer": """
        WanDancerEncodeAudio WanDancerPadKeyframes WanDancerPadKeyframesList WanDancerVideo
    """.split(),
    "comfy_extras.nodes_wanmove": """
        GenerateTracks WanMoveConcatTrack WanMoveTrackToVideo WanMoveTracksFromCoords WanMoveVisualizeTracks
    """.split(),
    "comfy_extras.nodes_webcam": """
        WebcamCapture
    """.split(),
    "comfy_extras.nodes_zimage": """
        TextEncodeZImageOmni
    """.split(),
    "execution": """
        CacheSet CacheType DuplicateNodeError ExecutionResult IsChangedCache MAXIMUM_HISTORY_SIZE PromptExecutor
        PromptExecutor.handle_execution_error PromptQueue SENSITIVE_EXTRA_DATA_KEYS format_value full_type_name
        get_input_data get_output_data map_node_over_list recursive_execute validate_inputs validate_prompt
    """.split(),
    "latent_preview": """
        Latent2RGBPreviewer LatentPreviewer MAX_PREVIEW_RESOLUTION TAESD TAESDPreviewerImpl default_preview_method
        get_previewer prepare_callback preview_to_image set_preview_method
    """.split(),
    "nodes": """
        CLIPLoader CLIPSetLastLayer CLIPTextEncode CLIPVisionEncode CLIPVisionLoader CheckpointLoader
        CheckpointLoaderSimple ConditioningAverage ConditioningAverage.addWeighted ConditioningCombine
        ConditioningConcat ConditioningMultiply ConditioningSetArea ConditioningSetAreaPercentage
        ConditioningSetAreaStrength ConditioningSetMask ConditioningSetTimestepRange ConditioningZeroOut
        ControlNetApply ControlNetApplyAdvanced ControlNetLoader DiffControlNetLoader DiffusersLoader DualCLIPLoader
        EXTENSION_WEB_DIRS EmptyImage EmptyLatentImage GLIGENLoader GLIGENTextBoxApply ImageBatch ImageInvert
        ImagePadForOutpaint ImageScale ImageScale.upscale_methods ImageScaleBy InpaintModelConditioning KSampler
        KSamplerAdvanced LOADED_MODULE_DIRS LatentBlend LatentBlend.blend_mode LatentComposite LatentCrop LatentFlip
        LatentFromBatch LatentRotate LatentUpscale LatentUpscaleBy LoadImage LoadImageMask LoadImageOutput LoadLatent
        LoraLoader LoraLoaderModelOnly MAX_RESOLUTION NODE_CLASS_MAPPINGS NODE_DISPLAY_NAME_MAPPINGS PreviewImage
        RepeatLatentBatch SaveImage SaveLatent SetLatentNoiseMask StyleModelApply StyleModelLoader UNETLoader VAEDecode
        VAEDecodeTiled VAEEncode VAEEncodeForInpaint VAEEncodeTiled VAELoader VAELoader.load_taesd VAELoader.vae_list
        before_node_execution common_ksampler get_module_name get_relative_module_name init_builtin_api_nodes
        init_builtin_extra_nodes init_external_custom_nodes init_extra_nodes init_public_apis interrupt_processing
        load_custom_node unCLIPCheckpointLoader unCLIPConditioning
    """.split(),
}

# Modules of which no name is known.
EMPTY = """
    app app.app_settings app.custom_node_manager app.database app.database.db app.frontend_management app.model_manager
    app.user_manager comfy comfy.cldm comfy.extra_samplers comfy.k_diffusion comfy.k_diffusion.sa_solver comfy.ldm
    comfy.ldm.ace comfy.ldm.ace.model comfy.ldm.anima comfy.ldm.audio comfy.ldm.audio.dit comfy.ldm.aura
    comfy.ldm.cascade comfy.ldm.cascade.common comfy.ldm.cascade.stage_a comfy.ldm.cascade.stage_b
    comfy.ldm.cascade.stage_c comfy.ldm.chroma comfy.ldm.cosmos comfy.ldm.cosmos.model comfy.ldm.flux
    comfy.ldm.flux.controlnet comfy.ldm.genmo comfy.ldm.genmo.joint_model
    comfy.ldm.genmo.joint_model.asymm_models_joint comfy.ldm.hidream comfy.ldm.hunyuan_video
    comfy.ldm.hunyuan_video.model comfy.ldm.hydit comfy.ldm.hydit.models comfy.ldm.lightricks comfy.ldm.lightricks.vae
    comfy.ldm.lumina comfy.ldm.minimax comfy.ldm.models comfy.ldm.modules comfy.ldm.modules.diffusionmodules
    comfy.ldm.modules.distributions comfy.ldm.modules.encoders comfy.ldm.modules.temporal_ae comfy.ldm.omnigen
    comfy.ldm.omnigen.omnigen2 comfy.ldm.pixart comfy.ldm.pixart.blocks comfy.ldm.pixart.pixartms comfy.ldm.qwen_image
    comfy.ldm.wan comfy.memory_management comfy.t2i_adapter comfy.taesd comfy_api comfy_extras
    comfy_extras.chainner_models folder_paths
""".split()

# Classes of nodes by the names under which they are registered, where these differ.
REGISTERED = {
    "Blend": "ImageBlend",
    "Blur": "ImageBlur",
    "Boolean": "PrimitiveBoolean",
    "CLIPAdd": "CLIPMergeAdd",
    "CLIPSubtract": "CLIPMergeSubtract",
    "CombineHooks": "CombineHooks2",
    "CombineHooksEight": "CombineHooks8",
    "CombineHooksFour": "CombineHooks4",
    "ConditioningSetDefaultAndCombine": "ConditioningSetDefaultCombine",
    "EpsilonScaling": "Epsilon Scaling",
    "Float": "PrimitiveFloat",
    "ImageRebatch": "RebatchImages",
    "Int": "PrimitiveInt",
    "LatentRebatch": "RebatchLatents",
    "ModelAdd": "ModelMergeAdd",
    "ModelSubtract": "ModelMergeSubtract",
    "PairConditioningSetDefaultAndCombine": "PairConditioningSetDefaultCombine",
    "Quantize": "ImageQuantize",
    "Sharpen": "ImageSharpen",
    "String": "PrimitiveString",
    "StringMultiline": "PrimitiveStringMultiline",
    "SwitchNode": "ComfySwitchNode",
}

# Names that are other things of the host, or modules of libraries.
ALIASES = {
    "comfy.k_diffusion.sampling.torch": "torch",
    "comfy.model_patcher.CoreModelPatcher": "comfy.model_patcher.ModelPatcher",
    "comfy.model_patcher.PatcherInjection": "comfy.patcher_extension.PatcherInjection",
    "comfy.model_patcher.QuantizedTensor": "comfy.quant_ops.QuantizedTensor",
    "comfy.sample.np": "numpy",
    "comfy.samplers.k_diffusion_sampling": "comfy.k_diffusion.sampling",
    "comfy.sd.model_detection": "comfy.model_detection",
    "comfy.supported_models.model_base": "comfy.model_base",
    "comfy.supported_models.supported_models_base": "comfy.supported_models_base",
    "comfy_extras.nodes_lt.SymmetricPatchifier": "comfy.ldm.lightricks.symmetric_patchifier.SymmetricPatchifier",
    "comfy_extras.nodes_lt.latent_to_pixel_coords": "comfy.ldm.lightricks.symmetric_patchifier.latent_to_pixel_coords",
}
