//! HunyuanImage 2.1, base and distilled.

use anyhow::{Context, Result};
use fresco_models::DiffusionNetwork;
use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{CallConds, CondValue, NetworkInput};
use fresco_models::hunyuan::{HunyuanConfig, HunyuanNetwork};
use fresco_tensor::{Device, Tensor};

use super::{Kind, pass};
use crate::golden::{Golden, sizes};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind {
    name: "HunyuanImage",
    is: |golden| {
        let cells = sizes(&golden.about["keys"]["img_in.proj.weight"]);
        golden.any_key("txt_in.individual_token_refiner.") && cells.is_some_and(|s| s.len() == 4)
    },
    run,
}];

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
            ..Hooks::default()
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
