//! What hooks change: the weights of models and text encoders, as strongly as their keyframes say.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_graph::NodeError;
use fresco_memory::Need;
use fresco_models::denoise::{Call, Predict};
use fresco_models::lora::{LoraFile, load};
use fresco_models::patch::{Change, OtherWeight, Patch};
use fresco_models::{ModelError, WeightStore};
use fresco_tensor::{Tensor, available_memory};

use super::{Hook, Hooks};
use crate::clip::Clip;
use crate::lora::{Weights, add_patches};
use crate::resident::{Asker, InUse, model_failure};
use crate::sampling::{BaseModel, Model};

/// Where a hook's weights come from.
#[derive(Clone)]
pub enum HookWeights {
    Lora(Arc<LoraFile>),
    /// A checkpoint: what its weights have more than the model's is the change. Stores with what stands before their
    /// keys in patches.
    Checkpoint(Vec<(String, Arc<WeightStore>)>),
}

impl HookWeights {
    /// The changes of a value's weights, of strength one.
    fn patches<T: Weights>(&self, value: &T) -> Result<Vec<(String, Patch)>, NodeError> {
        match self {
            Self::Lora(file) => {
                let loaded = load(file, &value.lora_names()?)?;
                Ok(loaded.patches(1.0, |_| true))
            }
            Self::Checkpoint(stores) => {
                let mut patches = Vec::new();
                for (prefix, store) in stores {
                    for key in store.keys() {
                        let other = OtherWeight {
                            store: Arc::clone(store),
                            key: key.to_owned(),
                            patches: Vec::new(),
                        };
                        let patch = Patch {
                            strength: 1.0,
                            change: Change::Difference(Arc::new(other)),
                            ..Patch::scaled(1.0)
                        };
                        patches.push((format!("{prefix}{key}"), patch));
                    }
                }
                Ok(patches)
            }
        }
    }
}

/// A value with the changes of hooks, each list times its strength.
fn changed<T: Weights>(value: T, lists: &[(Vec<(String, Patch)>, f64)]) -> Result<T, NodeError> {
    let mut all = Vec::new();
    for (patches, strength) in lists {
        if *strength != 0.0 {
            all.extend(patches.iter().map(|(key, patch)| {
                let patch = Patch {
                    strength: patch.strength * strength,
                    ..patch.clone()
                };
                (key.clone(), patch)
            }));
        }
    }
    let (value, _) = add_patches(value, all, "hooks", None)?;
    Ok(value)
}

impl Hooks {
    /// A text encoder with the changes of all hooks; `keyframes` multiply their strengths.
    pub(crate) fn on_clip(&self, clip: Clip, keyframes: &[f64]) -> Result<Clip, NodeError> {
        let mut lists = Vec::new();
        for (hook, keyframe) in self.0.iter().zip(keyframes) {
            if let Some(weights) = &hook.weights {
                lists.push((weights.patches(&clip)?, hook.strength_clip * keyframe));
            }
        }
        changed(clip, &lists)
    }

    /// The parts of sampling between which no hook's keyframes change, each with the strengths the keyframes have there.
    pub(crate) fn clip_schedule(&self) -> Vec<((f64, f64), Vec<f64>)> {
        let schedules: Vec<Vec<((f64, f64), f64)>> = self.0.iter().map(schedule).collect();
        let mut bounds: Vec<f64> = vec![0.0];
        bounds.extend(schedules.iter().flatten().flat_map(|((a, b), _)| [*a, *b]));
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        bounds
            .windows(2)
            .map(|w| {
                let strengths = schedules.iter().map(|ranges| {
                    let found = ranges.iter().find(|((a, b), _)| *a < w[1] && *b > w[0]);
                    found.map_or(1.0, |(_, strength)| *strength)
                });
                ((w[0], w[1]), strengths.collect())
            })
            .collect()
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// The ranges of one hook's keyframes, those of equal strength taken together.
fn schedule(hook: &Hook) -> Vec<((f64, f64), f64)> {
    let keyframes = hook.keyframes.all();
    let Some(mut last) = keyframes.first() else {
        return vec![((0.0, 1.0), 1.0)];
    };
    let mut ranges = Vec::new();
    for keyframe in keyframes {
        if keyframe.start_percent > last.start_percent && !close(keyframe.strength, last.strength) {
            ranges.push(((last.start_percent, keyframe.start_percent), last.strength));
            last = keyframe;
        } else if keyframe.start_percent == last.start_percent {
            last = keyframe;
        }
    }
    if !close(last.start_percent, 1.0) {
        ranges.push(((last.start_percent, 1.0), last.strength));
    }
    ranges
}

/// A keyframe of a run: from which noise level on, how strong, and for how many steps at least.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Frame {
    start: f64,
    strength: f64,
    guaranteed: u32,
}

/// Which keyframe of a hook is in force.
#[derive(Clone, Debug)]
struct Position {
    frames: Vec<Frame>,
    index: usize,
    used: u32,
}

impl Position {
    fn strength(&self) -> f64 {
        self.frames.get(self.index).map_or(1.0, |f| f.strength)
    }

