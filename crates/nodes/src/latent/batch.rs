//! Latent batches: picking, repeating, joining, regrouping.

use fresco_graph::{Cx, Grown, Input, Node, NodeError, NodeOutput, NodeResult, Output, Value, map};
use fresco_tensor::Tensor;

use super::{match_size, repeat_to_batch};
use crate::python_rules::slice;
use crate::types::{Latent, as_tensor, tensor};

/// Which noise of the seed each item gets.
fn batch_index(latent: &Latent) -> Option<Vec<Value>> {
    latent
        .0
        .get("batch_index")
        .and_then(Value::as_list)
        .map(<[Value]>::to_vec)
}

fn batch_index_or_count(latent: &Latent, count: usize) -> Vec<Value> {
    batch_index(latent).unwrap_or_else(|| (0..count).map(Value::from).collect())
}

/// Picks items out of a latent batch.
#[derive(Node)]
#[node(
    id = "LatentFromBatch",
    v1,
    module = "nodes",
    display = "Latent From Batch",
    category = "latent/batch",
    outputs("LATENT")
)]
pub struct LatentFromBatch {
    samples: Latent,
    /// The first latent to take, counted from 0.
    #[input(default = 0, min = 0, max = 63)]
    batch_index: i64,
    /// How many latents to take.
    #[input(default = 1, min = 1, max = 64)]
    length: i64,
}

impl Node for LatentFromBatch {
    fn run(self, _: &Cx) -> NodeResult {
        let samples = self.samples.samples()?;
        let count = samples.dim(0)?;
        if count == 0 {
            return Err(NodeError::runtime("the latent batch is empty"));
        }
        let start = usize::try_from(self.batch_index)
            .unwrap_or(0)
            .min(count - 1);
        let length = usize::try_from(self.length).unwrap_or(0).min(count - start);
        let mut out = self
            .samples
            .clone()
            .with_tensor("samples", samples.narrow(0, start, length)?);
        if let Some(mask) = self.samples.tensor("noise_mask")
            && mask.dim(0)? != 1
        {
            let all = if mask.dim(0)? < count {
                repeat_to_batch(mask, count)?
            } else {
                mask.clone()
            };
            out = out.with_tensor("noise_mask", all.narrow(0, start, length)?);
        }
        let index: Vec<Value> = match batch_index(&self.samples) {
            Some(index) => {
                let range = slice(start as i64, (start + length) as i64, index.len());
                index[range].to_vec()
            }
            None => (start..start + length).map(Value::from).collect(),
        };
        Ok(NodeOutput::one(out.with("batch_index", index)))
    }
}

/// Repeats a latent batch.
#[derive(Node)]
#[node(
    id = "RepeatLatentBatch",
    v1,
    module = "nodes",
    display = "Repeat Latent Batch",
    category = "latent/batch",
    outputs("LATENT")
)]
pub struct RepeatLatentBatch {
    samples: Latent,
    #[input(default = 1, min = 1, max = 64)]
    amount: i64,
}

impl Node for RepeatLatentBatch {
    fn run(self, _: &Cx) -> NodeResult {
        let amount = super::size("amount", self.amount)?;
        let tile = |t: &Tensor| {
            let mut counts = vec![1; t.rank().max(1)];
            counts[0] = amount;
            t.repeat(&counts)
        };
        let samples = self.samples.samples()?;
        let mut out = self.samples.clone().with_tensor("samples", tile(samples)?);
        if let Some(mask) = self.samples.tensor("noise_mask")
            && mask.dim(0)? > 1
        {
            let all = if mask.dim(0)? < samples.dim(0)? {
                repeat_to_batch(mask, samples.dim(0)?)?
            } else {
                mask.clone()
            };
            out = out.with_tensor("noise_mask", tile(&all)?);
        }
        if let Some(index) = batch_index(&self.samples) {
            let numbers: Vec<i128> = index.iter().filter_map(Value::as_int).collect();
            // Copies continue after the originals, so that no two items share noise.
            let offset =
                numbers.iter().max().unwrap_or(&0) - numbers.iter().min().unwrap_or(&0) + 1;
            let repeated: Vec<Value> = (0..amount as i128)
                .flat_map(|i| numbers.iter().map(move |n| Value::Int(n + i * offset)))
                .collect();
            out = out.with("batch_index", repeated);
        }
        Ok(NodeOutput::one(out))
    }
}

