//! Descriptions of inputs that many nodes share, by name and type. A field's own doc comment wins.

use fresco_graph::{Input, IoType};

/// Name, type, description. In the order of names and types, because rows are found by bisection.
#[rustfmt::skip]
const SHARED: &[(&str, &str, &str)] = &[
    ("amount", "INT", "How many copies there are in the end."),
    ("audio", "AUDIO", "The sound."),
    ("audio_encoder_output", "AUDIO_ENCODER_OUTPUT", "What an audio encoder heard; the video moves and speaks to it."),
    ("audio_vae", "VAE", "The autoencoder that turns sound into latents and back."),
    ("base_shift", "FLOAT", "Shift of the noise levels for small pictures; higher spends more steps on composition."),
    ("batch_size", "INT", "How many are made at once. More take more memory."),
    ("case_insensitive", "BOOLEAN", "Treats capital and small letters as the same."),
    ("case_sensitive", "BOOLEAN", "Treats capital and small letters as different."),
    ("cfg", "FLOAT", "How closely the result follows the prompt. 1 ignores the negative prompt; too much costs quality."),
    ("ckpt_name", "COMBO", "The file of the checkpoint."),
    ("clip", "CLIP", "The text encoder; it has to belong to the diffusion model."),
    ("clip1", "CLIP", "The first text encoder."),
    ("clip2", "CLIP", "The second text encoder."),
    ("clip_g", "STRING", "The prompt as the encoder CLIP-G reads it."),
    ("clip_l", "STRING", "The prompt as the encoder CLIP-L reads it; keywords serve it best."),
    ("clip_name", "COMBO", "The file of the text encoder."),
    ("clip_name1", "COMBO", "The file of the first encoder."),
    ("clip_name2", "COMBO", "The file of the second encoder."),
    ("clip_name3", "COMBO", "The file of the third encoder."),
    ("clip_name4", "COMBO", "The file of the fourth encoder."),
    ("clip_vision", "CLIP_VISION", "The vision model that looks at the picture."),
    ("clip_vision_output", "CLIP_VISION_OUTPUT", "What a vision model saw in a picture; the result becomes like that picture."),
    ("compute_device", "COMBO", "The device that computes."),
    ("conditioning", "CONDITIONING", "The prompt as a text encoder understood it."),
    ("conditioning_from", "CONDITIONING", "The conditioning that is added."),
    ("conditioning_to", "CONDITIONING", "The conditioning that the other one is added to."),
    ("control_net", "CONTROL_NET", "The control net that steers the picture."),
    ("control_net_name", "COMBO", "The file of the control net."),
    ("control_video", "IMAGE", "Frames that steer the video: edges, depth or poses."),
    ("crop", "COMBO", "How a changed aspect ratio is met: disabled stretches, center cuts the sides off."),
    ("denoise", "FLOAT", "How much of the noise is taken away: 1 makes something new, less keeps more of the given picture."),
    ("destination", "IMAGE", "The picture under the source."),
    ("device", "COMBO", "The device that computes."),
    ("dotall", "BOOLEAN", "Lets the dot match line breaks too."),
    ("elevation", "FLOAT", "Degrees above the object from which it is seen; below it if negative."),
    ("empty_conditioning", "CONDITIONING", "An empty prompt, from which the effect of the others is measured."),
    ("end_image", "IMAGE", "The last picture or pictures of the video."),
    ("end_percent", "FLOAT", "Where in sampling it ends: 0 is the start, 1 the end."),
    ("eta", "FLOAT", "How much fresh noise the steps add: 0 adds none, 1 as much as the method intends."),
    ("filename_prefix", "STRING", "Start of the file name; may hold folders and marks like %date:yyyy-MM-dd%."),
    ("flip_method", "COMBO", "The axis of the mirror: x swaps top and bottom, y swaps left and right."),
    ("folder", "COMBO", "The folder inside the input directory."),
    ("folder_name", "STRING", "The folder inside the output directory."),
    ("fps", "FLOAT", "Frames a second."),
    ("guidance", "FLOAT", "How closely a distilled model follows the prompt; lower looks more natural."),
    ("height", "INT", "Height in pixels."),
    ("hooks", "HOOKS", "Changes of weights that act wherever this conditioning does."),
    ("image", "IMAGE", "The picture, or a batch of pictures."),
    ("image1", "IMAGE", "The first picture."),
    ("image2", "IMAGE", "The second picture."),
    ("images", "IMAGE", "The pictures."),
    ("init_image", "IMAGE", "The picture to start from."),
    ("k", "FLOAT", "Factor of the keys, which say where attention looks; 1 changes nothing."),
    ("latent", "LATENT", "The latent."),
    ("latent_image", "LATENT", "The latent to start from; an empty one for something new."),
    ("length", "INT", "Number of frames."),
    ("lora_name", "COMBO", "The file of the LoRA."),
    ("mask", "MASK", "The mask; white marks the places that count."),
    ("max_shift", "FLOAT", "Shift of the noise levels for large pictures; higher spends more steps on composition."),
    ("model", "MODEL", "The diffusion model."),
    ("model1", "MODEL", "The first model."),
    ("model2", "MODEL", "The second model."),
    ("model_patch", "MODEL_PATCH", "The network that acts inside the model."),
    ("model_type", "COMBO", "The kind of model that the levels were tuned for."),
    ("multiline", "BOOLEAN", "Lets ^ and $ match at every line, not only at the ends of the text."),
    ("neg_scale", "FLOAT", "How strongly to keep away from the negative prompt."),
    ("negative", "CONDITIONING", "The prompt for what the result should not have."),
    ("noise_augmentation", "FLOAT", "Noise on what is given, from 0 to 1; more leaves the model more freedom."),
    ("noise_device", "COMBO", "Whose random numbers to draw: gpu and cpu give different noise for the same seed."),
    ("noise_seed", "INT", "Where the noise comes from: the same number gives the same noise."),
    ("operation", "LATENT_OPERATION", "What is done to the latent."),
    ("out", "FLOAT", "Factor of what attention gives; 1 changes nothing."),
    ("overlap", "INT", "Pixels that neighbouring tiles share; more hides seams and takes longer."),
    ("pixels", "IMAGE", "The picture to encode."),
    ("positive", "CONDITIONING", "The prompt for what the result should have."),
    ("prev_hook_kf", "HOOK_KEYFRAMES", "Keyframes that this is added to."),
    ("prev_hooks", "HOOKS", "Hooks that this one is added to."),
    ("print_keyframes", "BOOLEAN", "Writes the keyframes to the log."),
    ("prompt", "STRING", "What to make or to change, in words."),
    ("q", "FLOAT", "Factor of the queries, which say what attention looks for; 1 changes nothing."),
    ("ref_image", "IMAGE", "How the subject looks."),
    ("reference_image", "IMAGE", "How the subject looks."),
    ("regex_pattern", "STRING", "The regular expression, in Python's notation."),
    ("replace", "STRING", "What takes its place."),
    ("rotation", "COMBO", "How far to turn, clockwise."),
    ("s_noise", "FLOAT", "Factor of the noise that the steps add: less looks smoother, more gives finer detail."),
    ("sampler", "SAMPLER", "How each step takes noise away."),
    ("sampler_name", "COMBO", "The way the noise is taken away, which changes quality, speed and structure of the picture."),
    ("samples", "LATENT", "The latent."),
    ("samples1", "LATENT", "The first latent."),
    ("samples2", "LATENT", "The second latent."),
    ("sampling", "COMBO", "What the model was trained to predict."),
    ("scale", "FLOAT", "How strongly it acts; 0 turns it off."),
    ("scale_by", "FLOAT", "Factor of width and height: 2 doubles both."),
    ("scheduler", "COMBO", "How the noise is spread over the steps."),
    ("seconds", "FLOAT", "Length of the sound in seconds."),
    ("set_cond_area", "COMBO", "What is computed: default the whole picture, mask bounds only the rectangle around the mask."),
    ("shift", "FLOAT", "How far the noise levels move up; higher spends more steps on composition, lower on detail."),
    ("sigma", "FLOAT", "Width of the blur that is used; higher reaches further for the same radius."),
    ("sigma_max", "FLOAT", "The highest noise level."),
    ("sigma_min", "FLOAT", "The lowest noise level above zero."),
    ("sigmas", "SIGMAS", "The noise levels to go through, highest first."),
    ("source", "IMAGE", "The picture that goes onto the destination."),
    ("start_image", "IMAGE", "The first picture or pictures of the video."),
    ("start_percent", "FLOAT", "Where in sampling it starts: 0 is the start, 1 the end."),
    ("steps", "INT", "Number of steps. More take longer and, up to a point, look better."),
    ("strength", "FLOAT", "How strongly it acts: 0 not at all, 1 in full."),
    ("strength_clip", "FLOAT", "How much the text encoder changes. A negative value changes it the other way."),
    ("strength_model", "FLOAT", "How much the model changes. A negative value changes it the other way."),
    ("string", "STRING", "The text."),
    ("string_a", "STRING", "The first text."),
    ("string_b", "STRING", "The second text."),
    ("t5xxl", "STRING", "The prompt as the encoder T5 reads it; whole sentences serve it best."),
    ("text", "STRING", "The prompt."),
    ("texts", "STRING", "The text."),
    ("tile_size", "INT", "Side of a tile in pixels; smaller tiles need less memory and take longer."),
    ("timesteps", "TIMESTEPS_RANGE", "The part of sampling in which it counts; without it, all of sampling."),
    ("tracks", "TRACKS", "Where points go from frame to frame."),
    ("unet_name", "COMBO", "The file of the diffusion model."),
    ("upscale_method", "COMBO", "How new pixels are computed: lanczos and bicubic are sharp, area is good for making smaller."),
    ("v", "FLOAT", "Factor of the values, which are what attention brings; 1 changes nothing."),
    ("vae", "VAE", "The autoencoder that turns pictures into latents and back."),
    ("video", "VIDEO", "The video."),
    ("width", "INT", "Width in pixels."),
    ("x", "INT", "Distance from the left edge in pixels."),
    ("y", "INT", "Distance from the top edge in pixels."),
];

