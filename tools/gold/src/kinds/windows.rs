//! Windows over long latents.

use anyhow::{Context, Result};
use fresco_models::denoise::{ContextWindows, WindowFuse, WindowSchedule};
use fresco_tensor::{Device, Tensor};
use serde_json::Value;

use super::Kind;
use crate::golden::{Golden, sizes};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind::own(
    "context windows",
    |golden| golden.about["windows"].is_array() && golden.about["freenoise"].is_array(),
    run,
)];

fn number(value: &Value, name: &str) -> Result<usize> {
    let found = value[name].as_u64();
    Ok(found.with_context(|| format!("no {name}"))? as usize)
}

fn windows(value: &Value) -> Result<ContextWindows> {
    let word = |name: &str| value[name].as_str();
    Ok(ContextWindows {
        length: number(value, "length")?,
        overlap: number(value, "overlap")?,
        schedule: word("schedule")
            .and_then(WindowSchedule::parse)
            .unwrap_or(WindowSchedule::Static),
        stride: value["stride"].as_u64().unwrap_or(1) as usize,
        closed_loop: value["closed_loop"].as_bool().unwrap_or(false),
        fuse: word("method")
            .and_then(WindowFuse::parse)
            .unwrap_or(WindowFuse::Flat),
        dim: 0,
        free_noise: true,
    })
}

fn run(golden: &Golden, _: &Device, report: &mut Report<'_>) -> Result<()> {
    let list = |name: &str| golden.about[name].as_array().context(name.to_owned());
    for (at, case) in list("windows")?.iter().enumerate() {
        let rule = windows(case)?;
        let found = rule.windows(number(case, "frames")?, number(case, "step")?);
        let expected = case["windows"].as_array().context("windows")?;
        let expected = expected
            .iter()
            .map(|window| sizes(window).context("a window"));
        let expected: Vec<Vec<usize>> = expected.collect::<Result<_>>()?;
        report.equal(&format!("windows {at}"), &found, &expected);
    }
    for (at, case) in list("weights")?.iter().enumerate() {
        let rule = windows(case)?;
        let start = number(case, "start")?;
        let window: Vec<usize> = (start..start + rule.length).collect();
        let found = rule.weights(&window, number(case, "full")?);
        let expected = case["weights"].as_array().context("weights")?;
        let expected = expected.iter().map(|w| w.as_f64().map(|w| w as f32));
        let expected: Vec<f32> = expected.collect::<Option<_>>().context("weights")?;
        report.compare(
            &format!("weights {at}"),
            &Tensor::from_slice(&found),
            &Tensor::from_slice(&expected),
        )?;
    }
    for (at, case) in list("freenoise")?.iter().enumerate() {
        let rule = windows(case)?;
        let seed = case["seed"].as_u64().context("seed")?;
        let found = rule.noise_order(number(case, "frames")?, seed);
        let expected = sizes(&case["order"]).context("order")?;
        report.equal(&format!("noise {at}"), &found, &expected);
    }
    Ok(())
}
