//! The one loop over blocks: at each of them it asks whether to go on and whether the block is left out, runs hooks, says to the
//! attentions inside where they are, and adds what control networks have for it. A cache may end it after the first block.

use std::rc::Rc;

use fresco_tensor::Tensor;

use super::place::{FirstInput, ListHooks, Place};
use crate::denoise::NetworkInput;
use crate::denoise::block_cache::{BlockCache, CacheStep};
use crate::denoise::hooks::{BlockFlow, BlockInfo, BlockKind, ControlFeatures, Hooks, Moment};
use crate::error::{ModelError, Result};

/// Blocks of one kind during one pass, and what acts on them from outside.
#[derive(Clone, Copy)]
pub struct Blocks<'a> {
    pub kind: BlockKind,
    pub count: usize,
    pub heads: usize,
    /// Frames, rows and columns of tokens.
    pub size: [usize; 3],
    pub hooks: &'a Hooks,
    /// The shape of the latent that went into the network.
    pub original: &'a [usize],
    pub control: Option<BlockControl<'a>>,
    /// The shape (b, n, c) in which hooks see tokens, where blocks see them in another.
    pub joined: Option<[usize; 3]>,
    /// How many of the first tokens are the prompt's, where hooks see these beside the picture's.
    pub text: Option<usize>,
    /// Which of several streams of tokens these blocks are for.
    pub stream: usize,
}

/// What a cache was shown of a pass.
struct CacheView<'a> {
    cache: &'a dyn BlockCache,
    entered: BlockFlow,
    first: Option<BlockFlow>,
    modulated: Option<Tensor>,
}

/// What a control network adds to the tokens after blocks.
#[derive(Clone, Copy)]
pub struct BlockControl<'a> {
    pub features: &'a [Option<Tensor>],
    /// The first token that it adds to.
    pub start: usize,
    /// Whether hooks see its additions.
    pub order: ControlOrder,
}

/// When a control network adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlOrder {
    BeforeHooks,
    AfterHooks,
}

impl<'a> Blocks<'a> {
    /// Control networks add to the first tokens, or to those after the prompt's.
    pub fn new(
        kind: BlockKind,
        count: usize,
        heads: usize,
        size: [usize; 3],
        input: &NetworkInput<'a>,
    ) -> Self {
        Self::of(kind, count, heads, size, (input.hooks, input.x.shape()))
            .with_control(input.control, 0)
    }

    /// For networks that get hooks and the latent's shape apart.
    pub fn of(
        kind: BlockKind,
        count: usize,
        heads: usize,
        size: [usize; 3],
        (hooks, original): (&'a Hooks, &'a [usize]),
    ) -> Self {
        Self {
            kind,
            count,
            heads,
            size,
            hooks,
            original,
            control: None,
            joined: None,
            text: None,
            stream: 0,
        }
    }

    /// For tokens of which the first so many are the prompt's; hooks see these beside those of the picture.
    #[must_use]
    pub fn with_text(self, count: usize) -> Self {
        let (text, control) = (Some(count), self.control);
        let control = control.map(|control| BlockControl {
            start: count,
            ..control
        });
        Self {
            control,
            text,
            ..self
        }
    }

    /// For one of several streams that have blocks of this kind.
    #[must_use]
    pub fn of_stream(self, stream: usize) -> Self {
        Self { stream, ..self }
    }

    /// For tokens that blocks see in another shape than (b, n, c).
    #[must_use]
    pub fn with_shape(self, joined: [usize; 3]) -> Self {
        let joined = Some(joined);
        Self { joined, ..self }
    }

    /// With what a control network has for blocks of this kind, added to the tokens from `start` on after hooks.
    #[must_use]
    pub fn with_control(self, control: Option<&'a ControlFeatures>, start: usize) -> Self {
        let control = control.map(|control| BlockControl {
            features: control.of(self.kind),
            start,
            order: ControlOrder::AfterHooks,
        });
        Self { control, ..self }
    }

