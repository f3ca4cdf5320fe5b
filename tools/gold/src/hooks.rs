//! What networks say of their hooks, held against what they do: everything that a network announces must act on its result, and
//! nothing else may be asked.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fresco_models::ModelError;
use fresco_models::denoise::hooks::{
    AttentionHooks, AttnInput, AttnOutput, AttnReplace, BlockFlow, BlockHook, BlockInfo, BlockKey,
    BlockKind, ControlFeatures, Embedding, Hooks, Moment,
};
use fresco_models::denoise::{AttentionPoint, BlockCache, CacheStep, HookPoint, HookPoints};
use fresco_models::detect::Claim;
use fresco_models::{DiffusionNetwork, denoise::hook_points};
use fresco_tensor::{Device, Tensor};

use crate::golden::Golden;
use crate::kinds::Kind;
use crate::report::Report;

/// How far a result must be from the golden to be said to have changed.
const CHANGED: f64 = 1e-5;
/// More blocks than any golden has.
const BLOCKS: usize = 64;

thread_local! {
    static NOW: RefCell<Hooks> = RefCell::default();
    static CONTROL: RefCell<Option<ControlFeatures>> = const { RefCell::new(None) };
    static POINTS: Cell<Option<Statement>> = const { Cell::new(None) };
    static TRIED: RefCell<BTreeSet<&'static str>> = RefCell::default();
}