    /// Goes on to a new noise level: past keyframes that have served their steps, to one that has begun.
    fn advance(&mut self, sigma: f64) {
        let Some(current) = self.frames.get(self.index) else {
            return;
        };
        if self.used >= current.guaranteed {
            for (i, frame) in self.frames.iter().enumerate().skip(self.index + 1) {
                if frame.start < sigma {
                    break;
                }
                self.index = i;
                self.used = 0;
                if frame.guaranteed > 0 {
                    break;
                }
            }
        }
        self.used += 1;
    }
}

/// A hook that changes the model of a run.
struct Active {
    patches: Vec<(String, Patch)>,
    strength: f64,
}

struct State {
    positions: Vec<Position>,
    sigma: Option<f32>,
    network: Option<Made>,
}

/// The network of some strengths.
struct Made {
    strengths: Vec<f64>,
    usable: Usable,
}

/// A network whose weights are in place.
#[derive(Clone)]
struct Usable {
    network: Arc<dyn BaseModel>,
    in_use: Option<Arc<InUse>>,
}

/// A model with the weights that a group of hooks gives it, at every noise level those of its keyframes.
pub(crate) struct HookedNetwork {
    model: Model,
    hooks: Vec<Active>,
    asker: Asker,
    state: Mutex<State>,
}

impl HookedNetwork {
    /// For a run that begins at the noise level `first`. None if no hook changes the model's weights.
    pub(crate) fn new(
        model: &Model,
        hooks: &Hooks,
        first: f32,
        asker: Asker,
    ) -> Result<Option<Self>, NodeError> {
        let mut active = Vec::new();
        let mut positions = Vec::new();
        for hook in &hooks.0 {
            let Some(weights) = &hook.weights else {
                continue;
            };
            let frames = hook.keyframes.all().iter().map(|keyframe| {
                let start = model.sampling.percent_to_sigma(keyframe.start_percent);
                Frame {
                    start,
                    strength: keyframe.strength,
                    // One that begins before the run has had its steps.
                    guaranteed: if start > f64::from(first) {
                        0
                    } else {
                        keyframe.guarantee_steps
                    },
                }
            });
            positions.push(Position {
                frames: frames.collect(),
                index: 0,
                used: 0,
            });
            active.push(Active {
                patches: weights.patches(model)?,
                strength: hook.strength_model,
            });
        }
        if active.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            model: model.clone(),
            hooks: active,
            asker,
            state: Mutex::new(State {
                positions,
                sigma: None,
                network: None,
            }),
        }))
    }

    /// The network for a noise level. It is made anew only when a strength changes.
    fn at(&self, sigma: f32) -> Result<Usable, ModelError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.sigma != Some(sigma) {
            state.sigma = Some(sigma);
            for position in &mut state.positions {
                position.advance(f64::from(sigma));
            }
        }
        let strengths: Vec<f64> = self
            .hooks
            .iter()
            .zip(&state.positions)
            .map(|(hook, position)| hook.strength * position.strength())
            .collect();
        if let Some(made) = &state.network
            && made.strengths == strengths
        {
            return Ok(made.usable.clone());
        }
        // The old weights go before the new ones come.
        state.network = None;
        let lists: Vec<_> = self
            .hooks
            .iter()
            .zip(&strengths)
            .map(|(hook, strength)| (hook.patches.clone(), *strength))
            .collect();
        let model = changed(self.model.clone(), &lists)
            .map_err(|e| ModelError::invalid("hooks", e.message()))?;
        let ready = model.ready()?;
        let in_use = match &ready.hold {
            Some(hold) => {
                let lease = self.asker.lease(&[hold.handle()], Need::default());
                Some(Arc::new(lease.map_err(model_failure)?))
            }
            None => None,
        };
        let usable = Usable {
            network: ready.network,
            in_use,
        };
        state.network = Some(Made {
            strengths,
            usable: usable.clone(),
        });
        Ok(usable)
    }
}

