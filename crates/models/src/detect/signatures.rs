//! Signatures of the kinds of files that hold no diffusion network, so that they can be called by name.

/// What a file is that holds no diffusion network, in words: "a LoRA", "a text encoder"; none if nobody knows.
pub fn what_it_is(names: &[String]) -> Option<&'static str> {
    let any = |test: &dyn Fn(&str) -> bool| names.iter().any(|n| test(n));
    let has = |key: &str| any(&|n| n == key);
    let within = |part: &str| any(&|n| n.contains(part));
    let starts = |start: &str| any(&|n| n.starts_with(start));
    let ends = |end: &str| any(&|n| n.ends_with(end));
    let lora = [
        ".lora_down.weight",
        ".lora_up.weight",
        ".lora_A.weight",
        ".lora_B.weight",
        ".lora.down.weight",
        ".lora.up.weight",
        "_lora.down.weight",
        ".hada_w1_a",
        ".lokr_w1",
        ".lokr_w2",
        ".oft_blocks",
        ".diff_b",
    ];
    Some(
        if lora.iter().any(|end| ends(end)) || within(".processor.to_q_lora") {
            "a LoRA"
        } else if starts("control_model.")
            || has("zero_convs.0.0.weight")
            || starts("controlnet_")
            || has("control_blocks.0.before_proj.weight")
            || has("lora_controlnet")
        {
            "a control net"
        } else if has("body.0.in_conv.weight") || starts("adapter.body.") {
            "a T2I adapter"
        } else if has("emb_params")
            || starts("string_to_param")
            || (names.len() <= 4 && (has("clip_l") || has("clip_g")))
        {
            "an embedding (textual inversion)"
        } else if has("decoder.conv_in.weight")
            || has("first_stage_model.decoder.conv_in.weight")
            || has("vae.decoder.conv_in.weight")
            || has("encoder.conv_in.weight")
            || ends("decoder.head.0.gamma")
            || ends("decoder.norm_out.gamma")
        {
            "a VAE"
        } else if has("taesd_decoder.1.weight") || (has("3.conv.0.weight") && has("1.weight")) {
            "a small VAE for previews (TAESD)"
        } else if within("text_model.encoder.layers.")
            || within("transformer.resblocks.")
            || has("encoder.block.0.layer.0.SelfAttention.q.weight")
            || has("shared.weight")
        {
            if within("vision_model.") || starts("visual.") {
                "a CLIP vision model"
            } else {
                "a text encoder"
            }
        } else if within("vision_model.encoder.layers.") || starts("visual.") {
            "a CLIP vision model"
        } else if starts("position_net.") || within(".fuser.") {
            "a GLIGEN model"
        } else if starts("redux_") || has("style_embedding") {
            "a style model"
        } else if starts("image_proj.") || starts("ip_adapter.") {
            "an IP-Adapter"
        } else if starts("RRDB_trunk.")
            || starts("model.1.sub.")
            || has("conv_first.weight")
            || starts("params_ema.")
            || (has("body.0.weight") && has("body.1.weight"))
        {
            "an upscale model"
        } else if within("motion_modules.") {
            "a motion module (AnimateDiff)"
        } else {
            return None;
        },
    )
}

/// Where a file that [`what_it_is`] names belongs, as the end of a sentence.
pub fn where_it_belongs(what: &str) -> &'static str {
    match what {
        "a LoRA" => "put it into models/loras and load it with LoraLoader",
        "a control net" | "a T2I adapter" => {
            "put it into models/controlnet and load it with ControlNetLoader"
        }
        "an embedding (textual inversion)" => {
            "put it into models/embeddings and write embedding:NAME into a prompt"
        }
        "a VAE" => "put it into models/vae and load it with VAELoader",
        "a small VAE for previews (TAESD)" => "put it into models/vae_approx",
        "a text encoder" => "put it into models/text_encoders and load it with CLIPLoader",
        "a CLIP vision model" => "put it into models/clip_vision and load it with CLIPVisionLoader",
        "a GLIGEN model" => "put it into models/gligen and load it with GLIGENLoader",
        "a style model" => "put it into models/style_models and load it with StyleModelLoader",
        "an upscale model" => {
            "put it into models/upscale_models and load it with UpscaleModelLoader"
        }
        _ => "this version has no node for it",
    }
}

/// Parts of names that LoRAs have for the layers of a network, with underscores for dots, and whose network that is. The
/// first row that is found counts.
const LORA_SIGNS: &[(&str, &str)] = &[
    ("joint_blocks_", "SD3"),
    ("double_stream_blocks_", "HiDream"),
    ("transformer_blocks_0_img_mlp_", "Qwen-Image"),
    ("single_transformer_blocks_", "Flux"),
    ("double_blocks_", "Flux or Hunyuan"),
    ("single_blocks_", "Flux or Hunyuan"),
    ("input_blocks_7_1_transformer_blocks_9_", "SDXL"),
    ("down_blocks_2_attentions_1_transformer_blocks_9_", "SDXL"),
    ("input_blocks_", "SD1.x, SD2.x or SDXL"),
    ("output_blocks_", "SD1.x, SD2.x or SDXL"),
    ("down_blocks_", "SD1.x, SD2.x or SDXL"),
    ("up_blocks_", "SD1.x, SD2.x or SDXL"),
    ("context_refiner_", "Z-Image or Lumina 2"),
    ("attention_to_q", "Z-Image"),
    ("cross_attn_k_img", "Wan"),
    ("cross_attn_", "Wan, Cosmos or Anima"),
    ("visual_transformer_blocks_", "Kandinsky 5"),
    ("transformer_blocks_0_attn1_", "LTX, PixArt or SD"),
    ("text_model_encoder_layers_", "the text encoder CLIP"),
];

/// For which models a LoRA was made, by the names of its layers; none if nobody knows.
pub fn lora_is_for<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    let names: Vec<String> = names.map(|name| name.replace('.', "_")).collect();
    let found = LORA_SIGNS
        .iter()
        .find(|(sign, _)| names.iter().any(|name| name.contains(sign)));
    found.map(|(_, models)| *models)
}

/// Some names of a file that nobody knows, so that its owner can tell what it is.
pub(super) fn examples(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let step = (names.len() / SHOWN).max(1);
    let shown = names.iter().step_by(step).take(SHOWN);
    // A name is whatever a file says.
    let shown: Vec<String> = shown
        .map(|name| format!("{:?}", name.chars().take(80).collect::<String>()))
        .collect();
    shown.join(", ")
}