/// A network's type and what it says.
type Statement = (&'static str, HookPoints);

/// What acts on a network that is run now.
pub(crate) fn of<N: DiffusionNetwork>() -> Hooks {
    POINTS.set(Some((std::any::type_name::<N>(), N::HOOKS)));
    NOW.with_borrow(Clone::clone)
}

/// What a control network adds to it.
pub(crate) fn control() -> Option<ControlFeatures> {
    CONTROL.with_borrow(Clone::clone)
}

/// What was seen while one thing was tried.
#[derive(Default)]
struct Observation {
    asked: AtomicUsize,
    wrong: Mutex<Option<String>>,
    /// Shapes of what came out of blocks, by their number.
    shapes: Mutex<Vec<Vec<usize>>>,
}

impl Observation {
    /// Whether all that was seen was right.
    fn verdict(&self) -> Result<(), String> {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.take().map_or(Ok(()), Err)
    }

    fn note(&self, at: &BlockInfo<'_>, kind: BlockKind, right: bool, shapes: &[&[usize]]) -> bool {
        if at.kind != kind {
            return false;
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        // Where levels differ within an item, it may have several rows.
        let items = at.original.first().copied().unwrap_or(1).max(1);
        let whole = |shape: &&[usize]| shape.first().is_some_and(|n| n.is_multiple_of(items));
        if !right || !shapes.iter().all(whole) {
            let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
            *wrong = Some(format!(
                "at {at:?} of a latent of shape {:?} it sees shapes {shapes:?}",
                at.original
            ));
        }
        true
    }
}

/// One way of acting on one kind of block.
struct Probe {
    kind: BlockKind,
    seen: Arc<Observation>,
}

fn stretch(x: &Tensor) -> Tensor {
    // Norms behind it do not take this back.
    x.map(|v| 1.2 * v + 0.1 * v * v)
}

impl BlockHook for Probe {
    fn apply(&self, flow: BlockFlow, at: &BlockInfo<'_>) -> Result<BlockFlow, ModelError> {
        if !self.seen.note(at, self.kind, true, &[flow.h.shape()]) {
            return Ok(flow);
        }
        let mut shapes = self
            .seen
            .shapes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if shapes.len() <= at.number {
            shapes.resize(at.number + 1, Vec::new());
        }
        shapes[at.number] = flow.h.shape().to_vec();
        Ok(BlockFlow {
            h: stretch(&flow.h),
            ..flow
        })
    }
}

impl AttnInput for Probe {
    fn kinds(&self) -> &[BlockKind] {
        std::slice::from_ref(&self.kind)
    }

    fn apply(
        &self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: &BlockInfo<'_>,
    ) -> Result<(Tensor, Tensor, Tensor), ModelError> {
        let shapes = [q.shape(), k.shape(), v.shape()];
        let right = shapes.iter().all(|shape| shape.len() == 3) && k.shape() == v.shape();
        if !self.seen.note(at, self.kind, right, &shapes) {
            return Ok((q, k, v));
        }
        Ok((q, k.mul_scalar(0.7), stretch(&v)))
    }
}

impl AttnOutput for Probe {
    fn kinds(&self) -> &[BlockKind] {
        std::slice::from_ref(&self.kind)
    }

    fn apply(&self, x: Tensor, at: &BlockInfo<'_>) -> Result<Tensor, ModelError> {
        let noted = self.seen.note(at, self.kind, x.rank() == 3, &[x.shape()]);
        Ok(if noted { stretch(&x) } else { x })
    }
}

impl AttnReplace for Probe {
    fn apply(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        at: &BlockInfo<'_>,
    ) -> Result<Tensor, ModelError> {
        let right = k.shape() == v.shape() && q.rank() == 3 && q.shape()[2] == v.shape()[2];
        self.seen
            .note(at, self.kind, right, &[q.shape(), k.shape(), v.shape()]);
        Ok(stretch(q))
    }
}

impl Embedding for Probe {
    fn apply(&self, emb: Tensor, _model_channels: usize) -> Result<Tensor, ModelError> {
        self.seen.asked.fetch_add(1, Ordering::Relaxed);
        Ok(stretch(&emb))
    }
}

/// When a cache leaves out blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replay {
    Never,
    AfterFirst,
    AtOnce,
}

/// What a list of blocks added to what went into the first of them, and to what came out of it.
struct ListResiduals {
    entered: Residual,
    first: Option<Residual>,
}

type Residual = (Tensor, Option<Tensor>);

/// A cache that remembers what blocks add in one run, and leaves them out in the others.
struct ReplayCache {
    kind: BlockKind,
    seen: Arc<Observation>,
    replay: Cell<Replay>,
    /// Of each list of blocks, in the order they ran.
    lists: RefCell<Vec<ListResiduals>>,
    next: Cell<usize>,
}

/// One thread runs goldens.
struct Alone(Mutex<ReplayCache>);

fn residual(from: &BlockFlow, to: &BlockFlow) -> Result<Residual, ModelError> {
    let beside = from.beside.as_ref().zip(to.beside.as_ref());
    let beside = beside.map(|(from, to)| to.sub(from)).transpose()?;
    Ok((to.h.sub(&from.h)?, beside))
}

impl ReplayCache {
    fn instead(&self, step: &CacheStep<'_>) -> Result<Option<BlockFlow>, ModelError> {
        let wanted = match self.replay.get() {
            Replay::Never => false,
            Replay::AfterFirst => step.first.is_some(),
            Replay::AtOnce => true,
        };
        if step.at.kind != self.kind || !wanted {
            return Ok(None);
        }
        let (lists, number) = (self.lists.borrow(), self.next.get());
        let found = lists.get(number).and_then(|list| match step.first {
            Some(first) => Some((first, list.first.as_ref()?)),
            None => Some((step.entered, &list.entered)),
        });
        let Some((flow, (h, beside))) = found else {
            let reason = "there are more lists of blocks than in the run before";
            return Err(ModelError::invalid("cache", reason));
        };
        self.next.set(number + 1);
        self.seen.asked.fetch_add(1, Ordering::Relaxed);
        let beside = flow.beside.as_ref().zip(beside.as_ref());
        let beside = beside.map(|(from, added)| from.add(added)).transpose()?;
        let h = flow.h.add(h)?;
        Ok(Some(BlockFlow { h, beside }))
    }

    fn all_ran(&self, step: &CacheStep<'_>, out: &BlockFlow) -> Result<(), ModelError> {
        if step.at.kind != self.kind {
            return Ok(());
        }
        if self.replay.get() != Replay::Never {
            // A list of one block has none to leave out after it.
            self.next.set(self.next.get() + 1);
            return Ok(());
        }
        let first = step.first.map(|first| residual(first, out)).transpose()?;
        let entered = residual(step.entered, out)?;
        self.lists
            .borrow_mut()
            .push(ListResiduals { entered, first });
        Ok(())
    }

    fn begin(&self, replay: Replay) {
        self.replay.set(replay);
        self.next.set(0);
    }
}

impl Alone {
    fn lock(&self) -> std::sync::MutexGuard<'_, ReplayCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockCache for Alone {
    fn instead(&self, step: &CacheStep<'_>) -> Result<Option<BlockFlow>, ModelError> {
        self.lock().instead(step)
    }

    fn all_ran(&self, step: &CacheStep<'_>, out: &BlockFlow) -> Result<(), ModelError> {
        self.lock().all_ran(step, out)
    }
}

/// Hooks that act in one way on one kind of block.
fn hooks(kind: BlockKind, point: HookPoint, seen: &Arc<Observation>) -> Hooks {
    let mut hooks = Hooks::default();
    let probe = || {
        let seen = Arc::clone(seen);
        Arc::new(Probe { kind, seen })
    };
    let on = |list: &mut AttentionHooks, point| match point {
        AttentionPoint::Input => list.input.push(probe()),
        AttentionPoint::Output => list.output.push(probe()),
        AttentionPoint::After => list.after.push(probe()),
        AttentionPoint::Replace => {
            let keys = (0..BLOCKS).map(|number| BlockKey {
                kind,
                number,
                index: None,
            });
            let all = keys.map(|key| (key, probe() as Arc<dyn AttnReplace>));
            list.replace.extend(all);
        }
    };
    match point {
        HookPoint::Before => hooks.on_block(kind, Moment::Before, probe()),
        HookPoint::After => hooks.on_block(kind, Moment::After, probe()),
        HookPoint::AfterSkip => hooks.on_block(kind, Moment::AfterSkip, probe()),
        HookPoint::Skip => hooks.skipped.push((kind, 0)),
        HookPoint::Embedding => hooks.embedding.push(probe()),
        HookPoint::Own(point) => on(&mut hooks.self_attention, point),
        HookPoint::Prompt(point) => on(&mut hooks.prompt_attention, point),
        HookPoint::Control | HookPoint::Cache => {}
    }
    hooks
}

/// Runs a golden with something acting on its network, and says how far its results are from what they should be.
fn run(kind: &Kind, golden: &Golden, hooks: Hooks) -> Result<f64, String> {
    NOW.set(hooks);
    let mut report = Report::new(golden, 0.0);
    let cpu = Device::cpu();
    let ran = catch_unwind(AssertUnwindSafe(|| (kind.run)(golden, &cpu, &mut report)));
    NOW.take();
    match ran {
        Ok(Ok(())) => Ok(report.worst()),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_) => Err("it panicked".to_owned()),
    }
}

