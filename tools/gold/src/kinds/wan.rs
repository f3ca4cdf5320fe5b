//! Wan: its transformer with everything that goes in beside the noise, and from conditioning to a prediction.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{CallConds, Cond, CondValue, EncodeArgs, NetworkInput};
use fresco_models::transformer::RopeScale;
use fresco_models::wan::{WanConfig, WanNetwork, flattened};
use fresco_models::{DiffusionNetwork, WeightStore};
use fresco_tensor::{Device, Stored, Tensor};

use super::{Kind, pass};
use crate::golden::{self, Golden};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::diffusion(
        "Wan 2.1 and 2.2",
        "Wan, from conditioning",
        from_conditioning,
    )
    .with(|golden| golden.has("sigma")),
    Kind::diffusion(
        "Wan 2.1 and 2.2",
        "Wan that follows a sound or a face",
        follower,
    )
    .with(|golden| {
        let parts = ["casual_audio_encoder.", "audio_proj.", "face_adapter."];
        parts.iter().any(|part| golden.any_key(part))
    }),
    Kind::diffusion("Wan 2.1 and 2.2", "Wan", network),
];

/// Convolutions whose squares do not overlap are matrices in the network.
fn store(golden: &Golden, device: &Device) -> Result<Arc<WeightStore>> {
    let mut weights: BTreeMap<String, Stored> = BTreeMap::new();
    for (key, stored) in golden.weights()? {
        let stored = match flattened(&key, stored.shape()) {
            Some(shape) => stored.reshape(shape)?,
            None => stored,
        };
        weights.insert(key, stored);
    }
    Ok(golden::store(&golden.name, weights, device))
}

fn open(golden: &Golden, device: &Device) -> Result<(WanConfig, WanNetwork)> {
    let store = store(golden, device)?;
    let mut config = WanConfig {
        // Heads are narrower than published ones.
        heads: golden.need("num_heads")?,
        ..WanConfig::detect(&store)?
    };
    if let (Some(sound), Some(after)) = (&mut config.sound, golden.numbers("audio_inject_layers")) {
        sound.after = after;
    }
    let net = store.build(WanNetwork::WHAT, |weights| {
        WanNetwork::new(weights, &config)
    })?;
    Ok((config, net))
}

/// What a sound, somebody's speech, or a face becomes before tokens see it.
fn beside(golden: &Golden, net: &WanNetwork, report: &mut Report<'_>) -> Result<()> {
    let frames = golden.tensor("x")?.dim(2)?;
    if let Some(features) = golden.maybe("audio_embed")?
        && let Some([whole, local]) = net.sound_features(&features, frames)?
    {
        let [b, t, dim] = whole.dims3()?;
        report.check("audio_global", &whole.reshape([b, t, 1, dim])?)?;
        report.check("audio_local", &local)?;
    }
    if golden.has("audio")
        && let Some(tokens) = net.spoken(&windows(golden)?, frames)?
    {
        let wanted = golden.tensor("audio")?;
        report.check("audio", &tokens.reshape(wanted.shape())?)?;
    }
    if golden.has("motion")
        && let Some([motion, encoded]) = net.face_motion(&face_frames(golden)?)?
    {
        report.check("motion", &motion)?;
        report.check("face_encoded", &encoded)?;
    }
    Ok(())
}

/// Windows of speech.
fn windows(golden: &Golden) -> Result<Tensor> {
    golden.stream("audio_embed", None)
}

/// Pictures of a face, (b, 3, t, h, w).
fn face(golden: &Golden) -> Result<Tensor> {
    golden.stream("face_pixel_values", None)
}

/// The same as single pictures.
fn face_frames(golden: &Golden) -> Result<Tensor> {
    let face = face(golden)?;
    let [items, colours, frames, height, width] = *face.shape() else {
        bail!(
            "pictures of a face have five dimensions, not {:?}",
            face.shape()
        );
    };
    let apart = face.permute(&[0, 2, 1, 3, 4])?;
    Ok(apart.reshape([items * frames, colours, height, width])?)
}

/// What is left out of the plain pass of a network that follows a sound.
const PLAIN: &[&str] = &[
    "reference_motion",
    "reference_latent",
    "control_video",
    "audio_embed",
];

