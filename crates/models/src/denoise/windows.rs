//! Sampling long latents in windows: each step predicts part after part along one dimension, and joins what they predict.

use fresco_tensor::{Generator, Tensor};

use super::batch::predict_whole;
use super::call::{CondValue, ModelConds, Predict};
use super::cond::Cond;
use super::hooks::Hooks;
use crate::error::{ModelError, Result};

/// Which windows there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowSchedule {
    /// One after the other, the same in each step; the last ends with the latent.
    Static,
    /// Also wider ones that leave out frames, elsewhere in each step. None goes on at the start.
    Uniform,
    /// The same, and those at the end go on at the start.
    Looped,
    /// One after the other; the last may be shorter.
    Batched,
}

/// How much each place of a window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowFuse {
    Pyramid,
    /// By how far it is from the middle.
    Relative,
    Flat,
    /// Rises and falls where windows overlap.
    OverlapLinear,
}

impl WindowSchedule {
    pub const NAMES: [(&str, Self); 4] = [
        ("standard_static", Self::Static),
        ("standard_uniform", Self::Uniform),
        ("looped_uniform", Self::Looped),
        ("batched", Self::Batched),
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, s)| *s)
    }
}

impl WindowFuse {
    pub const NAMES: [(&str, Self); 4] = [
        ("pyramid", Self::Pyramid),
        ("relative", Self::Relative),
        ("flat", Self::Flat),
        ("overlap-linear", Self::OverlapLinear),
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, f)| *f)
    }
}

/// Rules for windows over one dimension of a latent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextWindows {
    pub length: usize,
    pub overlap: usize,
    pub schedule: WindowSchedule,
    pub stride: usize,
    pub closed_loop: bool,
    pub fuse: WindowFuse,
    pub dim: usize,
    /// Whether the noise of later frames is that of earlier ones in another order.
    pub free_noise: bool,
}

/// Inputs of networks that have frames elsewhere than the latent has, and where.
const ELSEWHERE: [(&str, usize); 1] = [("audio_embed", 1)];
/// The number of frames that networks are told.
const FRAMES: &str = "num_video_frames";
/// How near a noise level must be to one of the run's.
const NEAR: f32 = 1e-4;
/// What the ramps of overlaps begin with.
const NOTHING: f64 = 1e-37;

/// A number's bits the other way round, as a part of one: 0, 1/2, 1/4, 3/4, 1/8, ...
fn halving(step: usize) -> f64 {
    (step as u64).reverse_bits() as f64 / 2f64.powi(64)
}

impl ContextWindows {
    /// Refuses what makes no windows.
    pub fn check(&self) -> Result<()> {
        if self.length == 0 || self.overlap >= self.length {
            let reason = format!(
                "windows of {} frames cannot overlap by {}: the overlap must be smaller",
                self.length, self.overlap
            );
            return Err(ModelError::invalid("context windows", reason));
        }
        Ok(())
    }

    /// The windows of a step over so many frames.
    pub fn windows(&self, frames: usize, step: usize) -> Vec<Vec<usize>> {
        if frames <= self.length && self.schedule != WindowSchedule::Looped || frames < self.length
        {
            return vec![(0..frames).collect()];
        }
        match self.schedule {
            WindowSchedule::Static => {
                let step = (self.length - self.overlap).max(1);
                let last = frames - self.length;
                let starts = (0..last).step_by(step).chain([last]);
                starts.map(|at| (at..at + self.length).collect()).collect()
            }
            WindowSchedule::Batched => (0..frames)
                .step_by(self.length.max(1))
                .map(|at| (at..(at + self.length).min(frames)).collect())
                .collect(),
            WindowSchedule::Looped => self.uniform(frames, step, self.closed_loop),
            WindowSchedule::Uniform => {
                unrolled(self.uniform(frames, step, false), frames, self.length)
            }
        }
    }

    /// Windows of several widths that go on at the start.
    fn uniform(&self, frames: usize, step: usize, closed: bool) -> Vec<Vec<usize>> {
        let widths = (frames as f64 / self.length as f64).log2().ceil().max(0.0) as usize + 1;
        let part = halving(step);
        let pad = (frames as f64 * part).round_ties_even() as usize;
        let end = frames + pad - if closed { 0 } else { self.overlap.min(frames) };
        let mut found = Vec::new();
        for power in 0..self.stride.min(widths) {
            let every = 1_usize << power;
            let first = (part * every as f64) as usize + pad;
            let next = (self.length * every).saturating_sub(self.overlap).max(1);
            for start in (first..end).step_by(next) {
                let window = (0..self.length).map(|i| (start + i * every) % frames);
                found.push(window.collect());
            }
        }
        found
    }

