//! Networks of sound: what makes it, what hears it, and the autoencoders of both.

use anyhow::{Context, Result};
use fresco_models::ModelError;
use fresco_models::ace_step::{
    Ace15Config, Ace15Network, AceConfig, AceNetwork, CodeDecoder, CodesConfig, ConditionConfig,
    ConditionEncoder,
};
use fresco_models::audio_encoder::{self, AudioEncoder, AudioEncoderConfig};
use fresco_models::denoise::CondValue;
use fresco_models::stable_audio::{SecondsEmbedder, StableAudioConfig, StableAudioNetwork};
use fresco_models::vae::sound::{self, MelVae, SoundVae, SoundVaeConfig};
use fresco_tensor::{Device, Tensor};

use super::{Kind, pass};
use crate::golden::{self, Golden};
use crate::report::Report;
use fresco_models::vae::{AutoencoderConfig, VaeConfig};

pub(super) static KINDS: &[Kind] = &[
    Kind::diffusion("ACE-Step", "ACE-Step", ace).with(|golden| golden.any_key("lyric_encoder.")),
    Kind::diffusion("ACE-Step", "ACE-Step 1.5", ace15),
    Kind::own(
        "ACE-Step 1.5, audio codes",
        |golden| golden.has_key("detokenizer.special_tokens"),
        ace15_codes,
    ),
    Kind::own(
        "ACE-Step 1.5, prompts",
        |golden| golden.has_key("encoder.text_projector.weight"),
        ace15_condition,
    ),
    Kind::diffusion("Stable Audio", "Stable Audio", stable_audio),
    Kind::autoencoder(
        VaeConfig::is::<SoundVaeConfig>,
        "autoencoder of spectrograms",
        mel,
    )
    .with(|golden| golden.any_key("vocoder.")),
    Kind::autoencoder(
        VaeConfig::is::<SoundVaeConfig>,
        "autoencoder of waveforms",
        oobleck,
    )
    .with(|golden| golden.has("encoder_out")),
    Kind::own(
        "audio encoder",
        |golden| {
            golden.has("audio")
                && (golden.any_key("feature_extractor.conv_layers.")
                    || golden.has_key("encoder.embed_positions.weight"))
        },
        hear,
    ),
];

fn go() -> Result<(), ModelError> {
    Ok(())
}

fn ace(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let found = AceConfig::detect(&*golden.store(device)?)?;
    let config = AceConfig {
        heads: golden.need("num_attention_heads")?,
        theta: golden.float("rope_theta").unwrap_or(found.theta),
        ..found
    };
    let net: AceNetwork = pass::network(golden, device, &config)?;
    let lyrics = golden.tensor("lyric_token_idx")?;
    report.check("lyrics", &net.lyrics(&lyrics)?)?;
    let mut conds = pass::conds([
        ("c_crossattn", Some(golden.tensor("context")?)),
        ("lyric_token_idx", Some(lyrics)),
    ]);
    let (x, t) = (golden.tensor("x")?, golden.values("t")?);
    report.check("out", &pass::forward(&net, &x, &t, &conds)?)?;
    if golden.has("out_lyrics_half") {
        let half = CondValue::Constant(0.5);
        conds.0.insert("lyrics_strength", half);
        let out = pass::forward(&net, &x, &t, &conds)?;
        report.check("out_lyrics_half", &out)?;
    }
    Ok(())
}

/// With channels before frames, as latents are.
fn turned(x: &Tensor) -> Result<Tensor> {
    Ok(x.permute(&[0, 2, 1])?)
}

fn ace15(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let mut config = Ace15Config::detect(&*golden.store(device)?)?;
    config.block.theta = golden.float("rope_theta").unwrap_or(config.block.theta);
    config.block.window = golden.need("sliding_window")?;
    let net: Ace15Network = pass::network(golden, device, &config)?;
    let x = turned(&golden.tensor("x")?)?;
    let mut conds = pass::conds([
        ("c_crossattn", Some(golden.tensor("encoder")?)),
        ("beside", Some(turned(&golden.tensor("context")?)?)),
    ]);
    let times = vec![golden.number_in_words(&["timestep"])? as f32; x.dim(0)?];
    let out = pass::forward(&net, &x, &times, &conds)?;
    report.check("out.base", &turned(&out)?)?;
    let earlier = golden.number_in_words(&["out.r: timestep_r", "timestep_r"])?;
    conds.0.insert("timestep_r", CondValue::Constant(earlier));
    let out = pass::forward(&net, &x, &times, &conds)?;
    report.check("out.r", &turned(&out)?)
}

fn ace15_codes(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let mut config = CodesConfig::detect(&store)?;
    config.shape.window = golden.need("sliding_window")?;
    let decoder = store.build("the detokenizer", |weights| {
        CodeDecoder::new(weights, &config)
    })?;
    report.check("out", &decoder.forward(&golden.tensor("codes")?)?)
}

