//! Fitting the entries of a run's conditionings to its latent, once before sampling.

use std::sync::Arc;

use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale};

use super::call::ModelConds;
use super::cond::{Cond, Lists};
use super::region::{Area, Region};
use crate::error::{ModelError, Result};
use crate::model_sampling::ModelSampling;

/// What preparation knows of the run.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    pub sampling: &'a ModelSampling,
    /// In the shape of the latent (b, c, ...).
    pub noise: &'a Tensor,
    /// What sampling starts from, as the network sees it.
    pub latent: Option<&'a Tensor>,
    pub denoise_mask: Option<&'a Tensor>,
}

/// One condition as a model gets it to say what of it goes into the network.
#[derive(Clone, Copy)]
pub struct EncodeArgs<'a> {
    pub cond: &'a Cond,
    pub noise: &'a Tensor,
    pub latent: Option<&'a Tensor>,
    pub denoise_mask: Option<&'a Tensor>,
    /// Size of the picture in pixels.
    pub width: f64,
    pub height: f64,
    pub prompt_type: &'a str,
}

impl EncodeArgs<'_> {
    /// The prompt (b, n, c) of the width that a network takes; `file` is for messages.
    pub fn prompt_of_width(&self, wanted: usize, file: &str) -> Result<&Tensor> {
        let kind = self.prompt_type;
        let wrong = |reason: String| Err(ModelError::unsupported(file, reason));
        let Some(tokens) = &self.cond.tokens else {
            return wrong(format!(
                "the {kind} conditioning has no text for this model"
            ));
        };
        match tokens.shape() {
            [batch, count, width] if *width == wanted && *batch > 0 && *count > 0 => Ok(tokens),
            [_, _, width] if *width != wanted => wrong(format!(
                "this model takes text of width {wanted}, but the {kind} conditioning has width {width}: it was made \
                 with the text encoder of another family of models. Load the one that belongs to this model"
            )),
            shape => wrong(format!(
                "the {kind} conditioning has shape {shape:?}, which is not a text"
            )),
        }
    }
}

impl EncodeArgs<'_> {
    /// The pooled prompt (b, c) of the width that a network takes.
    pub fn pooled_of_width(&self, wanted: usize, file: &str) -> Result<&Tensor> {
        let kind = self.prompt_type;
        let found = self.cond.pooled.as_ref();
        match found.map(|pooled| (pooled, pooled.shape())) {
            Some((pooled, [batch, width])) if *width == wanted && *batch > 0 => Ok(pooled),
            Some((_, shape)) => Err(ModelError::unsupported(
                file,
                format!(
                    "this model takes pooled text of width {wanted}, but that of the {kind} conditioning has shape \
                     {shape:?}: it was made with the text encoder of another family of models. Load the one that belongs to this model"
                ),
            )),
            None => Err(ModelError::unsupported(
                file,
                format!("the {kind} conditioning has no pooled text, which this model needs"),
            )),
        }
    }
}

/// The model's part of preparation.
pub type Encode<'a> = dyn Fn(&EncodeArgs<'_>) -> Result<ModelConds> + 'a;

/// The smallest side of the box around a mask.
const LEAST_BOX: usize = 8;

fn cells_of_parts(parts: &[f64], dims: &[usize]) -> Region {
    let count = parts.len() / 2;
    let known = count.min(dims.len());
    let cells = |part: f64, len: usize| {
        let n = (part * len as f64).round_ties_even();
        if n.is_finite() && n > 0.0 {
            n as usize
        } else {
            0
        }
    };
    Region {
        size: (0..known)
            .map(|d| cells(parts[d], dims[d]).max(1))
            .collect(),
        offset: (0..known)
            .map(|d| cells(parts[count + d], dims[d]))
            .collect(),
    }
}