/// Networks that follow sound, speech or a face: each input can be left out.
fn follower(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let (config, net) = open(golden, device)?;
    beside(golden, &net, report)?;
    let mut all: Vec<(&'static str, Tensor)> = Vec::new();
    for name in [
        "clip_fea",
        "audio_embed",
        "control_video",
        "reference_latent",
        "reference_motion",
        "pose_latents",
    ] {
        all.extend(golden.maybe(name)?.map(|tensor| (name, tensor)));
    }
    if config.speech.is_some() {
        all.push(("audio_embed", windows(golden)?));
    }
    if config.face.is_some() {
        all.push(("face_pixel_values", face(golden)?));
    }
    let (x, levels) = (golden.tensor("x")?, golden.values("t")?);
    for (out, without) in [
        ("out", &[][..]),
        ("out_no_motion", &["reference_motion"]),
        ("out_plain", PLAIN),
        ("out_no_ref", &["reference_latent"]),
        ("out_no_face", &["face_pixel_values"]),
    ] {
        if !golden.has(out) {
            continue;
        }
        let mut conds = pass::conds([("c_crossattn", Some(golden.tensor("context")?))]);
        for (name, tensor) in all.iter().filter(|(name, _)| !without.contains(name)) {
            conds.0.insert(name, CondValue::Regular(tensor.clone()));
        }
        report.check(
            out,
            &net.pass(&x, &levels, &conds, &hooks::of::<WanNetwork>())?,
        )?;
    }
    Ok(())
}

fn network(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let (_, net) = open(golden, device)?;
    let (x, context) = (golden.tensor("x")?, golden.tensor("context")?);
    let (levels, plain) = (golden.values("t")?, hooks::of::<WanNetwork>());
    let with = |more: Vec<(&'static str, CondValue)>| {
        let mut conds = pass::conds([("c_crossattn", Some(context.clone()))]);
        conds.0.extend(more);
        conds
    };
    let regular = |x: Tensor| CondValue::Regular(x);
    let run = |levels: &[f32], conds: &CallConds, hooks: &Hooks| net.pass(&x, levels, conds, hooks);
    let mut always = Vec::new();
    if let Some(states) = golden.maybe("clip_fea")? {
        always.push(("clip_fea", regular(states)));
    }
    if let Some(path) = golden.maybe("camera_conditions")? {
        always.push(("camera_conditions", regular(path)));
    }
    if let Some(controls) = golden.maybe("vace_context")? {
        let list = (0..controls.dim(1)?).map(|at| controls.select(1, at));
        let list = list.collect::<fresco_tensor::Result<_>>()?;
        always.push(("vace_context", CondValue::List(list)));
        let strengths = golden.tensor("vace_strength")?;
        let strengths = strengths.reshape([1, strengths.len()])?;
        always.push(("vace_strength", regular(strengths)));
    }
    report.check("out", &run(&levels, &with(always.clone()), &plain)?)?;
    if golden.has("out_one_clip_token") {
        let one = golden.tensor("clip_fea")?.narrow(1, 0, 1)?;
        let conds = with(vec![("clip_fea", regular(one))]);
        report.check("out_one_clip_token", &run(&levels, &conds, &plain)?)?;
    }
    if golden.has("out_no_clip") {
        report.check("out_no_clip", &run(&levels, &with(Vec::new()), &plain)?)?;
    }
    if golden.has("out_short") {
        let six = golden.tensor("clip_fea")?.narrow(1, 0, 6)?;
        let conds = with(vec![("clip_fea", regular(six))]);
        report.check("out_short", &run(&levels, &conds, &plain)?)?;
    }
    if golden.has("out_no_camera") {
        let conds = always
            .iter()
            .filter(|(name, _)| *name != "camera_conditions");
        let conds = with(conds.cloned().collect());
        report.check("out_no_camera", &run(&levels, &conds, &plain)?)?;
    }
    if golden.has("out_strength0") {
        let mut conds = with(always.clone());
        let count = conds
            .0
            .get("vace_context")
            .map_or(0, |all| all.list().len());
        let none = Tensor::zeros([1, count])?;
        conds.0.insert("vace_strength", regular(none));
        report.check("out_strength0", &run(&levels, &conds, &plain)?)?;
    }
    if golden.has("out_t_frames") {
        let levels = golden.values("t_frames")?;
        report.check("out_t_frames", &run(&levels, &with(Vec::new()), &plain)?)?;
    }
    if golden.has("out_time_dim_concat") {
        let more = golden.tensor("time_dim_concat")?;
        let conds = with(vec![("time_dim_concat", regular(more))]);
        report.check("out_time_dim_concat", &run(&levels, &conds, &plain)?)?;
    }
    if golden.has("out_reference") {
        let picture = golden.tensor("reference_latent")?;
        let conds = with(vec![("reference_latent", regular(picture))]);
        report.check("out_reference", &run(&levels, &conds, &plain)?)?;
    }
    if golden.has("out_rope_options") {
        let axes = |what: &str| -> Result<[f64; 3]> {
            let axis = |axis| golden.number_in_words(&[&format!("{what}_{axis}")]);
            Ok([axis("t")?, axis("y")?, axis("x")?])
        };
        let scale = RopeScale {
            scale: axes("scale")?,
            shift: axes("shift")?,
        };
        let mut hooks = hooks::of::<WanNetwork>();
        hooks.beside.push(Arc::new(scale));
        report.check(
            "out_rope_options",
            &run(&levels, &with(Vec::new()), &hooks)?,
        )?;
    }
    Ok(())
}

/// The conditioning of one case: what nodes put into it, and the mask of what is sampled.
struct Case {
    name: &'static str,
    cond: Cond,
    mask: Option<Tensor>,
}

fn cases(golden: &Golden) -> Result<Vec<Case>> {
    let plain = || -> Result<Cond> {
        let mut cond = Cond::new(golden.tensor("context")?);
        if let Some(states) = golden.maybe("clip")? {
            let name = "clip_vision_output.penultimate_hidden_states";
            cond.tensors.insert(name.into(), states);
        }
        Ok(cond)
    };
    let tensors = |list: Vec<(&str, Tensor)>| -> Result<Cond> {
        let mut cond = plain()?;
        let list = list.into_iter();
        cond.tensors.extend(list.map(|(name, t)| (name.into(), t)));
        Ok(cond)
    };
    let case = |name, cond| Case {
        name,
        cond,
        mask: None,
    };
    let mut cases = Vec::new();
    if golden.has("denoised_mask1") {
        let (image, mask) = (golden.tensor("image")?, golden.tensor("mask")?);
        let two = mask.narrow(2, 0, 2)?;
        let four = golden.tensor("mask4")?;
        for (name, image, mask) in [
            ("mask1", image.clone(), mask),
            ("mask4", image, four),
            ("resized", golden.tensor("image_big")?, two),
        ] {
            let list = vec![("concat_latent_image", image), ("concat_mask", mask)];
            cases.push(case(name, tensors(list)?));
        }
        cases.push(case("none", plain()?));
    }
    if golden.has("denoise_mask_frames") {
        cases.push(Case {
            name: "",
            cond: plain()?,
            mask: Some(golden.tensor("denoise_mask_frames")?),
        });
        cases.push(case("plain", plain()?));
    }
    if golden.has("vace_frames") {
        let strength = golden.number_in_words(&["vace_strength", "strength"])? as f32;
        let mut cond = tensors(vec![("vace_strength", Tensor::from_slice(&[strength]))])?;
        for name in ["vace_frames", "vace_mask"] {
            cond.lists.insert(name.into(), vec![golden.tensor(name)?]);
        }
        cases.push(case("", cond));
        cases.push(case("default", plain()?));
    }
    Ok(cases)
}

fn from_conditioning(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let (config, net) = open(golden, device)?;
    let (x, sampling) = (golden.tensor("x")?, WanNetwork::facts(&config).sampling);
    let sigma = *golden.values("sigma")?.first().context("sigma")?;
    for Case { name, cond, mask } in cases(golden)? {
        let named = |what: &str| match name {
            "" => what.to_owned(),
            name => format!("{what}_{name}"),
        };
        let args = EncodeArgs {
            cond: &cond,
            noise: &x,
            latent: None,
            denoise_mask: mask.as_ref(),
            width: 0.0,
            height: 0.0,
            prompt_type: "positive",
        };
        let conds = CallConds(WanNetwork::encode(&config, &golden.name, &args)?);
        let beside = conds.0.get("c_concat").and_then(CondValue::tensor);
        if let Some(beside) = beside
            && golden.has(&named("concat"))
        {
            report.check(&named("concat"), beside)?;
        }
        let wide = match beside {
            Some(beside) => Tensor::cat(&[&x, beside], 1)?,
            None => x.clone(),
        };
        let out = net.forward(&NetworkInput {
            x: &wide,
            timesteps: &vec![sampling.timestep(sigma); x.dim(0)?],
            conds: &conds,
            control: None,
            hooks: &hooks::of::<WanNetwork>(),
        })?;
        report.check(&named("denoised"), &sampling.denoised(sigma, &out, &x)?)?;
    }
    Ok(())
}