    /// Runs blocks over one stream of tokens.
    pub fn run(
        &self,
        x: Tensor,
        block: impl FnMut(usize, Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.run_then(x, block, |_, h| Ok(h))
    }

    /// The same; after the hooks of a block the tokens go through `after`.
    pub fn run_then(
        &self,
        x: Tensor,
        mut block: impl FnMut(usize, Tensor) -> Result<Tensor>,
        mut after: impl FnMut(usize, Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let flow = BlockFlow { h: x, beside: None };
        let mut one = |number: usize, flow: BlockFlow| -> Result<BlockFlow> {
            let h = block(number, flow.h)?;
            Ok(BlockFlow { h, ..flow })
        };
        Ok(self.through(flow, &mut one, &mut after)?.h)
    }

    /// Runs blocks over the picture's tokens and the prompt's.
    pub fn run_pair(
        &self,
        pair: (Tensor, Tensor),
        block: impl FnMut(usize, Tensor, Tensor) -> Result<(Tensor, Tensor)>,
    ) -> Result<(Tensor, Tensor)> {
        self.run_pair_then(pair, block, |_, h| Ok(h))
    }

    /// The same; after the hooks of a block the picture's tokens go through `after`.
    pub fn run_pair_then(
        &self,
        (x, text): (Tensor, Tensor),
        mut block: impl FnMut(usize, Tensor, Tensor) -> Result<(Tensor, Tensor)>,
        mut after: impl FnMut(usize, Tensor) -> Result<Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let gone = || ModelError::invalid("hook", "the prompt's tokens are gone");
        let flow = BlockFlow {
            h: x,
            beside: Some(text),
        };
        let mut one = |number: usize, flow: BlockFlow| -> Result<BlockFlow> {
            let (h, text) = block(number, flow.h, flow.beside.ok_or_else(gone)?)?;
            let beside = Some(text);
            Ok(BlockFlow { h, beside })
        };
        let flow = self.through(flow, &mut one, &mut after)?;
        Ok((flow.h, flow.beside.ok_or_else(gone)?))
    }

    /// Runs blocks over the tokens of pictures and, where there are any, others beside them.
    pub fn run_beside(
        &self,
        (x, beside): (Tensor, Option<Tensor>),
        mut block: impl FnMut(usize, Tensor, Option<Tensor>) -> Result<(Tensor, Option<Tensor>)>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let flow = BlockFlow { h: x, beside };
        let mut one = |number: usize, flow: BlockFlow| -> Result<BlockFlow> {
            let (h, beside) = block(number, flow.h, flow.beside)?;
            Ok(BlockFlow { h, beside })
        };
        let flow = self.through(flow, &mut one, &mut |_, h| Ok(h))?;
        Ok((flow.h, flow.beside))
    }

    fn through(
        &self,
        mut flow: BlockFlow,
        block: &mut dyn FnMut(usize, BlockFlow) -> Result<BlockFlow>,
        after: &mut dyn FnMut(usize, Tensor) -> Result<Tensor>,
    ) -> Result<BlockFlow> {
        let list = self.list_hooks();
        let mut view = self.hooks.block_cache.as_deref().map(|cache| CacheView {
            cache,
            entered: flow.clone(),
            first: None,
            modulated: None,
        });
        for number in 0..self.count {
            self.hooks.check()?;
            if let Some(view) = &mut view
                && let Some(instead) = self.instead(number, view, &flow)?
            {
                return Ok(instead);
            }
            flow = self.run_hooks(Moment::Before, number, flow)?;
            if !self.hooks.skips(self.kind, number) {
                let first_input = self.first_input(number, view.as_ref(), &flow.h)?;
                if list.is_some() || first_input.is_some() {
                    let hooks = list.clone();
                    let hooks = hooks.unwrap_or_else(|| Rc::new(self.make_list_hooks()));
                    let place = Rc::new(Place {
                        hooks,
                        number,
                        first_input,
                    });
                    flow = Rc::clone(&place).enter(|| block(number, flow))?;
                    let seen = place.first_input.as_ref().and_then(FirstInput::take);
                    if let Some(view) = &mut view {
                        view.modulated = view.modulated.take().or(seen);
                    }
                } else {
                    flow = block(number, flow)?;
                }
            }
            flow.h = self.control(ControlOrder::BeforeHooks, number, flow.h)?;
            flow = self.run_hooks(Moment::After, number, flow)?;
            flow.h = after(number, flow.h)?;
            flow.h = self.control(ControlOrder::AfterHooks, number, flow.h)?;
        }
        if let Some(view) = &view {
            let step = self.step(self.count, view);
            view.cache.all_ran(&step, &flow)?;
        }
        Ok(flow)
    }

    /// What a cache has in place of the blocks from this one on.
    fn instead(
        &self,
        number: usize,
        view: &mut CacheView<'_>,
        flow: &BlockFlow,
    ) -> Result<Option<BlockFlow>> {
        match number {
            0 => {}
            1 => view.first = Some(flow.clone()),
            _ => return Ok(None),
        }
        view.cache.instead(&self.step(number, view))
    }

    fn step<'b>(&'b self, number: usize, view: &'b CacheView<'_>) -> CacheStep<'b> {
        CacheStep {
            at: self.info(number),
            cond_ids: &self.hooks.info.cond_ids,
            entered: &view.entered,
            first: view.first.as_ref(),
            modulated: view.modulated.as_ref(),
        }
    }