/// The box around everything in a mask (b, h, w).
fn bounds(mask: &Tensor) -> Result<Region> {
    let [_, h, w] = mask.dims3()?;
    let (mut rows, mut columns) = ((usize::MAX, 0), (usize::MAX, 0));
    for (i, v) in mask.data().iter().enumerate() {
        if *v != 0.0 {
            let (y, x) = (i / w % h, i % w);
            rows = (rows.0.min(y), rows.1.max(y));
            columns = (columns.0.min(x), columns.1.max(x));
        }
    }
    if rows.0 == usize::MAX {
        // Nothing to see: the smallest box is the cheapest.
        return Ok(Region {
            size: vec![LEAST_BOX; 2],
            offset: vec![0; 2],
        });
    }
    Ok(Region {
        size: vec![
            LEAST_BOX.max(rows.1 - rows.0 + 1),
            LEAST_BOX.max(columns.1 - columns.0 + 1),
        ],
        offset: vec![rows.0, columns.0],
    })
}

/// Areas in cells, masks in the size of the latent.
fn place_cond(cond: &mut Cond, dims: &[usize]) -> Result<()> {
    if let Some(Area::Parts(parts)) = &cond.area {
        cond.area = Some(Area::Cells(cells_of_parts(parts, dims)));
    }
    let (Some(mask), [.., h, w]) = (&cond.mask, dims) else {
        return Ok(());
    };
    let mut mask = mask.clone();
    if mask.rank() == dims.len() {
        mask = mask.unsqueeze(0)?;
    }
    if mask.rank() != dims.len() + 1 {
        return Err(ModelError::invalid(
            "conditioning mask",
            format!(
                "shape {:?} does not fit a latent of {dims:?} cells",
                mask.shape()
            ),
        ));
    }
    if mask.shape()[1..] != *dims {
        let planes = if mask.rank() == 3 {
            mask.unsqueeze(1)?
        } else {
            mask.clone()
        };
        let sized = common_upscale(&planes, *w, *h, ResizeMethod::Bilinear, Crop::Disabled)?;
        mask = if mask.rank() == 3 {
            sized.squeeze(1)?
        } else {
            sized
        };
    }
    if cond.area_of_mask {
        cond.area = Some(Area::Cells(bounds(&mask)?));
    }
    cond.mask = Some(mask);
    Ok(())
}

/// Parts of the sampling as noise levels.
fn time_cond(cond: &mut Cond, sampling: &ModelSampling) {
    let sigma = |percent: f64| sampling.percent_to_sigma(percent) as f32;
    if let Some((start, end)) = cond.text_percent {
        cond.start = Some(sigma(start.max(cond.start_percent.unwrap_or(0.0))));
        cond.end = Some(sigma(end.min(cond.end_percent.unwrap_or(1.0))));
    } else {
        cond.start = cond.start_percent.map(sigma);
        cond.end = cond.end_percent.map(sigma);
    }
}

/// Lets the model say what the network gets of each condition of a list.
pub fn encode(
    list: &mut [Cond],
    name: &str,
    setting: &Setting<'_>,
    model: &Encode<'_>,
) -> Result<()> {
    let shape = setting.noise.shape();
    for cond in list {
        let number = |key: &str| cond.numbers.get(key).copied();
        let side = |d: usize| shape.get(d).map_or(0.0, |n| (n * 8) as f64);
        let prompt_type = cond.prompt_type.clone();
        let args = EncodeArgs {
            cond,
            noise: setting.noise,
            latent: setting.latent,
            denoise_mask: setting.denoise_mask,
            width: number("width").unwrap_or_else(|| side(3)),
            height: number("height").unwrap_or_else(|| side(2)),
            prompt_type: prompt_type.as_deref().unwrap_or(name),
        };
        let made = model(&args)?;
        cond.model_conds.extend(made);
    }
    Ok(())
}

/// Gives a list an entry for an area of another list: without one, that area would be guided away from nothing.
fn match_area(list: &mut Vec<Cond>, other: &Cond) {
    let Some(area) = other.region() else {
        return;
    };
    let mut smallest: Option<&Cond> = None;
    for cond in list.iter() {
        let better = match (cond.region(), smallest.map(Cond::region)) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(a), found) => {
                area.is_inside(a)
                    && match found {
                        None | Some(None) => true,
                        Some(Some(b)) => b.volume() > a.volume(),
                    }
            }
        };
        if better {
            smallest = Some(cond);
        }
    }
    let Some(smallest) = smallest else {
        return;
    };
    if smallest.region() == Some(area) {
        return;
    }
    let mut copy = other.clone();
    copy.model_conds = smallest.model_conds.clone();
    list.push(copy);
}