/// Joins latents into one batch; later ones take the size of the first.
fn join(latents: &[Latent]) -> Result<Latent, NodeError> {
    let Some(first) = latents.first() else {
        return Err(NodeError::value_error("no latents to join"));
    };
    let target = first.samples()?.shape().to_vec();
    let mut tensors = Vec::with_capacity(latents.len());
    let mut index = Vec::new();
    for latent in latents {
        let samples = latent.samples()?;
        index.extend(batch_index_or_count(latent, samples.dim(0)?));
        tensors.push(match_size(samples, &target)?);
    }
    let joined = Tensor::cat(&tensors.iter().collect::<Vec<_>>(), 0)?;
    Ok(first
        .clone()
        .with_tensor("samples", joined)
        .with("batch_index", index))
}

/// Joins two latents into one batch.
#[derive(Node)]
#[node(
    id = "LatentBatch",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/batch",
    outputs("LATENT"),
    deprecated
)]
pub struct LatentBatch {
    samples1: Latent,
    samples2: Latent,
}

impl Node for LatentBatch {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(join(&[self.samples1, self.samples2])?))
    }
}

fn latent_slots() -> Input {
    Input::autogrow("latents", Input::new("latent", "LATENT"), "latent", 2, 50)
}

/// Joins any number of latents into one batch.
#[derive(Node)]
#[node(
    id = "BatchLatentsNode",
    v3,
    module = "comfy_extras.nodes_post_processing",
    display = "Batch Latents",
    category = "latent",
    outputs("LATENT")
)]
pub struct BatchLatentsNode {
    /// The latents, in this order; as many as are connected.
    #[input(spec = latent_slots())]
    latents: Grown<Latent>,
}

impl Node for BatchLatentsNode {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(join(&self.latents.0)?))
    }
}

/// Gives all items of a batch the same noise, or each its own.
#[derive(Node)]
#[node(
    id = "LatentBatchSeedBehavior",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced",
    outputs("LATENT")
)]
pub struct LatentBatchSeedBehavior {
    samples: Latent,
    /// random: each latent gets noise of its own; fixed: all get that of the first.
    #[input(choices = ["random", "fixed"], default = "fixed")]
    seed_behavior: String,
}

impl Node for LatentBatchSeedBehavior {
    fn run(self, _: &Cx) -> NodeResult {
        let out = match self.seed_behavior.as_str() {
            "random" => self.samples.without("batch_index"),
            "fixed" => {
                let count = self.samples.samples()?.dim(0)?;
                let first = batch_index(&self.samples)
                    .and_then(|i| i.first().cloned())
                    .unwrap_or(Value::Int(0));
                self.samples.with("batch_index", vec![first; count])
            }
            _ => self.samples,
        };
        Ok(NodeOutput::one(out))
    }
}

/// Latents collected for one size, with a mask and an index for each item.
struct Pool {
    samples: Tensor,
    mask: Tensor,
    index: Vec<Value>,
}

impl Pool {
    fn of(latent: &Latent, offset: usize) -> Result<Self, NodeError> {
        let samples = latent.samples()?;
        let shape = samples.shape();
        let &[count, _, h, w] = shape else {
            return Err(NodeError::runtime(format!(
                "only picture latents can be regrouped, not shape {shape:?}"
            )));
        };
        let mask = match latent.0.get("noise_mask").and_then(as_tensor) {
            Some(mask) if mask.dim(0)? < count => repeat_to_batch(mask, count)?,
            Some(mask) => mask.clone(),
            None => Tensor::ones([count, 1, h * 8, w * 8])?,
        };
        let index = batch_index(latent)
            .unwrap_or_else(|| (offset..offset + count).map(Value::from).collect());
        Ok(Self {
            samples: samples.clone(),
            mask,
            index,
        })
    }

