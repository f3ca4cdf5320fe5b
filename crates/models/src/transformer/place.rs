//! The block that a pass is in. [`Blocks`](super::Blocks) says it while a block runs, and the attentions inside ask what acts on
//! them, as a log line asks for the span it is in: so every family has attention hooks, and none hands them on. Outside of
//! blocks nothing acts.

use std::cell::RefCell;
use std::rc::Rc;

use fresco_tensor::Tensor;

use super::attention::Looks;
use crate::denoise::hooks::{AttentionHooks, AttnReplace, BlockInfo, BlockKind};
use crate::error::Result;

/// What acts on the attentions of a list of blocks during one pass.
pub(super) struct ListHooks {
    pub(super) kind: BlockKind,
    pub(super) index: usize,
    pub(super) heads: usize,
    pub(super) size: [usize; 3],
    pub(super) original: Vec<usize>,
    pub(super) sigma: f32,
    pub(super) cond_or_uncond: Vec<usize>,
    /// The shape (b, n, c) of the tokens, where blocks see them in another.
    pub(super) joined: Option<[usize; 3]>,
    pub(super) own: AttentionHooks,
    pub(super) prompt: AttentionHooks,
}

/// One block of the list, while it runs.
pub(super) struct Place {
    pub(super) hooks: Rc<ListHooks>,
    pub(super) number: usize,
    /// Where a cache wants to see what so many tokens look at.
    pub(super) first_input: Option<FirstInput>,
}

/// What the first self-attention over so many tokens looked at.
pub(super) struct FirstInput {
    tokens: usize,
    seen: RefCell<Option<Tensor>>,
}

impl FirstInput {
    pub(super) fn new(tokens: usize) -> Self {
        let seen = RefCell::default();
        Self { tokens, seen }
    }

    pub(super) fn take(&self) -> Option<Tensor> {
        self.seen.take()
    }
}

thread_local! {
    static HERE: RefCell<Option<Rc<Place>>> = const { RefCell::new(None) };
}

/// Leaves a block, whatever became of it.
struct PlaceGuard(Option<Rc<Place>>);

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        HERE.set(self.0.take());
    }
}

impl Place {
    /// Runs what a block does.
    pub(super) fn enter<T>(self: Rc<Self>, block: impl FnOnce() -> T) -> T {
        let _guard = PlaceGuard(HERE.replace(Some(self)));
        block()
    }
}

/// Runs what is not a part of the block: a hook may have a network of its own.
fn outside<T>(hook: impl FnOnce() -> T) -> T {
    let _guard = PlaceGuard(HERE.take());
    hook()
}

/// What acts on an attention that runs now.
pub(super) struct AttentionSite {
    place: Rc<Place>,
    prompt: bool,
}

impl AttentionSite {
    /// None outside of blocks, and where nothing acts on them.
    pub(super) fn on(looks: Looks) -> Option<Self> {
        let prompt = match looks {
            Looks::Own => false,
            Looks::Prompt(_) => true,
            Looks::Beside(_) => return None,
        };
        let place = HERE.with_borrow(Clone::clone)?;
        Some(Self { place, prompt })
    }

    fn hooks(&self) -> &AttentionHooks {
        let ListHooks { own, prompt, .. } = &*self.place.hooks;
        if self.prompt { prompt } else { own }
    }

    fn at(&self) -> BlockInfo<'_> {
        let hooks = &*self.place.hooks;
        BlockInfo {
            kind: hooks.kind,
            number: self.place.number,
            index: hooks.index,
            heads: hooks.heads,
            size: hooks.size,
            original: &hooks.original,
            sigma: hooks.sigma,
            cond_or_uncond: &hooks.cond_or_uncond,
        }
    }

    pub(super) fn changes_input(&self) -> bool {
        self.hooks().changes_input(self.place.hooks.kind)
    }

    pub(super) fn change_input(&self, inputs: [Tensor; 3]) -> Result<[Tensor; 3]> {
        outside(|| self.hooks().change_input(inputs, &self.at()))
    }

    /// Whether a cache wants to see what these tokens look at.
    pub(super) fn wants_input(&self) -> bool {
        !self.prompt && self.place.first_input.is_some()
    }

    /// Shows it to the cache.
    pub(super) fn show(&self, x: &Tensor) -> Result<()> {
        if let Some(first_input) = &self.place.first_input
            && x.dim(1)? == first_input.tokens
        {
            let mut seen = first_input.seen.borrow_mut();
            seen.get_or_insert_with(|| x.clone());
        }
        Ok(())
    }

    /// What the attention sees in place of what it would.
    pub(super) fn replace(&self, [q, k, v]: [&Tensor; 3]) -> Result<Option<Tensor>> {
        let at = self.at();
        let replacement = self.hooks().replacement(&at);
        let seen = replacement.map(|hook: &dyn AttnReplace| outside(|| hook.apply(q, k, v, &at)));
        seen.transpose()
    }

    pub(super) fn replaces(&self) -> bool {
        self.hooks().replacement(&self.at()).is_some()
    }

    /// Whether the result of the attention, or what goes on after it, is changed.
    pub(super) fn changes_result(&self) -> bool {
        let (hooks, kind) = (self.hooks(), self.place.hooks.kind);
        hooks.changes_output(kind) || hooks.changes_after(kind)
    }

    pub(super) fn change_output(&self, x: Tensor) -> Result<Tensor> {
        self.in_joined_shape(x, |x| outside(|| self.hooks().change_output(x, &self.at())))
    }

    pub(super) fn change_after(&self, x: Tensor) -> Result<Tensor> {
        self.in_joined_shape(x, |x| outside(|| self.hooks().change_after(x, &self.at())))
    }

    /// Changes tokens in the shape in which hooks see them.
    fn in_joined_shape(
        &self,
        x: Tensor,
        change: impl FnOnce(Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let device = x.device();
        let joined = self.place.hooks.joined;
        let joined = joined.filter(|joined| x.len() == joined.iter().product::<usize>());
        let changed = match joined {
            Some(joined) => change(x.reshape(joined)?)?.reshape(x.shape())?,
            None => change(x)?,
        };
        // Hooks may compute elsewhere.
        Ok(changed.to(&device)?)
    }
}