    /// How much each place of a window counts.
    pub fn weights(&self, window: &[usize], frames: usize) -> Vec<f32> {
        let count = window.len();
        match self.fuse {
            WindowFuse::Flat => vec![1.0; count],
            WindowFuse::Pyramid | WindowFuse::Relative => {
                let place = |i: usize| (i + 1).min(count - i) as f32;
                (0..count).map(place).collect()
            }
            WindowFuse::OverlapLinear => {
                let mut weights = vec![1.0; count];
                let overlap = self.overlap.min(count);
                let ramp = |i: usize| {
                    let share = i as f64 / (overlap.max(2) - 1) as f64;
                    (NOTHING + (1.0 - NOTHING) * share) as f32
                };
                if !window.contains(&0) {
                    for (i, weight) in weights.iter_mut().take(overlap).enumerate() {
                        *weight = ramp(i);
                    }
                }
                if !window.contains(&(frames - 1)) {
                    for (i, weight) in weights.iter_mut().rev().take(overlap).enumerate() {
                        *weight = ramp(i);
                    }
                }
                weights
            }
        }
    }

    /// The frame whose noise each frame gets.
    pub fn noise_order(&self, frames: usize, seed: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..frames).collect();
        let step = self.length.saturating_sub(self.overlap).max(1);
        let mut random = Generator::new(seed);
        let mut start = 0;
        while start + self.length < frames {
            let place = start + self.length;
            let count = step.min(frames - place);
            let from = random.permutation(count).into_iter();
            let copied: Vec<usize> = from.map(|at| order[start + at]).collect();
            order[place..place + count].copy_from_slice(&copied);
            start += step;
        }
        order
    }

    /// The noise of a run, where it is wanted that way.
    pub fn noise(&self, noise: &Tensor, seed: u64) -> Result<Tensor> {
        let frames = noise.shape().get(self.dim).copied().unwrap_or(0);
        if !self.free_noise || frames <= self.length {
            return Ok(noise.clone());
        }
        Ok(noise.index_select(self.dim, &self.noise_order(frames, seed))?)
    }

    /// Whether a latent of this shape is cut into windows.
    pub fn is_active(&self, shape: &[usize]) -> bool {
        shape.get(self.dim).is_some_and(|n| *n > self.length)
    }

    /// What each list of conditions predicts, window by window.
    pub(super) fn predict(
        &self,
        model: &dyn Predict,
        lists: &[Option<&[Cond]>],
        x: &Tensor,
        sigma: f32,
        hooks: &Hooks,
    ) -> Result<Vec<Tensor>> {
        self.check()?;
        let frames = x.dim(self.dim)?;
        let near = |level: &f32| (level - sigma).abs() <= NEAR * sigma.abs();
        let step = hooks.schedule.iter().position(near).unwrap_or(0);
        let mut sums: Vec<Tensor> = Vec::new();
        let mut totals = vec![0.0_f32; frames];
        for window in self.windows(frames, step) {
            hooks.check()?;
            let part = x.index_select(self.dim, &window)?;
            let cut: Vec<Option<Vec<Cond>>> = lists
                .iter()
                .map(|list| list.map(|list| self.cut(list, x, &window)).transpose())
                .collect::<Result<_>>()?;
            let cut: Vec<Option<&[Cond]>> = cut.iter().map(Option::as_deref).collect();
            let found = predict_whole(model, &cut, &part, sigma, hooks)?;
            let weights = self.shares(&window, frames);
            if sums.is_empty() {
                let zeros = found.iter().map(|_| Tensor::zeros(x.shape()));
                sums = zeros.collect::<fresco_tensor::Result<_>>()?;
            }
            for (sum, found) in sums.iter_mut().zip(&found) {
                add(sum, found, self.dim, &window, &weights);
            }
            for (&frame, weight) in window.iter().zip(&weights) {
                totals[frame] += weight;
            }
        }
        let mut shape = vec![1; x.rank()];
        shape[self.dim] = frames;
        let totals = Tensor::from_vec(shape, totals)?;
        let joined = sums.iter().map(|sum| Ok(sum.div(&totals)?));
        joined.collect()
    }

    /// What the places of a window count when windows are joined.
    fn shares(&self, window: &[usize], frames: usize) -> Vec<f32> {
        if self.fuse != WindowFuse::Relative {
            return self.weights(window, frames);
        }
        let (Some(&first), Some(&last)) = (window.first(), window.last()) else {
            return Vec::new();
        };
        let (first, last) = (first as f64, last as f64);
        let share = |&at: &usize| {
            let off = (at as f64 - f64::midpoint(first, last)).abs();
            (1.0 - off / f64::midpoint(last - first, 0.01)).max(0.01) as f32
        };
        window.iter().map(share).collect()
    }

    /// Conditions as they are for a window.
    fn cut(&self, list: &[Cond], x: &Tensor, window: &[usize]) -> Result<Vec<Cond>> {
        let frames = x.dim(self.dim)?;
        let at = |tensor: &Tensor, dim: usize| -> Result<Tensor> {
            if tensor.shape().get(dim) == Some(&frames) {
                return Ok(tensor.index_select(dim, window)?);
            }
            Ok(tensor.clone())
        };
        let mut found = Vec::with_capacity(list.len());
        for cond in list {
            let mut cond = cond.clone();
            if let Some(mask) = cond.mask.take() {
                // Masks have no channels.
                let dim = self.dim.saturating_sub(usize::from(self.dim > 0));
                let whole = mask.rank() + 1 == x.rank();
                cond.mask = Some(if whole { at(&mask, dim)? } else { mask });
            }
            let mut conds = ModelConds::new();
            for (name, value) in &cond.model_conds {
                let elsewhere = ELSEWHERE.iter().find(|(other, _)| other == name);
                let dim = elsewhere.map_or(self.dim, |(_, dim)| *dim);
                conds.insert(
                    name,
                    match value {
                        CondValue::Regular(t) => CondValue::Regular(at(t, dim)?),
                        CondValue::NoiseShape(t) => CondValue::NoiseShape(at(t, dim)?),
                        CondValue::CrossAttn(t) => CondValue::CrossAttn(at(t, dim)?),
                        CondValue::List(list) => {
                            let cut = list.iter().map(|t| at(t, dim));
                            CondValue::List(cut.collect::<Result<_>>()?)
                        }
                        CondValue::Constant(_) if *name == FRAMES => {
                            CondValue::Constant(window.len() as f64)
                        }
                        CondValue::Constant(_) | CondValue::Word(_) => value.clone(),
                    },
                );
            }
            cond.model_conds = conds;
            found.push(cond);
        }
        Ok(found)
    }
}