fn ace15_condition(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let mut config = ConditionConfig::detect(&store)?;
    config.shape.window = golden.need("sliding_window")?;
    let encoder = store.build("the condition encoder", |weights| {
        ConditionEncoder::new(weights, &config)
    })?;
    let (tags, lyrics) = (golden.tensor("tags")?, golden.tensor("lyrics")?);
    let voice = golden.tensor("voice")?;
    let out = encoder.forward(&tags, Some(&lyrics), Some(&voice), device)?;
    report.check("out", &out)?;
    let none = Tensor::zeros(tags.shape())?;
    let out = encoder.forward(&none, Some(&lyrics), Some(&voice), device)?;
    report.check("null", &out)
}

fn stable_audio(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = StableAudioConfig::detect(&*golden.store(device)?)?;
    let net: StableAudioNetwork = pass::network(golden, device, &config)?;
    let conds = pass::conds([
        ("c_crossattn", Some(golden.tensor("context")?)),
        ("global_embed", Some(golden.tensor("global_embed")?)),
    ]);
    let (x, t) = (golden.tensor("x")?, golden.values("t")?);
    report.check("out", &pass::forward(&net, &x, &t, &conds)?)?;
    let list = &golden.about["number_conditioner_keys"];
    if list.is_null() {
        return Ok(());
    }
    let keys = golden::keys(list)?;
    let shape = |end: &str| {
        let found = keys.iter().find(|(key, _)| key.ends_with(end));
        found.map(|(_, shape)| shape[0]).context("no such key")
    };
    let (waves, width) = (shape("0.weights")?, shape("1.weight")?);
    let store = golden::store(&golden.name, golden::weights(&keys)?, device);
    let embedder = store.build("the numbers", |weights| {
        SecondsEmbedder::new(&weights.at("embedder.embedding"), waves, width)
    })?;
    for name in golden.tensors() {
        if let Some(seconds) = name.strip_prefix("number_") {
            let found = embedder.forward(seconds.parse()?, device)?;
            report.check(&name, &found.to(&Device::cpu())?)?;
        }
    }
    Ok(())
}

fn vae(golden: &Golden, device: &Device) -> Result<SoundVae> {
    let store = sound::store(&golden.weight_file()?, "", device.clone());
    let config = SoundVaeConfig::detect(&store)?;
    config.verify(&store)?;
    Ok(config.open(&store)?)
}

fn mel(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let SoundVae::Mel(net, _) = vae(golden, device)? else {
        anyhow::bail!("it was taken for another kind");
    };
    let audio = golden.tensor("audio")?;
    report.check("log_mel", &net.log_mel(&audio)?)?;
    report.check("encoded", &net.encode(&audio, &go)?)?;
    let z = golden.tensor("z")?;
    let decoded = net.decode_mel(&z, &go)?;
    report.check("decoded_mel", &decoded)?;
    let lines = MelVae::unscaled(&decoded);
    let [b, channels, bands, frames] = lines.dims4()?;
    let lines = lines.reshape([b * channels, bands, frames])?;
    report.check("vocoder_backbone", &net.features(&lines, &go)?)?;
    report.check("decoded", &net.decode(&z, &go)?)?;
    report.check("vocoded", &net.vocode(&golden.tensor("mel")?, &go)?)
}

fn oobleck(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let SoundVae::Oobleck(net, _) = vae(golden, device)? else {
        anyhow::bail!("it was taken for another kind");
    };
    let moments = net.moments(&golden.tensor("audio")?, &go)?;
    report.check("encoder_out", &moments)?;
    report.check("decoded", &net.decode(&golden.tensor("z")?, &go)?)
}

fn hear(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = audio_encoder::store(&golden.weight_file()?, device.clone());
    let mut config = AudioEncoderConfig::detect(&store)?;
    // Goldens have smaller heads than any published network.
    match &mut config {
        AudioEncoderConfig::Wav2Vec2(config) => config.heads = golden.need("num_heads")?,
        AudioEncoderConfig::Whisper(config) => config.heads = golden.need("n_audio_head")?,
    }
    config.verify(&store)?;
    let net = config.build(&store)?;
    let audio = golden.tensor("audio")?;
    if let AudioEncoder::Whisper(net) = &net {
        let mel = net.mel(&audio)?;
        let frames = mel.dim(2)?;
        let first = golden.tensor("mel")?.dim(2)?;
        report.check("mel", &mel.narrow(2, 0, first)?)?;
        let last = golden.tensor("mel_last")?.dim(2)?;
        report.check("mel_last", &mel.narrow(2, frames - last, last)?)?;
    }
    let heard = net.encode(&audio, &go)?;
    // Some goldens have only the first moments.
    let cut = |x: &Tensor, name: &str| -> Result<Tensor> {
        let count = golden.tensor(name)?.dim(1)?;
        Ok(x.narrow(1, 0, count)?)
    };
    report.check("out", &cut(&heard.last, "out")?)?;
    for (number, state) in heard.states.iter().enumerate() {
        let name = format!("all_{number}");
        report.check(&name, &cut(state, &name)?)?;
    }
    Ok(())
}