/// Puts control nets of the positive prompt onto a list that has none.
fn share_control(positive: &[Cond], list: &mut [Cond]) {
    let whole = |c: &&Cond| c.region().is_none();
    let controls: Vec<_> = positive
        .iter()
        .filter(whole)
        .filter(|c| c.control_to_uncond)
        .filter_map(|c| c.control.clone())
        .collect();
    if list.iter().filter(whole).any(|c| c.control.is_some()) {
        return;
    }
    let free: Vec<usize> = (0..list.len())
        .filter(|i| list[*i].region().is_none())
        .collect();
    if free.is_empty() {
        return;
    }
    for (i, control) in controls.into_iter().enumerate() {
        // More control nets than prompts: the last one stays, as nothing is left to carry the others.
        list[free[i % free.len()]].control = Some(control);
    }
}

/// Lets what acts for the positive prompt act for a list that has nothing of the kind.
fn share_hooks(positive: &[Cond], list: &mut [Cond]) {
    let whole = |c: &&Cond| c.region().is_none();
    if list.iter().filter(whole).any(|c| c.hooks.is_some()) {
        return;
    }
    let hooks = positive.iter().filter(whole);
    let hooks: Vec<_> = hooks.filter_map(|c| c.hooks.clone()).collect();
    let mut free: Vec<&mut Cond> = list.iter_mut().filter(|c| c.region().is_none()).collect();
    if free.is_empty() {
        return;
    }
    let count = free.len();
    for (i, hooks) in hooks.into_iter().enumerate() {
        free[i % count].hooks = Some(hooks);
    }
}

/// Fits every list of a run to its latent.
pub fn prepare(mut lists: Lists, setting: &Setting<'_>, model: &Encode<'_>) -> Result<Lists> {
    let dims = setting.noise.shape().get(2..).unwrap_or_default().to_vec();
    for (_, list) in &mut lists {
        for cond in list.iter_mut() {
            place_cond(cond, &dims)?;
            time_cond(cond, setting.sampling);
        }
    }
    for (name, list) in &mut lists {
        encode(list, name, setting, model)?;
    }
    for from in 0..lists.len() {
        for at in 0..lists[from].1.len() {
            let cond = lists[from].1[at].clone();
            for (to, (_, list)) in lists.iter_mut().enumerate() {
                if to != from {
                    match_area(list, &cond);
                }
            }
        }
    }
    let positive = lists.iter().position(|(name, _)| &**name == "positive");
    if let Some(positive) = positive {
        let conds = lists[positive].1.clone();
        for (i, (_, list)) in lists.iter_mut().enumerate() {
            if i != positive {
                share_control(&conds, list);
                share_hooks(&conds, list);
            }
        }
    }
    Ok(lists)
}

/// A list under its name.
pub(super) fn named(lists: &Lists, name: &str) -> Option<Arc<[Cond]>> {
    let (_, list) = lists.iter().find(|(n, _)| &**n == name)?;
    Some(list.clone().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_cells() {
        let region = cells_of_parts(&[0.5, 0.3, 0.25, 0.5], &[16, 16]);
        assert_eq!((region.size, region.offset), (vec![8, 5], vec![4, 8]));
        let tiny = cells_of_parts(&[0.0, f64::NAN, -1.0, 0.0], &[16, 16]);
        assert_eq!((tiny.size, tiny.offset), (vec![1, 1], vec![0, 0]));
        assert!(cells_of_parts(&[], &[16, 16]).size.is_empty());
    }

    #[test]
    fn the_box_around_a_mask() {
        let mut mask = Tensor::zeros([2, 16, 16]).unwrap();
        assert_eq!(bounds(&mask).unwrap().size, [8, 8]);
        mask.data_mut()[16 * 3 + 5] = 0.5;
        mask.data_mut()[256 + 16 * 14 + 6] = -0.5;
        let region = bounds(&mask).unwrap();
        assert_eq!((region.size, region.offset), (vec![12, 8], vec![3, 5]));
    }
}