    fn fits(&self, other: &Self) -> bool {
        self.samples.shape()[2..] == other.samples.shape()[2..]
    }

    fn append(&mut self, other: &Self) -> Result<(), NodeError> {
        self.samples = Tensor::cat(&[&self.samples, &other.samples], 0)?;
        self.mask = Tensor::cat(&[&self.mask, &other.mask], 0)?;
        self.index.extend(other.index.iter().cloned());
        Ok(())
    }

    fn len(&self) -> usize {
        self.samples.shape()[0]
    }

    /// Takes the first `count` items off; none stay behind if there are no more.
    fn take(self, count: usize) -> Result<(Latent, Option<Self>), NodeError> {
        let part = |t: &Tensor, range: std::ops::Range<usize>| {
            let len = t.shape()[0];
            t.narrow(
                0,
                range.start.min(len),
                range.end.min(len) - range.start.min(len),
            )
        };
        let total = self.len();
        let head = count.min(total);
        let mut out = map! {"samples" => tensor(part(&self.samples, 0..head)?)};
        let mask = part(&self.mask, 0..head)?;
        // A mask of ones is no mask.
        if mask.data().iter().any(|v| *v != 1.0) {
            out.insert("noise_mask".into(), tensor(mask));
        }
        let cut = head.min(self.index.len());
        out.insert("batch_index".into(), self.index[..cut].to_vec().into());
        let rest = if head < total {
            Some(Self {
                samples: part(&self.samples, head..total)?,
                mask: part(&self.mask, head..total)?,
                index: self.index[cut..].to_vec(),
            })
        } else {
            None
        };
        Ok((Latent(std::sync::Arc::new(out)), rest))
    }
}

/// Regroups latents into batches of a given size; a change of size starts a new batch.
#[derive(Node)]
#[node(id = "RebatchLatents", v3, module = "comfy_extras.nodes_rebatch", display = "Rebatch Latents", category = "latent/batch", outputs(Output::new("LATENT").list()), input_is_list)]
pub struct RebatchLatents {
    /// The latents to put into new batches.
    #[input(ty = "LATENT")]
    latents: Vec<Latent>,
    /// How many latents a batch of the result has.
    #[input(ty = "INT", default = 1, min = 1, max = 4096)]
    batch_size: Vec<i64>,
}

impl Node for RebatchLatents {
    fn run(self, cx: &Cx) -> NodeResult {
        let batch_size = match self.batch_size.first() {
            Some(n) if *n > 0 => usize::try_from(*n).unwrap_or(1),
            _ => return Err(NodeError::value_error("batch_size must be at least 1")),
        };
        let mut out: Vec<Value> = Vec::new();
        let mut pool: Option<Pool> = None;
        let mut seen = 0;
        for latent in &self.latents {
            cx.check_interrupt()?;
            let next = Pool::of(latent, seen)?;
            seen += next.index.len();
            pool = Some(match pool {
                None => next,
                Some(mut current) if current.fits(&next) => {
                    current.append(&next)?;
                    current
                }
                Some(current) => {
                    out.push(current.take(batch_size)?.0.into());
                    next
                }
            });
            while let Some(current) = pool.take() {
                if current.len() <= batch_size {
                    pool = Some(current);
                    break;
                }
                let (full, rest) = current.take(batch_size)?;
                out.push(full.into());
                pool = rest;
            }
        }
        if let Some(current) = pool {
            out.push(current.take(batch_size)?.0.into());
        }
        Ok(NodeOutput::one(out))
    }
}