/// Tries one thing that a network announces.
fn try_point(
    (kind, golden, plain): (&Kind, &Golden, f64),
    at: BlockKind,
    point: HookPoint,
) -> Result<(), String> {
    let seen = Arc::new(Observation::default());
    let off = match point {
        // The maps of networks with levels have goldens of their own.
        HookPoint::Control if BlockKind::LEVELS.contains(&at) => return Ok(()),
        HookPoint::Control => {
            // Their shapes are those of the tokens.
            run(kind, golden, hooks(at, HookPoint::After, &seen))?;
            let shapes = seen.shapes.lock().unwrap_or_else(PoisonError::into_inner);
            let list = shapes.iter().map(|shape| {
                let made = Tensor::from_fn(shape.clone(), |i| 0.1 + 0.01 * (i % 7) as f32);
                made.map(Some).map_err(|error| error.to_string())
            });
            let list = list.collect::<Result<Vec<_>, _>>()?;
            CONTROL.set(Some(ControlFeatures::default().with(at, list)));
            let off = run(kind, golden, Hooks::default());
            CONTROL.take();
            off?
        }
        HookPoint::Cache => {
            let cache = Arc::new(Alone(Mutex::new(ReplayCache {
                kind: at,
                seen: Arc::clone(&seen),
                replay: Cell::new(Replay::Never),
                lists: RefCell::default(),
                next: Cell::new(0),
            })));
            for replay in [Replay::Never, Replay::AfterFirst, Replay::AtOnce] {
                cache.lock().begin(replay);
                let hooks = Hooks {
                    block_cache: Some(Arc::clone(&cache) as Arc<dyn BlockCache>),
                    ..Hooks::default()
                };
                let off = run(kind, golden, hooks)?;
                if off > plain + 1e-4 {
                    return Err(format!("replayed {replay:?}, the result is {off:.1e} off"));
                }
            }
            return match seen.asked.load(Ordering::Relaxed) {
                0 => Err("the network never asks for it".to_owned()),
                _ => seen.verdict(),
            };
        }
        _ => run(kind, golden, hooks(at, point, &seen))?,
    };
    seen.verdict()?;
    let counts = !matches!(point, HookPoint::Skip | HookPoint::Control);
    if counts && seen.asked.load(Ordering::Relaxed) == 0 {
        return Err("the network never asks for it".to_owned());
    }
    if off > 2.0 * plain + CHANGED {
        Ok(())
    } else {
        Err("it changes nothing".to_owned())
    }
}

