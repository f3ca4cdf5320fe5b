"""How the methods of the host's built-in classes are called: module, then per line the class (and its node, where that has
another name), the method, and the arguments in order; those with a question mark have defaults. After the bar: further names
of the same method. Written by `tools/call_order.py`; not to be edited."""

CALLS = """
nodes
 CLIPTextEncode encode clip text
 ConditioningCombine combine conditioning_1 conditioning_2
 ConditioningAverage addWeighted conditioning_to conditioning_from conditioning_to_strength
 ConditioningConcat concat conditioning_to conditioning_from
 ConditioningSetArea append conditioning width height x y strength
 ConditioningSetAreaPercentage append conditioning width height x y strength
 ConditioningSetAreaStrength append conditioning strength
 ConditioningSetMask append conditioning mask set_cond_area strength
 ConditioningZeroOut zero_out conditioning
 ConditioningSetTimestepRange set_range conditioning start end
 VAEDecode decode vae samples
 VAEDecodeTiled decode vae samples tile_size overlap? temporal_size? temporal_overlap?
 VAEEncode encode vae pixels
 VAEEncodeTiled encode vae pixels tile_size overlap temporal_size? temporal_overlap?
 VAEEncodeForInpaint encode vae pixels mask grow_mask_by?
 InpaintModelConditioning encode positive negative pixels vae mask noise_mask?
 SaveLatent save samples filename_prefix? prompt? extra_pnginfo?
 LoadLatent load latent
 CheckpointLoader load_checkpoint config_name ckpt_name
 CheckpointLoaderSimple load_checkpoint ckpt_name
 DiffusersLoader load_checkpoint model_path output_vae? output_clip?
 unCLIPCheckpointLoader load_checkpoint ckpt_name output_vae? output_clip?
 CLIPSetLastLayer set_last_layer clip stop_at_clip_layer
 LoraLoader load_lora model clip lora_name strength_model strength_clip
 LoraLoaderModelOnly load_lora_model_only model lora_name strength_model
 VAELoader load_vae vae_name
 ControlNetLoader load_controlnet control_net_name
 DiffControlNetLoader load_controlnet model control_net_name
 ControlNetApply apply_controlnet conditioning control_net image strength
 ControlNetApplyAdvanced apply_controlnet positive negative control_net image strength start_percent end_percent vae? extra_concat?
 UNETLoader load_unet unet_name weight_dtype
 CLIPLoader load_clip clip_name type? device?
 DualCLIPLoader load_clip clip_name1 clip_name2 type device?
 CLIPVisionLoader load_clip clip_name
 CLIPVisionEncode encode clip_vision image crop
 StyleModelLoader load_style_model style_model_name
 StyleModelApply apply_stylemodel conditioning style_model clip_vision_output strength strength_type
 unCLIPConditioning apply_adm conditioning clip_vision_output strength noise_augmentation
 GLIGENLoader load_gligen gligen_name
 GLIGENTextBoxApply append conditioning_to clip gligen_textbox_model text width height x y
 EmptyLatentImage generate width height batch_size?
 LatentFromBatch frombatch samples batch_index length
 RepeatLatentBatch repeat samples amount
 LatentUpscale upscale samples upscale_method width height crop
 LatentUpscaleBy upscale samples upscale_method scale_by
 LatentRotate rotate samples rotation
 LatentFlip flip samples flip_method
 LatentComposite composite samples_to samples_from x y composite_method? feather?
 LatentBlend blend samples1 samples2 blend_factor blend_mode?
 LatentCrop crop samples width height x y
 SetLatentNoiseMask set_mask samples mask
 KSampler sample model seed steps cfg sampler_name scheduler positive negative latent_image denoise?
 KSamplerAdvanced sample model add_noise noise_seed steps cfg sampler_name scheduler positive negative latent_image start_at_step end_at_step return_with_leftover_noise denoise?
 SaveImage save_images images filename_prefix? prompt? extra_pnginfo?
 LoadImage load_image image
 LoadImageMask load_image image channel
 ImageScale upscale image upscale_method width height crop
 ImageScaleBy upscale image upscale_method scale_by
 ImageInvert invert image
 ImageBatch batch image1 image2
 EmptyImage generate width height batch_size? color?
 ImagePadForOutpaint expand_image image left top right bottom feathering
comfy_extras.nodes_ace
 TextEncodeAceStepAudio execute clip tags lyrics lyrics_strength
 EmptyAceStepLatentAudio execute seconds batch_size
comfy_extras.nodes_advanced_samplers
 SamplerLCMUpscale execute scale_ratio scale_steps upscale_method
 SamplerEulerCFGpp execute version
comfy_extras.nodes_align_your_steps
 AlignYourStepsScheduler execute model_type steps denoise
comfy_extras.nodes_apg
 APG execute model eta norm_threshold momentum
comfy_extras.nodes_attention_multiply
 UNetSelfAttentionMultiply execute model q k v out
 UNetCrossAttentionMultiply execute model q k v out
 CLIPAttentionMultiply execute clip q k v out
 UNetTemporalAttentionMultiply execute model self_structural self_temporal cross_structural cross_temporal
comfy_extras.nodes_audio
 EmptyLatentAudio execute seconds batch_size | generate
 ConditioningStableAudio execute positive negative seconds_start seconds_total | append
 VAEEncodeAudio execute vae audio | encode
 VAEDecodeAudio execute vae samples | decode
 SaveAudio execute audio filename_prefix? format? | save_flac
 SaveAudioMP3 execute audio filename_prefix? format? quality? | save_mp3
 SaveAudioOpus execute audio filename_prefix? format? quality? | save_opus
 PreviewAudio execute audio | save_flac
 LoadAudio execute audio | load
 RecordAudio execute audio | load
 TrimAudioDuration execute audio start_index duration | trim
 SplitAudioChannels execute audio | separate
 AudioConcat execute audio1 audio2 direction | concat
 AudioMerge execute audio1 audio2 merge_method | merge
 AudioAdjustVolume execute audio volume | adjust_volume
 EmptyAudio execute duration sample_rate channels | create_empty_audio
comfy_extras.nodes_audio_encoder
 AudioEncoderLoader execute audio_encoder_name
 AudioEncoderEncode execute audio_encoder audio
comfy_extras.nodes_camera_trajectory
 WanCameraEmbedding execute camera_pose width height length speed? fx? fy? cx? cy?
comfy_extras.nodes_canny
 Canny execute image low_threshold high_threshold
comfy_extras.nodes_cfg
 CFGZeroStar execute model
 CFGNorm execute model strength
comfy_extras.nodes_chroma_radiance
 EmptyChromaRadianceLatentImage execute
 ChromaRadianceOptions execute
comfy_extras.nodes_clip_sdxl
 CLIPTextEncodeSDXLRefiner execute clip ascore width height text
 CLIPTextEncodeSDXL execute clip width height crop_w crop_h target_width target_height text_g text_l
comfy_extras.nodes_compositing
 PorterDuffImageComposite execute source source_alpha destination destination_alpha mode
 SplitImageWithAlpha execute image
 JoinImageWithAlpha execute image alpha
comfy_extras.nodes_cond
 CLIPTextEncodeControlnet execute clip conditioning text
 T5TokenizerOptions execute clip min_padding min_length
comfy_extras.nodes_context_windows
 ContextWindowsManualNode=ContextWindowsManual execute model context_length context_overlap context_schedule context_stride closed_loop fuse_method dim freenoise cond_retain_index_list? split_conds_to_windows?
 WanContextWindowsManualNode=WanContextWindowsManual execute model context_length context_overlap context_schedule context_stride closed_loop fuse_method freenoise cond_retain_index_list? split_conds_to_windows?
comfy_extras.nodes_controlnet
 SetUnionControlNetType execute control_net type | set_controlnet_type
 ControlNetInpaintingAliMamaApply execute positive negative control_net vae image mask strength start_percent end_percent | apply_inpaint_controlnet
comfy_extras.nodes_cosmos
 EmptyCosmosLatentVideo execute width height length batch_size?
 CosmosImageToVideoLatent execute vae width height length batch_size start_image? end_image?
 CosmosPredict2ImageToVideoLatent execute vae width height length batch_size start_image? end_image?
comfy_extras.nodes_custom_sampler
 BasicScheduler execute model scheduler steps denoise | get_sigmas
 KarrasScheduler execute steps sigma_max sigma_min rho | get_sigmas
 ExponentialScheduler execute steps sigma_max sigma_min | get_sigmas
 PolyexponentialScheduler execute steps sigma_max sigma_min rho | get_sigmas
 LaplaceScheduler execute steps sigma_max sigma_min mu beta | get_sigmas
 SDTurboScheduler execute model steps denoise | get_sigmas
 BetaSamplingScheduler execute model steps alpha beta | get_sigmas
 VPScheduler execute steps beta_d beta_min eps_s | get_sigmas
 SplitSigmas execute sigmas step | get_sigmas
 SplitSigmasDenoise execute sigmas denoise | get_sigmas
 FlipSigmas execute sigmas | get_sigmas
 SetFirstSigma execute sigmas sigma | set_first_sigma
 ExtendIntermediateSigmas execute sigmas steps start_at_sigma end_at_sigma spacing | extend
 SamplingPercentToSigma execute model sampling_percent return_actual_sigma | get_sigma
 KSamplerSelect execute sampler_name | get_sampler
 SamplerDPMPP_3M_SDE execute eta s_noise noise_device | get_sampler
 SamplerDPMPP_2M_SDE execute solver_type eta s_noise noise_device | get_sampler
 SamplerDPMPP_SDE execute eta s_noise r noise_device | get_sampler
 SamplerDPMPP_2S_Ancestral execute eta s_noise | get_sampler
 SamplerEulerAncestral execute eta s_noise | get_sampler
 SamplerEulerAncestralCFGPP execute eta s_noise | get_sampler
 SamplerLMS execute order | get_sampler
 SamplerDPMAdaptative execute order rtol atol h_init pcoeff icoeff dcoeff accept_safety eta s_noise | get_sampler
 SamplerER_SDE execute solver_type max_stage eta s_noise | get_sampler
 SamplerSASolver execute model eta sde_start_percent sde_end_percent s_noise predictor_order corrector_order use_pece simple_order_2 | get_sampler
 SamplerSEEDS2 execute solver_type eta s_noise r
 SamplerCustom execute model add_noise noise_seed cfg positive negative sampler sigmas latent_image | sample
 BasicGuider execute model conditioning | get_guider
 CFGGuider execute model positive negative cfg | get_guider
 DualCFGGuider execute model cond1 cond2 negative cfg_conds cfg_cond2_negative style | get_guider
 DisableNoise execute | get_noise
 RandomNoise execute noise_seed | get_noise
 SamplerCustomAdvanced execute noise guider sampler sigmas latent_image | sample
 AddNoise execute model noise sigmas latent_image | add_noise
 ManualSigmas execute sigmas
comfy_extras.nodes_dataset
 LoadImageDataSetFromFolderNode=LoadImageDataSetFromFolder execute folder
 LoadImageTextDataSetFromFolderNode=LoadImageTextDataSetFromFolder execute folder
 SaveImageDataSetToFolderNode=SaveImageDataSetToFolder execute images folder_name filename_prefix
 SaveImageTextDataSetToFolderNode=SaveImageTextDataSetToFolder execute images texts folder_name filename_prefix
 ImageProcessingNode execute images
 TextProcessingNode execute texts
 ShuffleImageTextDatasetNode=ShuffleImageTextDataset execute images texts seed
 ResolutionBucket execute latents conditioning
 MakeTrainingDataset execute images vae clip texts?
 SaveTrainingDataset execute latents conditioning folder_name shard_size
 LoadTrainingDataset execute folder_name
comfy_extras.nodes_differential_diffusion
 DifferentialDiffusion execute model strength?
comfy_extras.nodes_easycache
 EasyCacheNode=EasyCache execute model reuse_threshold start_percent end_percent verbose
 LazyCacheNode=LazyCache execute model reuse_threshold start_percent end_percent verbose
comfy_extras.nodes_edit_model
 ReferenceLatent execute conditioning latent?
comfy_extras.nodes_eps
 EpsilonScaling=Epsilon+Scaling execute model scaling_factor
 TemporalScoreRescaling execute model tsr_k tsr_sigma
comfy_extras.nodes_flux
 CLIPTextEncodeFlux execute clip clip_l t5xxl guidance | encode
 EmptyFlux2LatentImage execute width height batch_size?
 FluxGuidance execute conditioning guidance | append
 FluxDisableGuidance execute conditioning | append
 FluxKontextImageScale execute image | scale
 FluxKontextMultiReferenceLatentMethod execute conditioning reference_latents_method | append
 Flux2Scheduler execute steps width height
comfy_extras.nodes_freelunch
 FreeU execute model b1 b2 s1 s2 | patch
 FreeU_V2 execute model b1 b2 s1 s2 | patch
comfy_extras.nodes_fresca
 FreSca execute model scale_low scale_high freq_cutoff
comfy_extras.nodes_gits
 GITSScheduler execute coeff steps denoise
comfy_extras.nodes_hidream
 QuadrupleCLIPLoader execute clip_name1 clip_name2 clip_name3 clip_name4
 CLIPTextEncodeHiDream execute clip clip_l clip_g t5xxl llama
comfy_extras.nodes_hooks
 PairConditioningSetProperties set_properties positive_NEW negative_NEW strength set_cond_area mask? hooks? timesteps?
 PairConditioningSetPropertiesAndCombine set_properties positive negative positive_NEW negative_NEW strength set_cond_area mask? hooks? timesteps?
 ConditioningSetProperties set_properties cond_NEW strength set_cond_area mask? hooks? timesteps?
 ConditioningSetPropertiesAndCombine set_properties cond cond_NEW strength set_cond_area mask? hooks? timesteps?
 PairConditioningCombine combine positive_A negative_A positive_B negative_B
 PairConditioningSetDefaultAndCombine=PairConditioningSetDefaultCombine set_default_and_combine positive negative positive_DEFAULT negative_DEFAULT hooks?
 ConditioningSetDefaultAndCombine=ConditioningSetDefaultCombine set_default_and_combine cond cond_DEFAULT hooks?
 SetClipHooks apply_hooks clip schedule_clip apply_to_conds hooks?
 ConditioningTimestepsRange create_range start_percent end_percent
 CreateHookLora create_hook lora_name strength_model strength_clip prev_hooks?
 CreateHookLoraModelOnly create_hook_model_only lora_name strength_model prev_hooks?
 CreateHookModelAsLora create_hook ckpt_name strength_model strength_clip prev_hooks?
 CreateHookModelAsLoraModelOnly create_hook_model_only ckpt_name strength_model prev_hooks?
 SetHookKeyframes set_hook_keyframes hooks hook_kf?
 CreateHookKeyframe create_hook_keyframe strength_mult start_percent prev_hook_kf?
 CreateHookKeyframesInterpolated create_hook_keyframes strength_start strength_end interpolation start_percent end_percent keyframes_count print_keyframes? prev_hook_kf?
 CreateHookKeyframesFromFloats create_hook_keyframes floats_strength start_percent end_percent prev_hook_kf? print_keyframes?
 SetModelHooksOnCond attach_hook conditioning hooks
 CombineHooks=CombineHooks2 combine_hooks hooks_A? hooks_B?
 CombineHooksFour=CombineHooks4 combine_hooks hooks_A? hooks_B? hooks_C? hooks_D?
 CombineHooksEight=CombineHooks8 combine_hooks hooks_A? hooks_B? hooks_C? hooks_D? hooks_E? hooks_F? hooks_G? hooks_H?
comfy_extras.nodes_hunyuan
 CLIPTextEncodeHunyuanDiT execute clip bert mt5xl | encode
 EmptyHunyuanLatentVideo execute width height length batch_size? | generate
 EmptyHunyuanVideo15Latent execute width height length batch_size?
 HunyuanVideo15ImageToVideo execute positive negative vae width height length batch_size start_image? clip_vision_output?
 HunyuanVideo15SuperResolution execute positive negative latent noise_augmentation vae? start_image? clip_vision_output?
 LatentUpscaleModelLoader execute model_name
 HunyuanVideo15LatentUpscaleWithModel execute model samples upscale_method width height crop
 TextEncodeHunyuanVideo_ImageToVideo execute clip clip_vision_output prompt image_interleave | encode
 HunyuanImageToVideo execute positive vae width height length batch_size guidance_type start_image? | encode
 EmptyHunyuanImageLatent execute width height batch_size? | generate
 HunyuanRefinerLatent execute positive negative latent noise_augmentation
comfy_extras.nodes_hunyuan3d
 EmptyLatentHunyuan3Dv2 execute resolution batch_size | generate
 Hunyuan3Dv2Conditioning execute clip_vision_output | encode
 Hunyuan3Dv2ConditioningMultiView execute front? left? back? right? | encode
 VAEDecodeHunyuan3D execute vae samples num_chunks octree_resolution | decode
 VoxelToMeshBasic execute voxel threshold | decode
 VoxelToMesh execute voxel algorithm threshold | decode
 SaveGLB execute mesh filename_prefix
comfy_extras.nodes_hypernetwork
 HypernetworkLoader execute model hypernetwork_name strength | load_hypernetwork
comfy_extras.nodes_hypertile
 HyperTile execute model tile_size swap_size max_depth scale_depth
comfy_extras.nodes_images
 ImageCrop execute image width height x y | crop
 RepeatImageBatch execute image amount | repeat
 ImageFromBatch execute image batch_index length | frombatch
 ImageAddNoise execute image seed strength | repeat
 SaveAnimatedWEBP execute images fps filename_prefix lossless quality method num_frames? | save_images
 SaveAnimatedPNG execute images fps compress_level filename_prefix? | save_images
 ImageStitch execute image1 direction match_image_size spacing_width spacing_color image2? | stitch
 ResizeAndPadImage execute image target_width target_height padding_color interpolation | resize_and_pad
 SaveSVGNode execute svg filename_prefix? | save_svg
 GetImageSize execute image | get_size
 ImageRotate execute image rotation | rotate
 ImageFlip execute image flip_method | flip
 ImageScaleToMaxDimension execute image upscale_method largest_size | upscale
comfy_extras.nodes_ip2p
 InstructPixToPixConditioning execute positive negative pixels vae
comfy_extras.nodes_kandinsky5
 Kandinsky5ImageToVideo execute positive negative vae width height length batch_size start_image?
 NormalizeVideoLatentStart execute latent start_frame_count reference_frame_count
 CLIPTextEncodeKandinsky5 execute clip clip_l qwen25_7b
comfy_extras.nodes_latent
 LatentAdd execute samples1 samples2
 LatentSubtract execute samples1 samples2
 LatentMultiply execute samples multiplier
 LatentInterpolate execute samples1 samples2 ratio
 LatentConcat execute samples1 samples2 dim
 LatentCut execute samples dim index amount
 LatentCutToBatch execute samples dim slice_size
 LatentBatch execute samples1 samples2
 LatentBatchSeedBehavior execute samples seed_behavior
 LatentApplyOperation execute samples operation
 LatentApplyOperationCFG execute model operation
 LatentOperationTonemapReinhard execute multiplier
 LatentOperationSharpen execute sharpen_radius sigma alpha
 ReplaceVideoLatentFrames execute destination index source?
comfy_extras.nodes_load_3d
 Load3D execute model_file image | process
 Preview3D execute model_file | process
comfy_extras.nodes_logic
 SwitchNode=ComfySwitchNode execute switch on_true on_false
 SoftSwitchNode=ComfySoftSwitchNode execute switch on_true? on_false?
 CustomComboNode=CustomCombo execute choice
 DCTestNode execute combo
 AutogrowNamesTestNode execute autogrow
 AutogrowPrefixTestNode execute autogrow
 ComboOutputTestNode execute combo combo2
 ConvertStringToComboNode execute string
 InvertBooleanNode execute boolean
comfy_extras.nodes_lora_extract
 LoraSave execute filename_prefix rank lora_type bias_diff model_diff? text_encoder_diff?
comfy_extras.nodes_lotus
 LotusConditioning execute
comfy_extras.nodes_lt
 EmptyLTXVLatentVideo execute width height length batch_size? | generate
 LTXVImgToVideo execute positive negative image vae width height length batch_size strength | generate
 LTXVAddGuide execute positive negative vae latent image frame_idx strength | generate
 LTXVCropGuides execute positive negative latent | crop
 LTXVConditioning execute positive negative frame_rate
 ModelSamplingLTXV execute model max_shift base_shift latent?
 LTXVScheduler execute steps max_shift base_shift stretch terminal latent?
 LTXVPreprocess execute image img_compression | preprocess
comfy_extras.nodes_lumina2
 RenormCFG execute model cfg_trunc renorm_cfg
 CLIPTextEncodeLumina2 execute clip user_prompt system_prompt
comfy_extras.nodes_mahiro
 Mahiro execute model
comfy_extras.nodes_mask
 LatentCompositeMasked execute destination source x y resize_source mask? | composite
 ImageCompositeMasked execute destination source x y resize_source mask? | composite
 MaskToImage execute mask | mask_to_image
 ImageToMask execute image channel | image_to_mask
 ImageColorToMask execute image color | image_to_mask
 SolidMask execute value width height | solid
 InvertMask execute mask | invert
 CropMask execute mask x y width height | crop
 MaskComposite execute destination source x y operation | combine
 FeatherMask execute mask left top right bottom | feather
 GrowMask execute mask expand tapered_corners | expand_mask
 ThresholdMask execute mask value | image_to_mask
 MaskPreview execute mask filename_prefix?
comfy_extras.nodes_mochi
 EmptyMochiLatentVideo execute width height length batch_size?
comfy_extras.nodes_model_advanced
 ModelSamplingDiscrete patch model sampling zsnr
 ModelSamplingStableCascade patch model shift
 ModelSamplingSD3 patch model shift multiplier?
 ModelSamplingAuraFlow patch_aura model shift
 ModelSamplingFlux patch model max_shift base_shift width height
 ModelSamplingContinuousEDM patch model sampling sigma_max sigma_min
 ModelSamplingContinuousV patch model sampling sigma_max sigma_min
 RescaleCFG patch model multiplier
 ModelComputeDtype patch model dtype
comfy_extras.nodes_model_downscale
 PatchModelAddDownscale execute model block_number downscale_factor start_percent end_percent downscale_after_skip downscale_method upscale_method
comfy_extras.nodes_model_merging
 ModelMergeSimple merge model1 model2 ratio
 ModelSubtract=ModelMergeSubtract merge model1 model2 multiplier
 ModelAdd=ModelMergeAdd merge model1 model2
 CLIPMergeSimple merge clip1 clip2 ratio
 CLIPSubtract=CLIPMergeSubtract merge clip1 clip2 multiplier
 CLIPAdd=CLIPMergeAdd merge clip1 clip2
 ModelMergeBlocks merge model1 model2
 CheckpointSave save model clip vae filename_prefix prompt? extra_pnginfo?
 CLIPSave save clip filename_prefix prompt? extra_pnginfo?
 VAESave save vae filename_prefix prompt? extra_pnginfo?
 ModelSave save model filename_prefix prompt? extra_pnginfo?
comfy_extras.nodes_model_patch
 ModelPatchLoader load_model_patch name
 QwenImageDiffsynthControlnet diffsynth_controlnet model model_patch vae image? strength? inpaint_image? mask?
 USOStyleReference apply_patch model model_patch clip_vision_output
comfy_extras.nodes_morphology
 Morphology execute image operation kernel_size
 ImageRGBToYUV execute image
 ImageYUVToRGB execute Y U V
comfy_extras.nodes_nop
 wanBlockSwap execute model
comfy_extras.nodes_optimalsteps
 OptimalStepsScheduler execute model_type steps denoise
comfy_extras.nodes_pag
 PerturbedAttentionGuidance execute model scale
comfy_extras.nodes_perpneg
 PerpNeg execute model empty_conditioning neg_scale
 PerpNegGuider execute model positive negative empty_conditioning cfg neg_scale
comfy_extras.nodes_photomaker
 PhotoMakerLoader execute photomaker_model_name
 PhotoMakerEncode execute photomaker image clip text
comfy_extras.nodes_pixart
 CLIPTextEncodePixArtAlpha execute clip width height text
comfy_extras.nodes_post_processing
 Blend=ImageBlend execute image1 image2 blend_factor blend_mode
 Blur=ImageBlur execute image blur_radius sigma
 Quantize=ImageQuantize execute image colors dither
 Sharpen=ImageSharpen execute image sharpen_radius sigma alpha
 ImageScaleToTotalPixels execute image upscale_method megapixels resolution_steps
 ResizeImageMaskNode execute input scale_method resize_type
 BatchImagesNode execute images
 BatchMasksNode execute masks
 BatchLatentsNode execute latents
 BatchImagesMasksLatentsNode=BatchImagesMasksLatentsNode execute inputs
comfy_extras.nodes_preview_any
 PreviewAny main source?
comfy_extras.nodes_primitive
 String=PrimitiveString execute value
 StringMultiline=PrimitiveStringMultiline execute value
 Int=PrimitiveInt execute value
 Float=PrimitiveFloat execute value
 Boolean=PrimitiveBoolean execute value
comfy_extras.nodes_qwen
 TextEncodeQwenImageEdit execute clip prompt vae? image?
 TextEncodeQwenImageEditPlus execute clip prompt vae? image1? image2? image3?
 EmptyQwenImageLayeredLatentImage execute width height layers batch_size?
comfy_extras.nodes_rebatch
 LatentRebatch=RebatchLatents execute latents batch_size
 ImageRebatch=RebatchImages execute images batch_size
comfy_extras.nodes_rope
 ScaleROPE execute model scale_x shift_x scale_y shift_y scale_t shift_t
comfy_extras.nodes_sag
 SelfAttentionGuidance execute model scale blur_sigma
comfy_extras.nodes_sd3
 TripleCLIPLoader execute clip_name1 clip_name2 clip_name3 | load_clip
 EmptySD3LatentImage execute width height batch_size? | generate
 CLIPTextEncodeSD3 execute clip clip_l clip_g t5xxl empty_padding | encode
 ControlNetApplySD3 execute positive negative control_net image strength start_percent end_percent vae? | apply_controlnet
 SkipLayerGuidanceSD3 execute model layers scale start_percent end_percent | skip_guidance_sd3
comfy_extras.nodes_sdupscale
 SD_4XUpscale_Conditioning execute images positive negative scale_ratio noise_augmentation
comfy_extras.nodes_slg
 SkipLayerGuidanceDiT execute model scale start_percent end_percent double_layers? single_layers? rescaling_scale? | skip_guidance
 SkipLayerGuidanceDiTSimple execute model start_percent end_percent double_layers? single_layers? | skip_guidance
comfy_extras.nodes_stable3d
 StableZero123_Conditioning execute clip_vision init_image vae width height batch_size elevation azimuth
 StableZero123_Conditioning_Batched execute clip_vision init_image vae width height batch_size elevation azimuth elevation_batch_increment azimuth_batch_increment
 SV3D_Conditioning execute clip_vision init_image vae width height video_frames elevation
comfy_extras.nodes_stable_cascade
 StableCascade_EmptyLatentImage execute width height compression batch_size?
 StableCascade_StageC_VAEEncode execute image vae compression
 StableCascade_StageB_Conditioning execute conditioning stage_c
 StableCascade_SuperResolutionControlnet execute image vae
comfy_extras.nodes_string
 StringConcatenate execute string_a string_b delimiter
 StringSubstring execute string start end
 StringLength execute string
 CaseConverter execute string mode
 StringTrim execute string mode
 StringReplace execute string find replace
 StringContains execute string substring case_sensitive
 StringCompare execute string_a string_b mode case_sensitive
 RegexMatch execute string regex_pattern case_insensitive multiline dotall
 RegexExtract execute string regex_pattern mode case_insensitive multiline dotall group_index
 RegexReplace execute string regex_pattern replace case_insensitive? multiline? dotall? count?
comfy_extras.nodes_tcfg
 TCFG execute model
comfy_extras.nodes_tomesd
 TomePatchModel execute model ratio
comfy_extras.nodes_torch_compile
 TorchCompileModel execute model backend
comfy_extras.nodes_train
 TrainLoraNode execute model latents positive batch_size steps grad_accumulation_steps learning_rate rank optimizer loss_function seed training_dtype lora_dtype algorithm gradient_checkpointing existing_lora bucket_mode
 LoraModelLoader execute model lora strength_model
 SaveLoRA execute lora prefix steps?
 LossGraphNode execute loss filename_prefix prompt? extra_pnginfo?
comfy_extras.nodes_upscale_model
 UpscaleModelLoader execute model_name | load_model
 ImageUpscaleWithModel execute upscale_model image | upscale
comfy_extras.nodes_video
 SaveWEBM execute images codec fps filename_prefix crf
 SaveVideo execute video filename_prefix format codec
 CreateVideo execute images fps audio?
 GetVideoComponents execute video
 LoadVideo execute file
comfy_extras.nodes_video_model
 ImageOnlyCheckpointLoader load_checkpoint ckpt_name output_vae? output_clip?
 SVD_img2vid_Conditioning encode clip_vision init_image vae width height video_frames motion_bucket_id fps augmentation_level
 VideoLinearCFGGuidance patch model min_cfg
 VideoTriangleCFGGuidance patch model min_cfg
 ConditioningSetAreaPercentageVideo append conditioning width height temporal x y z strength
comfy_extras.nodes_wan
 WanImageToVideo execute positive negative vae width height length batch_size start_image? clip_vision_output?
 WanFunControlToVideo execute positive negative vae width height length batch_size start_image? clip_vision_output? control_video?
 Wan22FunControlToVideo execute positive negative vae width height length batch_size ref_image? start_image? control_video?
 WanFirstLastFrameToVideo execute positive negative vae width height length batch_size start_image? end_image? clip_vision_start_image? clip_vision_end_image?
 WanFunInpaintToVideo execute positive negative vae width height length batch_size start_image? end_image? clip_vision_output?
 WanVaceToVideo execute positive negative vae width height length batch_size strength control_video? control_masks? reference_image?
 TrimVideoLatent execute samples trim_amount
 WanCameraImageToVideo execute positive negative vae width height length batch_size start_image? clip_vision_output? camera_conditions?
 WanPhantomSubjectToVideo execute positive negative vae width height length batch_size images
 WanTrackToVideo execute positive negative vae tracks width height length batch_size temperature topk start_image? clip_vision_output?
 WanSoundImageToVideo execute positive negative vae width height length batch_size ref_image? audio_encoder_output? control_video? ref_motion?
 WanSoundImageToVideoExtend execute positive negative vae length video_latent ref_image? audio_encoder_output? control_video?
 WanHuMoImageToVideo execute positive negative vae width height length batch_size ref_image? audio_encoder_output?
 WanAnimateToVideo execute positive negative vae width height length batch_size continue_motion_max_frames video_frame_offset reference_image? clip_vision_output? face_video? pose_video? continue_motion? background_video? character_mask?
 Wan22ImageToVideoLatent execute vae width height length batch_size start_image?
comfy_extras.nodes_wanmove
 WanMoveVisualizeTracks execute images line_resolution circle_size opacity line_width tracks?
 WanMoveTracksFromCoords execute track_coords track_mask?
 GenerateTracks execute width height start_x start_y mid_x mid_y end_x end_y num_frames num_tracks track_spread bezier? interpolation? track_mask?
 WanMoveConcatTrack execute tracks_1? tracks_2?
 WanMoveTrackToVideo execute positive negative vae width height length batch_size strength tracks? start_image? clip_vision_output?
comfy_extras.nodes_webcam
 WebcamCapture load_capture image
"""