    /// Where a cache wants to see what the attention of the first block looks at.
    fn first_input(
        &self,
        number: usize,
        view: Option<&CacheView<'_>>,
        x: &Tensor,
    ) -> Result<Option<FirstInput>> {
        let wanted = view.filter(|view| number == 0 && view.cache.wants_modulated());
        let tokens = match self.joined {
            Some([_, n, _]) => n,
            None => x.dim(1)?,
        };
        Ok(wanted.map(|_| FirstInput::new(tokens)))
    }

    /// What acts on the attentions of these blocks; none if nothing does.
    fn list_hooks(&self) -> Option<Rc<ListHooks>> {
        let Hooks {
            self_attention,
            prompt_attention,
            ..
        } = self.hooks;
        let nothing = self_attention.is_empty() && prompt_attention.is_empty();
        (!nothing).then(|| Rc::new(self.make_list_hooks()))
    }

    fn make_list_hooks(&self) -> ListHooks {
        ListHooks {
            kind: self.kind,
            index: self.stream,
            heads: self.heads,
            size: self.size,
            original: self.original.to_vec(),
            sigma: self.hooks.info.sigma,
            cond_or_uncond: self.hooks.info.cond_or_uncond.clone(),
            joined: self.joined,
            own: self.hooks.self_attention.clone(),
            prompt: self.hooks.prompt_attention.clone(),
        }
    }