/// What an input of this name and type means wherever its node does not say it.
pub(crate) fn shared(input: &Input) -> Option<&'static str> {
    row(input).map(|row| SHARED[row].2)
}

fn row(input: &Input) -> Option<usize> {
    let ty = match &input.ty {
        IoType::Name(name) => name,
        IoType::List(_) => "COMBO",
    };
    let key = (&*input.name, ty);
    SHARED
        .binary_search_by(|(name, ty, _)| (*name, *ty).cmp(&key))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `see` with every input of every class, inner ones included.
    fn each_input(see: &mut dyn FnMut(&Input)) {
        fn walk(input: &Input, see: &mut dyn FnMut(&Input)) {
            see(input);
            for inner in input.inner() {
                walk(inner, see);
            }
        }
        for entry in crate::all() {
            let schema = entry.class().schema();
            for input in &schema.inputs {
                walk(input, see);
            }
        }
    }

    fn tooltip(input: &Input) -> &str {
        let text = input.options.get("tooltip").and_then(|text| text.as_str());
        text.unwrap_or_default()
    }

    #[test]
    fn shared_rows_are_in_order_and_serve_several_inputs() {
        let keys = SHARED.iter().map(|(name, ty, _)| (name, ty));
        assert!(keys.is_sorted_by(|a, b| a < b));
        let mut uses = vec![0; SHARED.len()];
        each_input(&mut |input| {
            if let Some(row) = row(input).filter(|row| SHARED[*row].2 == tooltip(input)) {
                uses[row] += 1;
            }
        });
        let rare = SHARED.iter().zip(uses).filter(|(_, uses)| *uses < 2);
        let rare: Vec<_> = rare.map(|((name, ty, _), uses)| (name, ty, uses)).collect();
        assert!(rare.is_empty(), "these belong to the fields: {rare:?}");
    }
}