impl Predict for HookedNetwork {
    fn predict(&self, call: &Call<'_>) -> Result<Tensor, ModelError> {
        let Usable { network, in_use } = self.at(call.sigma)?;
        let pass = || network.apply(&self.model.sampling, call);
        match in_use {
            Some(in_use) => in_use.run(pass),
            None => pass(),
        }
    }

    fn pass_bytes(&self, shape: &[usize]) -> u64 {
        self.model.base.pass_bytes(shape)
    }

    fn memory_free(&self) -> Option<u64> {
        let device = self.model.base.store().map(|store| store.device());
        match device.filter(|device| !device.is_cpu()) {
            Some(device) => device.free(),
            None => available_memory(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::{HookKeyframe, HookKeyframes};

    fn hook(keyframes: &[(f64, f64)]) -> Hook {
        let mut all = HookKeyframes::default();
        for (start_percent, strength) in keyframes {
            all.add(HookKeyframe {
                strength: *strength,
                start_percent: *start_percent,
                guarantee_steps: 1,
            });
        }
        Hook {
            keyframes: all,
            ..Hook::new(1.0, 1.0)
        }
    }

    #[test]
    fn ranges_end_where_any_hook_changes() {
        let hooks = Hooks(vec![
            hook(&[(0.0, 1.0), (0.5, 0.2), (0.7, 0.2)]),
            hook(&[(0.25, 0.5)]),
            hook(&[]),
        ]);
        let ranges = hooks.clip_schedule();
        let expected = [
            ((0.0, 0.25), vec![1.0, 1.0, 1.0]),
            ((0.25, 0.5), vec![1.0, 0.5, 1.0]),
            ((0.5, 1.0), vec![0.2, 0.5, 1.0]),
        ];
        assert_eq!(ranges, expected);
    }

    fn position(frames: &[(f64, f64, u32)]) -> Position {
        Position {
            frames: frames
                .iter()
                .map(|&(start, strength, guaranteed)| Frame {
                    start,
                    strength,
                    guaranteed,
                })
                .collect(),
            index: 0,
            used: 0,
        }
    }

    /// A hook from 0 to 1 half way changes exactly once.
    #[test]
    fn keyframes_advance_with_the_noise() {
        let mut p = position(&[(99.0, 0.0, 0), (5.0, 1.0, 1)]);
        let strengths: Vec<f64> = [14.0, 8.0, 5.0, 2.0, 0.5]
            .into_iter()
            .map(|sigma| {
                p.advance(sigma);
                p.strength()
            })
            .collect();
        assert_eq!(strengths, [0.0, 0.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn guaranteed_steps_hold_the_next_back() {
        let mut p = position(&[(99.0, 0.0, 0), (9.0, 1.0, 2), (8.0, 2.0, 1), (7.0, 3.0, 1)]);
        let strengths: Vec<f64> = [8.5, 6.0, 4.0, 3.0, 2.0]
            .into_iter()
            .map(|sigma| {
                p.advance(sigma);
                p.strength()
            })
            .collect();
        assert_eq!(strengths, [1.0, 1.0, 2.0, 3.0, 3.0]);
        let mut none = position(&[]);
        none.advance(1.0);
        assert_eq!(none.strength(), 1.0);
    }
}
