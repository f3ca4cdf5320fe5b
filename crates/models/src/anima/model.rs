//! The network and what goes into it.

use std::sync::{Mutex, PoisonError};

use fresco_tensor::Tensor;

use super::conditioner::{Conditioner, ConditionerConfig};
use super::lite::LiteControl;
use crate::conds;
use crate::cosmos::{CosmosConfig, CosmosDit};
use crate::denoise::hook_points::{BLOCKS, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, names,
};
use crate::error::Result;
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Walk, WeightStore};
use crate::transformer::hides;

/// What a conditioning calls the words' tokens and their weights.
const IDS: &str = "t5xxl_ids";
const WEIGHTS: &str = "t5xxl_weights";

/// Prompts that are remembered: with and without what is wanted, and a few areas.
const REMEMBERED: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub struct AnimaConfig {
    pub dit: CosmosConfig,
    pub text: ConditionerConfig,
}

impl AnimaConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        Ok(Self {
            dit: CosmosConfig::detect(store)?,
            text: ConditionerConfig::detect(store)?,
        })
    }
}

/// A prompt as it came in, and what was made of it.
struct Made {
    from: [Option<Tensor>; 4],
    prompt: Tensor,
}

pub struct Anima {
    dit: CosmosDit,
    conditioner: Conditioner,
    /// The same in all steps of a run.
    made: Mutex<Vec<Made>>,
}

conds! {
    /// What the network is told besides the latent.
    struct AnimaConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        ids: Option<&'a Tensor> = IDS,
        mask: Option<&'a Tensor> = names::MASK,
        weights: Option<&'a Tensor> = WEIGHTS,
    }
}

impl DiffusionNetwork for Anima {
    type Config = AnimaConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, OWN, PROMPT])]);

    fn facts(config: &AnimaConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::WAN21,
            latent_channels: config.dit.out_channels,
            in_channels: config.dit.in_channels,
            context: Some(config.text.source),
            model_channels: None,
            architecture: None,
            pass: config.dit.pass(),
            sampling: ModelSampling::flow(3.0, 1.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &AnimaConfig) -> Result<Self> {
        Ok(Self {
            dit: CosmosDit::new(weights, &config.dit)?,
            conditioner: Conditioner::new(weights, &config.text)?,
            made: Mutex::default(),
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let prompt = self.prompt(&AnimaConds::read(input.conds)?)?;
        let hooks = input.hooks;
        let items = input.x.dim(0)?;
        let mut changes = Vec::new();
        for control in hooks.beside::<LiteControl>() {
            changes.extend(control.start(items, hooks.info.sigma)?);
        }
        self.dit
            .forward(input.x, input.timesteps, &prompt, hooks, &changes)
    }

    fn encode(config: &AnimaConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tensors = &args.cond.tensors;
        let row =
            |t: &Tensor| -> Result<CondValue> { Ok(CondValue::Regular(t.reshape([1, t.len()])?)) };
        let width = match tensors.get(IDS) {
            Some(ids) => {
                conds.insert(IDS, row(ids)?);
                config.text.source
            }
            // A prompt that was made elsewhere.
            None => config.dit.context,
        };
        let tokens = args.prompt_of_width(width, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        if let Some(weights) = tensors.get(WEIGHTS).filter(|_| conds.contains_key(IDS)) {
            conds.insert(WEIGHTS, row(weights)?);
        }
        let mask = tensors.get("attention_mask");
        if let Some(mask) = mask.filter(|mask| hides(mask)) {
            conds.insert(names::MASK, CondValue::Regular(mask.clone()));
        }
        Ok(conds)
    }

    fn rest(&self) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.clear();
    }
}

impl Anima {
    /// The prompt as the transformer takes it.
    fn prompt(&self, conds: &AnimaConds<'_>) -> Result<Tensor> {
        let states = conds.prompt;
        let Some(ids) = conds.ids else {
            return self.conditioner.filled(states.clone());
        };
        let mask = conds.mask;
        let weights = conds.weights;
        let from = [Some(states), Some(ids), mask, weights].map(Option::<&Tensor>::cloned);
        let lock = || self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().iter().find(|made| made.from == from) {
            return Ok(known.prompt.clone());
        }
        let mut prompt = self.conditioner.forward(states, mask, ids)?;
        if let Some(weights) = weights {
            let [b, m, _] = prompt.dims3()?;
            let weights = fresco_tensor::repeat_to_batch(weights, b)?;
            prompt = prompt.mul(&weights.reshape([b, m, 1])?)?;
        }
        let prompt = self.conditioner.filled(prompt)?;
        let mut made = lock();
        if made.len() >= REMEMBERED {
            made.remove(0);
        }
        made.push(Made {
            from,
            prompt: prompt.clone(),
        });
        Ok(prompt)
    }

    /// What is made of a prompt, for tests.
    pub fn conditioner(&self) -> &Conditioner {
        &self.conditioner
    }
}