/// Every way of acting on a block of these kinds.
fn all_points() -> impl Iterator<Item = (BlockKind, HookPoint)> {
    let kinds = BlockKind::LEVELS.into_iter();
    let kinds = kinds.chain([BlockKind::DOUBLE, BlockKind::SINGLE]);
    kinds.flat_map(|kind| {
        let moments = [
            HookPoint::Before,
            HookPoint::After,
            HookPoint::AfterSkip,
            HookPoint::Skip,
        ];
        let lists = [hook_points::OWN, hook_points::PROMPT];
        let attention = lists.into_iter().flatten().copied();
        moments
            .into_iter()
            .chain(attention)
            .map(move |point| (kind, point))
    })
}

/// Forgets which network ran last.
pub(crate) fn begin() {
    POINTS.take();
}

/// Holds what the network that ran last says against what it does, on the first golden of each type of network. None if there is
/// nothing to try.
pub(crate) fn probe(kind: &Kind, golden: &Golden) -> Option<Vec<String>> {
    let (network, points) = POINTS.take()?;
    let is_alone = matches!(golden.claim(), Some(Claim::Diffusion(_)));
    if !is_alone || !TRIED.with_borrow_mut(|tried| tried.insert(network)) {
        return None;
    }
    let plain = match run(kind, golden, Hooks::default()) {
        Ok(off) => off,
        Err(error) => return Some(vec![error]),
    };
    let mut wrong = Vec::new();
    for (at, point) in points.all() {
        if let Err(why) = try_point((kind, golden, plain), at, point) {
            wrong.push(format!("{} of {}: {why}", point, at.name()));
        }
    }
    for (at, point) in all_points().filter(|(at, point)| !points.has(*at, *point)) {
        let seen = Arc::new(Observation::default());
        let hooks = hooks(at, point, &seen);
        if points.refusals(&hooks).is_empty() {
            wrong.push(format!("{point} of {} is not refused", at.name()));
        }
        // Kinds that a network has are tried: it might know more than it says.
        if points.0.iter().any(|(kind, _)| *kind == at) {
            let off = run(kind, golden, hooks);
            let asked = seen.asked.load(Ordering::Relaxed);
            if asked > 0 || off.is_ok_and(|off| off > plain + 1e-4) {
                wrong.push(format!(
                    "{point} of {} acts and is not announced",
                    at.name()
                ));
            }
        }
    }
    Some(wrong)
}
