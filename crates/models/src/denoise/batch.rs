//! The predictions of one step: conditions that fit together share a pass of the network, and each counts where and as
//! much as it should.

use std::sync::Arc;

use fresco_tensor::{Tensor, repeat_to_batch};

use super::call::{Call, ModelConds, Predict};
use super::cond::{Cond, CondHooks, ControlSource};
use super::hooks::Hooks;
use super::region::Region;
use crate::error::{ModelError, Result};

/// Rows over which a condition fades in at the edges of its area.
const FADE: usize = 8;

/// What keeps a place that no condition speaks for from a division by zero.
const NOTHING: f32 = 1e-37;

/// A condition at work in a step.
struct ActiveCond<'a> {
    /// Index of its list.
    list: usize,
    /// Tells it from others.
    id: usize,
    input: Tensor,
    /// None: one, everywhere.
    weight: Option<Tensor>,
    conds: Arc<ModelConds>,
    cond: &'a Cond,
    region: Option<Region>,
    control: Option<&'a Arc<dyn ControlSource>>,
    network: Option<&'a Arc<dyn Predict + Send + Sync>>,
    hooks: Option<&'a Arc<dyn CondHooks>>,
}

/// Whether two have the same object, or both none.
fn same<T: ?Sized>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}

/// Fades the edges of a weight that are not edges of the latent.
fn fade(weight: &mut Tensor, region: &Region, dims: &[usize]) {
    let shape = weight.shape().to_vec();
    for (d, len) in dims.iter().enumerate() {
        let (size, offset) = (region.size[d], region.offset[d]);
        let rows = FADE.min(size / 4);
        let inner: usize = shape[d + 3..].iter().product();
        let mut scale = |row: usize, factor: f32| {
            for block in weight.data_mut().chunks_exact_mut(size * inner) {
                for v in &mut block[row * inner..(row + 1) * inner] {
                    *v *= factor;
                }
            }
        };
        let step = 1.0 / rows as f64;
        for t in 0..rows {
            let factor = (step * (t + 1) as f64) as f32;
            if offset != 0 {
                scale(t, factor);
            }
            if offset + size < *len {
                scale(size - 1 - t, factor);
            }
        }
    }
}

impl<'a> ActiveCond<'a> {
    fn new(cond: &'a Cond, list: usize, x: &Tensor, sigma: f32) -> Result<Option<Self>> {
        if !cond.is_active(sigma) {
            return Ok(None);
        }
        let count = x.dim(0)?;
        let dims = x.shape()[2..].to_vec();
        let region = cond.region().map(|r| r.clipped(&dims)).transpose()?;
        let input = match &region {
            Some(region) => region.of(x, 2)?,
            None => x.clone(),
        };
        let strength = cond.strength as f32;
        let plain = region.is_none() && cond.mask.is_none() && strength == 1.0;
        let weight = if plain {
            None
        } else if let Some(mask) = &cond.mask {
            let mut mask = mask.narrow(0, 0, mask.dim(0)?.min(count))?;
            if let Some(region) = &region {
                mask = region.of(&mask, 1)?;
            }
            let mask = mask.mul_scalar(cond.mask_strength as f32);
            let mask = repeat_to_batch(&mask.unsqueeze(1)?, count)?;
            Some(mask.mul_scalar(strength).expand(input.shape())?)
        } else {
            let mut weight = Tensor::full(input.shape(), strength)?;
            if let Some(region) = &region {
                fade(&mut weight, region, &dims);
            }
            Some(weight)
        };
        let conds = cond.fitted(count, region.as_ref())?;
        Ok(Some(Self {
            list,
            // Conditions stay where they are for a run.
            id: std::ptr::from_ref(cond).addr(),
            input,
            weight,
            conds,
            cond,
            region,
            control: cond.control.as_ref(),
            network: cond.network.as_ref(),
            hooks: cond.hooks.as_ref(),
        }))
    }

    fn joins(&self, other: &Self) -> bool {
        same(self.control, other.control)
            && same(self.network, other.network)
            && same(self.hooks, other.hooks)
            && self.input.shape() == other.input.shape()
            && self.conds.keys().eq(other.conds.keys())
            && self
                .conds
                .values()
                .zip(other.conds.values())
                .all(|(a, b)| a.joins(b))
    }
}