    fn info(&self, number: usize) -> BlockInfo<'_> {
        BlockInfo {
            kind: self.kind,
            number,
            index: self.stream,
            heads: self.heads,
            size: self.size,
            original: self.original,
            sigma: self.hooks.info.sigma,
            cond_or_uncond: &self.hooks.info.cond_or_uncond,
        }
    }

    /// What flows at a block, changed by its hooks.
    fn run_hooks(&self, moment: Moment, number: usize, mut flow: BlockFlow) -> Result<BlockFlow> {
        if self.hooks.of_block(self.kind, moment).next().is_none() {
            return Ok(flow);
        }
        let at = self.info(number);
        let whole = flow.h.clone();
        let (device, beside) = (whole.device(), flow.beside.clone());
        if let Some(joined) = self.joined {
            flow.h = whole.reshape(joined)?;
        }
        if let Some(count) = self.text {
            flow.beside = Some(whole.narrow(1, 0, count)?);
            flow.h = whole.narrow(1, count, whole.dim(1)? - count)?;
        }
        let flow = self.hooks.at_block(moment, flow, &at)?;
        let mut h = flow.h.to(&device)?;
        if let Some(count) = self.text {
            let picture = h;
            h = whole;
            h.paste(&[0, count, 0], &picture)?;
            return Ok(BlockFlow { h, beside });
        }
        let beside = flow.beside.or(beside).map(|text| text.to(&device));
        Ok(BlockFlow {
            h: match self.joined {
                Some(_) => h.reshape(whole.shape())?,
                None => h,
            },
            beside: beside.transpose()?,
        })
    }

    /// Tokens with what a control network has for a block.
    fn control(&self, order: ControlOrder, number: usize, x: Tensor) -> Result<Tensor> {
        let Some(control) = self.control.filter(|control| control.order == order) else {
            return Ok(x);
        };
        let Some(Some(features)) = control.features.get(number) else {
            return Ok(x);
        };
        add_to_some(x, features, control.start)
    }
}

