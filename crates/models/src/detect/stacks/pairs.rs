//! Sets of CLIP networks with T5.

use fresco_tensor::Tensor;

use super::t5_alone::{T5_SPECIALS, t5_chunks};
use crate::error::Result;
use crate::text::clip::{self, CLIP_G, CLIP_L, bpe};
use crate::text::t5::T5_ENGLISH;
use crate::text::{
    EncodeRule, Encoded, LayerRule, PartOutput, PartOutputs, PromptRule, PromptTokens, SavedAs,
    StackPart, TextOutput, TextStack,
};

/// Channels of the two CLIP networks at full size, which zeros stand for where one is missing.
pub(super) const WIDTHS: (usize, usize) = (768, 1280);
/// Channels of T5 at full size, to which CLIP's rows are filled up.
pub(super) const T5_WIDTH: usize = 4096;

pub(super) const L_PREFIX: &str = "text_encoders.clip_l.transformer.";
pub(super) const G_PREFIX: &str = "text_encoders.clip_g.transformer.";
pub(super) const T5_PREFIX: &str = "text_encoders.t5xxl.transformer.";

pub(super) const fn saved(prefix: &'static str) -> SavedAs {
    SavedAs::Plain {
        prefix,
        without: &[],
    }
}

/// Stable Diffusion 3 and 3.5: any of the three.
pub static SD3: TextStack = TextStack {
    name: "Sd3",
    parts: &[
        StackPart {
            name: "clip_l",
            kinds: &[&CLIP_L],
            optional: true,
            prefixes: &[L_PREFIX],
            prompt: clip::prompt(bpe::END),
            rule: clip::rule(LayerRule::bare(-2), false),
            saved: saved(L_PREFIX),
        },
        StackPart {
            name: "clip_g",
            kinds: &[&CLIP_G],
            optional: true,
            prefixes: &[G_PREFIX],
            prompt: clip::prompt(0),
            rule: clip::rule(LayerRule::bare(-2), true),
            saved: saved(G_PREFIX),
        },
        StackPart {
            name: "t5xxl",
            kinds: &[&T5_ENGLISH],
            optional: true,
            prefixes: &[T5_PREFIX],
            prompt: PromptRule::plain(t5_chunks(77)),
            rule: EncodeRule::layer(LayerRule::LAST, T5_SPECIALS),
            saved: saved(T5_PREFIX),
        },
    ],
    words: &[],
    join: join_sd3,
};

/// The next output.
pub(super) fn take<'a>(
    outputs: &mut impl Iterator<Item = Option<PartOutput<'a>>>,
) -> Option<PartOutput<'a>> {
    outputs.next().flatten()
}

/// Zeros before or after the channels of `(1, n, c)`.
fn widened(x: &Tensor, before: usize, width: usize) -> Result<Tensor> {
    let [b, n, c] = x.dims3()?;
    let after = width.saturating_sub(before + c);
    let (front, back) = (
        Tensor::zeros([b, n, before])?,
        Tensor::zeros([b, n, after])?,
    );
    Ok(Tensor::cat(&[&front, x, &back], 2)?)
}

/// Both CLIP outputs next to each other, filled up to the width of T5, then T5's rows after them.
fn join_sd3(outputs: PartOutputs<'_>, _: &PromptTokens) -> Result<Encoded> {
    let mut outputs = outputs.into_iter();
    let [l, g, t5] = [(); 3].map(|()| take(&mut outputs).map(|o| o.output));
    let width = t5.as_ref().map_or(T5_WIDTH, |t5| t5.hidden.shape()[2]);
    let rows = match (&l, &g) {
        (None, None) => None,
        (Some(l), None) => Some(widened(&l.hidden, 0, width)?),
        (None, Some(g)) => Some(widened(&g.hidden, WIDTHS.0, width)?),
        (Some(l), Some(g)) => {
            let shortest = l.hidden.shape()[1].min(g.hidden.shape()[1]);
            let cut = [l, g].map(|o| o.hidden.narrow(1, 0, shortest));
            let [l, g] = cut;
            let both = Tensor::cat(&[&l?, &g?], 2)?;
            Some(widened(&both, 0, width)?)
        }
    };
    let pooled = |output: Option<&Tensor>, width: usize| match output {
        Some(pooled) => Ok(pooled.clone()),
        None => Tensor::zeros([1, width]),
    };
    let of = |output: &Option<TextOutput>| output.as_ref().and_then(|o| o.pooled.clone());
    let l_pooled = pooled(of(&l).as_ref(), WIDTHS.0)?;
    let g_pooled = pooled(of(&g).as_ref(), WIDTHS.1)?;
    let cond = match (rows, t5) {
        (Some(rows), Some(t5)) => Tensor::cat(&[&rows, &t5.hidden], 1)?,
        (Some(rows), None) => rows,
        (None, Some(t5)) => t5.hidden,
        (None, None) => Tensor::zeros([1, 77, T5_WIDTH])?,
    };
    Ok(Encoded {
        pooled: Some(Tensor::cat(&[&l_pooled, &g_pooled], 1)?),
        ..Encoded::new(cond)
    })
}

/// Flux 1: T5's rows, CLIP's vector.
pub static FLUX: TextStack = TextStack {
    name: "Flux",
    parts: &[
        StackPart {
            name: "clip_l",
            kinds: &[&CLIP_L],
            optional: false,
            prefixes: &[L_PREFIX],
            prompt: clip::prompt(bpe::END),
            rule: clip::rule(LayerRule::LAST, false),
            saved: saved(L_PREFIX),
        },
        StackPart {
            name: "t5xxl",
            kinds: &[&T5_ENGLISH],
            optional: false,
            prefixes: &[T5_PREFIX],
            prompt: PromptRule::plain(t5_chunks(256)),
            rule: EncodeRule::layer(LayerRule::LAST, T5_SPECIALS),
            saved: saved(T5_PREFIX),
        },
    ],
    words: &[],
    join: |outputs, _| {
        let mut outputs = outputs.into_iter();
        let [l, t5] = [(); 2].map(|()| take(&mut outputs));
        let cond = t5.map_or_else(
            || Tensor::zeros([1, 256, T5_WIDTH]),
            |t5| Ok(t5.output.hidden),
        );
        Ok(Encoded {
            pooled: l.and_then(|l| l.output.pooled),
            ..Encoded::new(cond?)
        })
    },
};