/// Walks over the rows of a region of a tensor (b, c, ...): where each starts in the whole, and its length.
fn region_rows(shape: &[usize], region: Option<&Region>) -> (Vec<usize>, usize) {
    let Some(region) = region else {
        return (vec![0], shape.iter().product());
    };
    let dims = &shape[2..];
    let mut starts: Vec<usize> = (0..shape[0] * shape[1]).collect();
    let Some((last, outer)) = dims.len().checked_sub(1).map(|l| (l, &dims[..l])) else {
        return (starts, 1);
    };
    for (d, len) in outer.iter().enumerate() {
        starts = starts
            .iter()
            .flat_map(|s| (0..region.size[d]).map(move |i| s * len + region.offset[d] + i))
            .collect();
    }
    for s in &mut starts {
        *s = *s * dims[last] + region.offset[last];
    }
    (starts, region.size[last])
}

/// What a list of conditions predicts, gathered part by part.
enum Sum {
    Nothing,
    /// The only one so far, which speaks for every place alike.
    Alone(Tensor),
    Many {
        out: Tensor,
        count: Tensor,
    },
}

impl Sum {
    fn add(&mut self, x: &Tensor, prediction: Tensor, part: &ActiveCond<'_>) -> Result<()> {
        let before = std::mem::replace(self, Self::Nothing);
        let (mut out, mut count) = match (before, &part.weight) {
            (Self::Nothing, None) => {
                *self = Self::Alone(prediction);
                return Ok(());
            }
            (Self::Nothing, Some(_)) => {
                (Tensor::zeros(x.shape())?, Tensor::full(x.shape(), NOTHING)?)
            }
            (Self::Alone(out), _) => (out, Tensor::ones(x.shape())?),
            (Self::Many { out, count }, _) => (out, count),
        };
        match &part.weight {
            None => {
                for (out, more) in out.data_mut().iter_mut().zip(prediction.data()) {
                    *out += more;
                }
                count.map_inplace(|count| count + 1.0);
            }
            Some(weight) => add_weighted(&mut out, &mut count, &prediction, weight, part),
        }
        *self = Self::Many { out, count };
        Ok(())
    }

    fn finish(self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Nothing => Tensor::zeros(x.shape())?,
            Self::Alone(out) => out,
            Self::Many { out, count } => out.div(&count)?,
        })
    }
}

fn add_weighted(
    out: &mut Tensor,
    count: &mut Tensor,
    prediction: &Tensor,
    weight: &Tensor,
    part: &ActiveCond<'_>,
) {
    let (starts, len) = region_rows(out.shape(), part.region.as_ref());
    let (out, count) = (out.data_mut(), count.data_mut());
    let rows = prediction.data().chunks_exact(len);
    let weights = weight.data().chunks_exact(len);
    for ((start, row), weight) in starts.into_iter().zip(rows).zip(weights) {
        let to = start..start + len;
        for (((o, c), p), w) in out[to.clone()]
            .iter_mut()
            .zip(&mut count[to])
            .zip(row)
            .zip(weight)
        {
            *o += p * w;
            *c += w;
        }
    }
}

/// Default conditions take what the others leave.
fn add_defaults<'a>(
    parts: &mut Vec<ActiveCond<'a>>,
    lists: &[Option<&'a [Cond]>],
    x: &Tensor,
    sigma: f32,
) -> Result<()> {
    for (i, list) in lists.iter().enumerate() {
        let defaults: Vec<&Cond> = list
            .unwrap_or_default()
            .iter()
            .filter(|c| c.is_default)
            .collect();
        if defaults.is_empty() {
            continue;
        }
        let mut rest = Tensor::ones(x.shape())?;
        for part in parts.iter().filter(|p| p.list == i) {
            let Some(weight) = &part.weight else {
                rest.map_inplace(|v| v - 1.0);
                continue;
            };
            let (starts, len) = region_rows(x.shape(), part.region.as_ref());
            let data = rest.data_mut();
            for (start, weight) in starts.into_iter().zip(weight.data().chunks_exact(len)) {
                for (r, w) in data[start..start + len].iter_mut().zip(weight) {
                    *r -= w;
                }
            }
        }
        rest.map_inplace(|v| v.max(0.0));
        if rest.data().iter().all(|v| *v == 0.0) {
            continue;
        }
        for cond in defaults {
            if let Some(mut part) = ActiveCond::new(cond, i, x, sigma)? {
                part.weight = Some(match &part.region {
                    Some(region) => region.of(&rest, 2)?,
                    None => rest.clone(),
                });
                parts.push(part);
            }
        }
    }
    Ok(())
}

