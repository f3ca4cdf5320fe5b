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
