//! HunyuanImage 2.1, base and distilled; Hunyuan Video.

use anyhow::{Context, Result};
use fresco_models::DiffusionNetwork;
use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{CallConds, Cond, CondValue, EncodeArgs, NetworkInput};
use fresco_models::hunyuan::{
    HunyuanConfig, HunyuanNetwork, HunyuanVideoConfig, HunyuanVideoNetwork, Upsampler,
    UpsamplerConfig,
};
use fresco_models::latent_upscale::LatentUpscaler;
use fresco_tensor::{Device, Tensor};

use fresco_models::detect::Claim;

use super::{Kind, pass};
use crate::golden::{self, Golden, sizes};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::of(
        Claim::LatentUpscaler,
        "larger latents of Hunyuan Video",
        upsampler,
    ),
    Kind::diffusion("HunyuanImage 2.1", "HunyuanImage", run).with(|golden| !is_video(golden)),
    Kind::diffusion(
        "HunyuanImage 2.1",
        "Hunyuan Video, from conditioning",
        video_from_conditioning,
    )
    .with(|golden| golden.has("sigma")),
    Kind::diffusion("HunyuanImage 2.1", "Hunyuan Video", video),
];

fn upsampler(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = UpsamplerConfig::detect(&store)?.context("no such network")?;
    let net = store.build("the network", |weights| Upsampler::new(weights, &config))?;
    let made = net.upscale(&golden.tensor("z")?, &|| Ok(()))?;
    for out in ["out_720p", "out_1080p"] {
        if golden.has(out) {
            report.check(out, &made)?;
        }
    }
    Ok(())
}

fn is_video(golden: &Golden) -> bool {
    let cells = sizes(&golden.about["keys"]["img_in.proj.weight"]);
    cells.is_some_and(|sides| sides.len() == 5)
}

fn open_video(
    golden: &Golden,
    device: &Device,
) -> Result<(HunyuanVideoConfig, HunyuanVideoNetwork)> {
    let mut weights = golden.weights()?;
    let key = "img_in.proj.weight";
    let cells = weights.remove(key).context(key)?;
    let (rows, side) = (cells.shape()[0], cells.shape()[4]);
    let flat = cells.reshape([rows, cells.len() / rows])?;
    weights.insert(key.to_owned(), flat);
    let store = golden::store(&golden.name, weights, device);
    let mut config = HunyuanVideoConfig::detect(&store, side)?;
    config.trunk.axes = golden.numbers("axes_dim").context("axes_dim")?;
    config.trunk.theta = golden.float("theta").context("theta")?;
    let net = store.build(HunyuanVideoNetwork::WHAT, |weights| {
        HunyuanVideoNetwork::new(weights, &config)
    })?;
    Ok((config, net))
}

fn video(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let (_, net) = open_video(golden, device)?;
    let (x, levels) = (golden.tensor("x")?, golden.values("t")?);
    let all = || -> Result<CallConds> {
        let mut conds = pass::conds([
            ("c_crossattn", Some(golden.tensor("context")?)),
            ("y", golden.maybe("y")?),
            ("txt_byt5", golden.maybe("txt_byt5")?),
            ("clip_fea", golden.maybe("clip_fea")?),
        ]);
        if let Some(guidance) = golden.maybe("guidance")? {
            let guidance = f64::from(guidance.data()[0]);
            conds.0.insert("guidance", CondValue::Constant(guidance));
        }
        Ok(conds)
    };
    let with = |name: &'static str, value: CondValue| -> Result<CallConds> {
        let mut conds = all()?;
        conds.0.insert(name, value);
        Ok(conds)
    };
    let without = |names: &[&str]| -> Result<CallConds> {
        let mut conds = all()?;
        conds.0.retain(|name, _| !names.contains(name));
        Ok(conds)
    };
    let plain = hooks::of::<HunyuanVideoNetwork>();
    let run = |conds: &CallConds, hooks: &Hooks| net.pass(&x, &levels, conds, hooks);
    report.check("out", &run(&all()?, &plain)?)?;
    if golden.has("txt_in") {
        let refined = net.refined(&golden.tensor("context")?, &levels)?;
        report.check("txt_in", &refined.to(&Device::cpu())?)?;
    }
    if golden.has("out_no_guidance") {
        report.check("out_no_guidance", &run(&without(&["guidance"])?, &plain)?)?;
    }
    if golden.has("out_mask") {
        let mask = CondValue::Regular(golden.tensor("mask")?);
        report.check("out_mask", &run(&with("attention_mask", mask)?, &plain)?)?;
    }
    if golden.has("out_guiding_frame") {
        let first = CondValue::Constant(0.0);
        let conds = with("guiding_frame_index", first)?;
        report.check("out_guiding_frame", &run(&conds, &plain)?)?;
    }
    if golden.has("out_ref_latent") {
        let reference = CondValue::Regular(golden.tensor("ref_latent")?);
        let conds = with("ref_latent", reference)?;
        report.check("out_ref_latent", &run(&conds, &plain)?)?;
    }
    if golden.has("out_text_only") {
        let conds = without(&["txt_byt5", "clip_fea"])?;
        report.check("out_text_only", &run(&conds, &plain)?)?;
    }
    if golden.has("out_time_r") {
        let schedule = golden.values("sample_sigmas")?;
        let level = levels.first().copied().context("t is empty")? / 1000.0;
        let near = |a: &&f32| (**a - level).abs() < 1e-4;
        let sigma = schedule.iter().find(near).copied().unwrap_or(level);
        let mut hooks = Hooks {
            schedule: schedule.as_slice().into(),
            ..hooks::of::<HunyuanVideoNetwork>()
        };
        hooks.info.sigma = sigma;
        report.check("out_time_r", &run(&all()?, &hooks)?)?;
    }
    Ok(())
}