/// Which of the parts that fit the first one run with it: as many as the memory allows, last ones first.
fn choose(parts: &[ActiveCond<'_>], model: &dyn Predict) -> Vec<usize> {
    let mut fitting: Vec<usize> = (0..parts.len())
        .filter(|i| parts[*i].joins(&parts[0]))
        .collect();
    fitting.reverse();
    let Some(free) = model.memory_free() else {
        return fitting;
    };
    let shape = parts[0].input.shape();
    for divisor in 1..=fitting.len() {
        let count = fitting.len() / divisor;
        let mut all = shape.to_vec();
        all[0] *= count;
        if model.pass_bytes(&all) as f64 * 1.5 < free as f64 {
            fitting.truncate(count);
            return fitting;
        }
    }
    fitting.truncate(1);
    fitting
}

/// What each list of conditions predicts for a noisy latent (b, c, ...). A list that is not there predicts zeros. Long
/// latents are predicted in windows, where that was asked for.
pub fn predict(
    model: &dyn Predict,
    lists: &[Option<&[Cond]>],
    x: &Tensor,
    sigma: f32,
    hooks: &Hooks,
) -> Result<Vec<Tensor>> {
    match &hooks.windows {
        Some(windows) if windows.is_active(x.shape()) => {
            windows.predict(model, lists, x, sigma, hooks)
        }
        _ => predict_whole(model, lists, x, sigma, hooks),
    }
}

/// The same of the whole latent at once.
pub(super) fn predict_whole(
    model: &dyn Predict,
    lists: &[Option<&[Cond]>],
    x: &Tensor,
    sigma: f32,
    hooks: &Hooks,
) -> Result<Vec<Tensor>> {
    if x.rank() < 3 || x.is_empty() {
        return Err(ModelError::invalid(
            "latent",
            format!("a latent of shape {:?} cannot be sampled", x.shape()),
        ));
    }
    if let Some(reuse) = &hooks.reused_passes {
        reuse.begin_step();
    }
    let mut sums = Vec::with_capacity(lists.len());
    let mut parts = Vec::new();
    for (i, list) in lists.iter().enumerate() {
        sums.push(Sum::Nothing);
        for cond in list.unwrap_or_default().iter().filter(|c| !c.is_default) {
            parts.extend(ActiveCond::new(cond, i, x, sigma)?);
        }
    }
    add_defaults(&mut parts, lists, x, sigma)?;
    while !parts.is_empty() {
        // Indices fall, so taking one out leaves the others where they are.
        let batch: Vec<ActiveCond<'_>> = choose(&parts, model)
            .into_iter()
            .map(|i| parts.remove(i))
            .collect();
        run(model, &batch, x, sigma, hooks, &mut sums)?;
    }
    sums.into_iter().map(|sum| sum.finish(x)).collect()
}

fn run(
    model: &dyn Predict,
    batch: &[ActiveCond<'_>],
    whole: &Tensor,
    sigma: f32,
    hooks: &Hooks,
    sums: &mut [Sum],
) -> Result<()> {
    let inputs: Vec<&Tensor> = batch.iter().map(|p| &p.input).collect();
    let x = Tensor::cat(&inputs, 0)?;
    let all = batch.iter().map(|part| Arc::clone(&part.conds)).collect();
    let conds = batch[0].cond.joined(all)?;
    let control = match batch[0].control {
        Some(control) => control.features(&x, sigma, &conds, batch.len())?,
        None => None,
    };
    let mut hooks = hooks.clone();
    hooks.info.sigma = sigma;
    hooks.info.cond_or_uncond = batch.iter().map(|p| p.list).collect();
    hooks.info.cond_ids = batch.iter().map(|p| p.id).collect();
    if let Some(own) = batch[0].hooks {
        own.add(&x, &mut hooks)?;
    }
    let model = match batch[0].network {
        Some(network) => &**network,
        None => model,
    };
    let out = model.predict(&Call {
        x: &x,
        sigma,
        conds: &conds,
        control: control.as_ref(),
        hooks: &hooks,
    })?;
    if out.shape() != x.shape() {
        return Err(ModelError::invalid(
            "network",
            format!(
                "gave {:?} for a latent of shape {:?}",
                out.shape(),
                x.shape()
            ),
        ));
    }
    let count = out.dim(0)? / batch.len();
    for (number, part) in batch.iter().enumerate() {
        let prediction = out.narrow(0, number * count, count)?;
        sums[part.list].add(whole, prediction, part)?;
    }
    Ok(())
}