/// Adds to the tokens from `start` on, as many as there are to add and to be added to.
pub fn add_to_some(mut x: Tensor, features: &Tensor, start: usize) -> Result<Tensor> {
    let (count, device) = (x.dim(1)?, x.device());
    let room = count.checked_sub(start).ok_or_else(|| {
        let reason = format!("it begins at token {start} of {count}");
        ModelError::invalid("control features", reason)
    })?;
    let features = features.to(&device)?;
    let added = features.dim(1)?.min(room);
    let features = features.narrow(1, 0, added)?;
    if added == count {
        return Ok(x.add(&features)?);
    }
    let part = x.narrow(1, start, added)?.add(&features)?;
    x.paste(&[0, start, 0], &part)?;
    Ok(x)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::denoise::hooks::BlockHook;

    /// Adds to the tokens, and to the prompt's beside them.
    struct Adds(f32);

    impl BlockHook for Adds {
        fn apply(&self, flow: BlockFlow, at: &BlockInfo<'_>) -> Result<BlockFlow> {
            assert_eq!((at.heads, at.size, flow.h.rank()), (3, [1, 2, 1], 3));
            Ok(BlockFlow {
                h: flow.h.add_scalar(self.0),
                beside: flow.beside.map(|text| text.add_scalar(self.0)),
            })
        }
    }

    fn tokens(value: f32) -> Tensor {
        Tensor::zeros([1, 2, 1]).unwrap().add_scalar(value)
    }

    fn blocks(hooks: &Hooks) -> Blocks<'_> {
        let of = (hooks, &[1, 1, 2, 1][..]);
        Blocks::of(BlockKind::DOUBLE, 2, 3, [1, 2, 1], of)
    }

    #[test]
    fn hooks_act_around_blocks_and_control_after_them() {
        let mut hooks = Hooks::default();
        hooks.on_block(BlockKind::DOUBLE, Moment::Before, Arc::new(Adds(1.0)));
        hooks.on_block(BlockKind::DOUBLE, Moment::After, Arc::new(Adds(10.0)));
        hooks.on_block(BlockKind::SINGLE, Moment::After, Arc::new(Adds(1000.0)));
        let double = |_: usize, x: Tensor| Ok(x.mul_scalar(2.0));
        // ((0 + 1) * 2 + 10 + 1) * 2 + 10.
        let found = blocks(&hooks).run(tokens(0.0), double).unwrap();
        assert_eq!(found.data(), [36.0; 2]);
        let flat = |x: Tensor| x.reshape([2, 1, 1]).unwrap();
        let mut apart = blocks(&hooks);
        apart.joined = Some([1, 2, 1]);
        let found = apart.run(flat(tokens(0.0)), double).unwrap();
        assert_eq!(
            (found.shape(), found.data()),
            (&[2, 1, 1][..], &[36.0; 2][..])
        );
        let one = Tensor::zeros([1, 1, 1]).unwrap().add_scalar(100.0);
        let list = vec![None, Some(one)];
        let control = ControlFeatures::default().with(BlockKind::DOUBLE, list);
        let steered = blocks(&hooks).with_control(Some(&control), 1);
        assert_eq!(
            steered.run(tokens(0.0), double).unwrap().data(),
            [36.0, 136.0]
        );
    }

    /// Leaves out all but the first block of every pass but the first.
    #[derive(Default)]
    struct AfterFirst {
        added: crate::denoise::Residuals,
        whole_passes: std::sync::atomic::AtomicUsize,
    }

    impl BlockCache for AfterFirst {
        fn instead(&self, step: &CacheStep<'_>) -> Result<Option<BlockFlow>> {
            match step.first {
                Some(first) => self.added.add(step, first),
                None => Ok(None),
            }
        }

        fn all_ran(&self, step: &CacheStep<'_>, out: &BlockFlow) -> Result<()> {
            let count = &self.whole_passes;
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let first = step.first.expect("two blocks have run");
            self.added.keep(step, first, out)
        }
    }

    #[test]
    fn a_cache_ends_passes_after_their_first_block() {
        let cache = Arc::new(AfterFirst::default());
        let mut hooks = Hooks {
            block_cache: Some(cache.clone()),
            ..Hooks::default()
        };
        let pass = |hooks: &Hooks, values: &[f32]| {
            let all: Vec<Tensor> = values.iter().map(|v| tokens(*v)).collect();
            let x = Tensor::cat(&all.iter().collect::<Vec<_>>(), 0).unwrap();
            let text = x.add_scalar(100.0);
            let ran = std::cell::Cell::new(0);
            let add = |_: usize, x: Tensor, text: Tensor| {
                ran.set(ran.get() + 1);
                Ok((x.mul_scalar(2.0), text.add_scalar(1.0)))
            };
            let (x, text) = blocks(hooks).run_pair((x, text), add).unwrap();
            (x.data().to_vec(), text.data().to_vec(), ran.get())
        };
        hooks.info.cond_ids = vec![7, 9];
        // After the first block 2 and 6, after the second 4 and 12: 2 and 6 more.
        let (x, _, ran) = pass(&hooks, &[1.0, 3.0]);
        assert_eq!((x, ran), (vec![4.0, 4.0, 12.0, 12.0], 2));
        // The same conditions in the other order, each with its own.
        hooks.info.cond_ids = vec![9, 7];
        let (x, text, ran) = pass(&hooks, &[5.0, 6.0]);
        assert_eq!((x, ran), (vec![16.0, 16.0, 14.0, 14.0], 1));
        assert_eq!(text, [107.0, 107.0, 108.0, 108.0]);
        // One that was not there before is computed.
        hooks.info.cond_ids = vec![9, 11];
        assert_eq!(pass(&hooks, &[5.0, 6.0]).2, 2);
        let whole = &cache.whole_passes;
        assert_eq!(whole.load(std::sync::atomic::Ordering::Relaxed), 2);
    }

    #[test]
    fn blocks_are_left_out_and_prompts_flow_along() {
        let mut hooks = Hooks::default();
        hooks.skipped.push((BlockKind::DOUBLE, 0));
        hooks.on_block(BlockKind::DOUBLE, Moment::After, Arc::new(Adds(1.0)));
        let swap = |_: usize, x: Tensor, text: Tensor| Ok((text, x));
        let seen = |number: usize, x: Tensor| Ok(x.add_scalar(100.0 * number as f32));
        let both = (tokens(0.0), tokens(5.0));
        let (x, text) = blocks(&hooks).run_pair_then(both, swap, seen).unwrap();
        // One more each, then in each other's place, and one more.
        assert_eq!((x.data()[0], text.data()[0]), (107.0, 2.0));
    }
}