fn video_from_conditioning(
    golden: &Golden,
    device: &Device,
    report: &mut Report<'_>,
) -> Result<()> {
    let (config, net) = open_video(golden, device)?;
    let sampling = HunyuanVideoNetwork::facts(&config).sampling;
    let x = golden.tensor("x")?;
    let sigma = *golden.values("sigma")?.first().context("sigma")?;
    let mut plain = Cond::new(golden.tensor("context")?);
    plain.pooled = golden.maybe("y")?;
    let mut full = plain.clone();
    for (name, from) in [
        ("concat_latent_image", "image"),
        ("concat_mask", "mask"),
        ("conditioning_byt5small", "byt5"),
        ("clip_vision_output.last_hidden_state", "siglip"),
    ] {
        if let Some(tensor) = golden.maybe(from)? {
            full.tensors.insert(name.into(), tensor);
        }
    }
    for (end, cond) in [("", full), ("_text", plain)] {
        if !golden.has(&format!("denoised{end}")) {
            continue;
        }
        let args = EncodeArgs {
            cond: &cond,
            noise: &x,
            latent: None,
            denoise_mask: None,
            width: 0.0,
            height: 0.0,
            prompt_type: "positive",
        };
        let conds = CallConds(HunyuanVideoNetwork::encode(&config, &golden.name, &args)?);
        let beside = conds.0.get("c_concat").and_then(CondValue::tensor);
        let beside = beside.context("nothing goes in beside")?;
        report.check(&format!("concat{end}"), beside)?;
        let wide = Tensor::cat(&[&x, beside], 1)?;
        let levels = vec![sampling.timestep(sigma); x.dim(0)?];
        let out = net.pass(&wide, &levels, &conds, &hooks::of::<HunyuanVideoNetwork>())?;
        let found = sampling.denoised(sigma, &out, &x)?;
        report.check(&format!("denoised{end}"), &found)?;
    }
    Ok(())
}

struct Case<'a> {
    net: &'a HunyuanNetwork,
    golden: &'a Golden,
    schedule: Vec<f32>,
}

impl Case<'_> {
    fn run(&self, sigma: f32, letters: bool, masked: bool) -> Result<Tensor> {
        let golden = self.golden;
        let part = |name: &str, wanted: bool| -> Result<Option<Tensor>> {
            Ok(golden.maybe(name)?.filter(|_| wanted))
        };
        let mut conds: CallConds = pass::conds([
            ("c_crossattn", Some(golden.tensor("context")?)),
            ("txt_byt5", part("txt_byt5", letters)?),
            ("attention_mask", part("mask", masked)?),
        ]);
        if let Some(guidance) = golden.maybe("guidance")? {
            let guidance = f64::from(guidance.data()[0]);
            conds.0.insert("guidance", CondValue::Constant(guidance));
        }
        let mut hooks = Hooks {
            schedule: self.schedule.as_slice().into(),
            ..hooks::of::<HunyuanVideoNetwork>()
        };
        hooks.info.sigma = sigma;
        let x = golden.tensor("x")?;
        let mut timesteps = golden.values("t")?;
        let last = timesteps.last().copied().context("t is empty")?;
        timesteps.resize(x.dim(0)?, last);
        Ok(self.net.forward(&NetworkInput {
            x: &x,
            timesteps: &timesteps,
            conds: &conds,
            control: None,
            hooks: &hooks,
        })?)
    }
}

fn run(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = HunyuanConfig {
        axes: golden.numbers("axes_dim").context("axes_dim")?,
        theta: golden.float("theta").context("theta")?,
        heads: golden.need("num_heads")?,
        ..HunyuanConfig::detect(&*golden.store(device)?)?
    };
    let net: HunyuanNetwork = pass::network(golden, device, &config)?;
    let schedule = golden
        .maybe("sample_sigmas")?
        .map_or_else(Vec::new, Tensor::into_vec);
    let level = golden.values("t")?.first().copied().context("t is empty")? / 1000.0;
    // The level of the run that the number of the network was made from.
    let near = |a: &f32| (a - level).abs() < 1e-4;
    let sigma = schedule.iter().copied().find(near).unwrap_or(level);
    let case = Case {
        net: &net,
        golden,
        schedule,
    };
    report.check("out", &case.run(sigma, true, false)?)?;
    if golden.has("out/no_byt5") {
        report.check("out/no_byt5", &case.run(sigma, false, false)?)?;
    }
    if golden.has("out/masked") {
        report.check("out/masked", &case.run(sigma, false, true)?)?;
    }
    if golden.has("out/not_in_list") {
        report.check("out/not_in_list", &case.run(-1.0, true, false)?)?;
    }
    Ok(())
}