/// Adds the places of a window, each times what it counts, to where they belong.
fn add(sum: &mut Tensor, found: &Tensor, dim: usize, window: &[usize], weights: &[f32]) {
    let shape = sum.shape().to_vec();
    let inner: usize = shape[dim + 1..].iter().product();
    let (rows, part) = (shape[dim] * inner, window.len() * inner);
    let from = found.data();
    for (outer, to) in sum.data_mut().chunks_exact_mut(rows.max(1)).enumerate() {
        for (place, (&frame, weight)) in window.iter().zip(weights).enumerate() {
            let values = &from[outer * part + place * inner..][..inner];
            for (to, value) in to[frame * inner..][..inner].iter_mut().zip(values) {
                *to += weight * value;
            }
        }
    }
}

/// Windows that would go on at the start moved to the end, without those that are there already.
fn unrolled(mut windows: Vec<Vec<usize>>, frames: usize, length: usize) -> Vec<Vec<usize>> {
    let mut at = 0;
    let mut again = Vec::new();
    while at < windows.len() {
        let rolls = windows[at].windows(2).position(|pair| pair[1] < pair[0]);
        if let Some(place) = rolls {
            let value = windows[at][place + 1];
            let first = windows[at][0];
            let shifted = windows[at].iter().map(|v| (v + frames - first) % frames);
            let shifted: Vec<usize> = shifted.collect();
            let rest = frames - 1 - shifted.last().copied().unwrap_or(0);
            windows[at] = shifted.into_iter().map(|v| v + rest).collect();
            let next = (at + 1) % windows.len();
            if !windows[next].contains(&value) {
                let new = (value..value + length).collect();
                windows.insert(at + 1, new);
            }
        }
        if windows[..at].contains(&windows[at]) {
            again.push(at);
        }
        at += 1;
    }
    for at in again.into_iter().rev() {
        windows.remove(at);
    }
    windows
}
