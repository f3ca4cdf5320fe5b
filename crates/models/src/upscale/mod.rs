//! Networks that enlarge or mend pictures. Each kind is a file; which there are is said in `KINDS`.
//!
//! A network sees (b, h, w, c) on its device. What all have in common is here: the sizes that they can take, colours in
//! 0..1, the way in and out.

mod compact;
mod dat;
mod dysample;
mod esrgan;
mod hat;
mod keys;
mod made;
mod omnisr;
mod plksr;
mod shuffle;
mod span;
mod swinir;
mod tail;
mod window;

use std::fmt;
use std::sync::Arc;

use fresco_tensor::filter::{Border, Margins, pad};
use fresco_tensor::{Device, Tensor, WeightFile};

use crate::detect::what_it_is;
use crate::error::{ModelError, Result};
use crate::store::{Blocks, Layout, UnitOrder, Walk, WeightStore};

use keys::UpscaleKeys;

/// How a kind is recognised and built.
type FindKind = fn(&UpscaleKeys) -> Result<Option<FoundKind>>;

/// The kinds, in the order they are looked for.
static KINDS: &[FindKind] = &[
    esrgan::find,
    span::find,
    plksr::find,
    dat::find,
    hat::find,
    swinir::find,
    omnisr::find,
    compact::find,
];

/// The kinds by name, to say what is run.
const NAMES: &str = "ESRGAN, SPAN, RealPLKSR, DAT, HAT, SwinIR, OmniSR and Compact";

static UNITS: UnitOrder = UnitOrder {
    parts: &[],
    blocks: &[
        Blocks::Within("layers"),
        Blocks::Within("residual_layer"),
        Blocks::Within("blocks"),
        Blocks::Within("feats"),
        Blocks::Within("body"),
    ],
    values: &["taps", "temperature", "relative_position_bias_table"],
};

/// What is known of a network without building it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpscaleFacts {
    /// "ESRGAN".
    pub kind: &'static str,
    pub scale: usize,
    /// Channels of the pictures that go in and come out.
    pub input: usize,
    pub output: usize,
    /// The smallest side that it takes, and what sides must be multiples of.
    pub minimum: usize,
    pub multiple: usize,
    /// What the network itself adds at the right and the bottom.
    pub edge: Edge,
}

/// How a network fills its picture up to whole cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    None,
    /// With its mirror image, to a multiple.
    Mirror(usize),
    /// With zeros.
    Zeros(usize),
}

impl UpscaleFacts {
    /// Of a network that takes pictures of any size.
    fn plain(kind: &'static str, scale: usize, input: usize, output: usize) -> Self {
        Self {
            kind,
            scale,
            input,
            output,
            minimum: 1,
            multiple: 1,
            edge: Edge::None,
        }
    }
}

/// A network over pictures (b, h, w, c), all on its device.
pub trait UpscaleNetwork: Send + Sync {
    fn forward(&self, x: &Tensor) -> Result<Tensor>;
}

type Build = Arc<dyn Fn(&Walk<'_>) -> Result<Box<dyn UpscaleNetwork>> + Send + Sync>;

/// What a kind found in a file.
struct FoundKind {
    facts: UpscaleFacts,
    store: Arc<WeightStore>,
    build: Build,
}

impl FoundKind {
    /// `build` is the network's constructor.
    fn new<N: UpscaleNetwork + 'static>(
        facts: UpscaleFacts,
        store: Arc<WeightStore>,
        build: impl Fn(&Walk<'_>) -> Result<N> + Send + Sync + 'static,
    ) -> Self {
        Self {
            facts,
            store,
            build: Arc::new(move |weights| Ok(Box::new(build(weights)?))),
        }
    }
}

/// The weights of an upscale model, with what kind of network they make.
#[derive(Clone)]
pub struct UpscaleStore {
    pub store: Arc<WeightStore>,
    facts: UpscaleFacts,
    build: Build,
}

impl UpscaleStore {
    /// What is in a file; says what it is otherwise. Nothing but names and shapes is read.
    pub fn find(file: &Arc<dyn WeightFile>) -> Result<Self> {
        let keys = UpscaleKeys::of(file);
        for find in KINDS {
            if let Some(found) = find(&keys)? {
                let layout = Layout::of(|weights| (found.build)(weights))?;
                layout.verify(&found.store, "the upscale model")?;
                return Ok(Self {
                    store: found.store.with_units(&UNITS),
                    facts: found.facts,
                    build: found.build,
                });
            }
        }
        let reason = match what_it_is(&file.names()) {
            Some(what) if what != "an upscale model" => {
                format!("this is {what}, not an upscale model")
            }
            _ => format!("no upscale model is known with its tensors; this version runs {NAMES}"),
        };
        Err(ModelError::unsupported(
            file.path().display().to_string(),
            reason,
        ))
    }

    pub fn facts(&self) -> UpscaleFacts {
        self.facts
    }

    /// The same weights, computed with on another device.
    #[must_use]
    pub fn on(&self, device: Device) -> Self {
        Self {
            store: self.store.on(device),
            ..self.clone()
        }
    }

    pub fn build(&self) -> Result<Upscaler> {
        let network = self.store.build("the upscale model", |w| (self.build)(w))?;
        Ok(Upscaler {
            facts: self.facts,
            device: self.store.device().clone(),
            network,
        })
    }
}

impl fmt::Debug for UpscaleStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpscaleStore")
            .field("facts", &self.facts)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// A network that is ready.
pub struct Upscaler {
    facts: UpscaleFacts,
    device: Device,
    network: Box<dyn UpscaleNetwork>,
}

impl Upscaler {
    pub fn facts(&self) -> UpscaleFacts {
        self.facts
    }

    /// What the network makes of pictures (b, c, h, w) that have the sizes it wants, as it is.
    pub fn raw(&self, x: &Tensor) -> Result<Tensor> {
        let [_, channels, h, w] = x.dims4()?;
        if channels != self.facts.input || x.is_empty() {
            let reason = format!(
                "takes pictures of {} channels, not of shape {:?}",
                self.facts.input,
                x.shape()
            );
            return Err(ModelError::invalid("upscale model", reason));
        }
        let filled = match self.facts.edge {
            Edge::None => x.clone(),
            Edge::Mirror(n) => filled(x, (h.next_multiple_of(n), w.next_multiple_of(n)))?,
            Edge::Zeros(n) => {
                let margins = Margins {
                    bottom: h.next_multiple_of(n) - h,
                    right: w.next_multiple_of(n) - w,
                    ..Margins::all(0)
                };
                pad(x, margins, Border::Constant(0.0))?
            }
        };
        let out = self
            .network
            .forward(&filled.nchw_to_nhwc()?.to(&self.device)?)?;
        let out = out.to(&Device::cpu())?.nhwc_to_nchw()?;
        cut(&out, (h * self.facts.scale, w * self.facts.scale))
    }

    /// Pictures (b, c, h, w) in 0..1, enlarged; any size.
    pub fn enlarge(&self, x: &Tensor) -> Result<Tensor> {
        let [_, _, h, w] = x.dims4()?;
        let whole = |n: usize| {
            n.max(self.facts.minimum)
                .next_multiple_of(self.facts.multiple.max(1))
        };
        let out = self.raw(&filled(x, (whole(h), whole(w)))?)?;
        let out = cut(&out, (h * self.facts.scale, w * self.facts.scale))?;
        Ok(out.clamp(0.0, 1.0))
    }
}

/// The upper left part of (b, c, h, w).
fn cut(x: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
    let [_, _, h, w] = x.dims4()?;
    if (h, w) == (height, width) {
        return Ok(x.clone());
    }
    Ok(x.narrow(2, 0, height.min(h))?.narrow(3, 0, width.min(w))?)
}

/// (b, c, h, w) continued at the right and the bottom with its mirror image, and where that ends with its edge.
fn filled(x: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
    let [_, _, h, w] = x.dims4()?;
    let mut x = x.clone();
    for (dim, have, want) in [(2, h, height), (3, w, width)] {
        if want > have {
            let place = |i: usize| match i {
                i if i < have => i,
                i if i < 2 * have - 1 => 2 * have - 2 - i,
                // The mirror image ends at the first row, whose copies go on.
                _ => 0,
            };
            let places: Vec<usize> = (0..want).map(place).collect();
            x = x.index_select(dim, &places)?;
        }
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_continued_by_their_mirror_image() {
        let x = Tensor::from_fn([1, 1, 1, 3], |i| i as f32).unwrap();
        let wide = filled(&x, (1, 7)).unwrap();
        assert_eq!(wide.data(), [0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 0.0]);
        let dot = Tensor::ones([1, 1, 1, 1]).unwrap();
        assert_eq!(filled(&dot, (2, 2)).unwrap().data(), [1.0; 4]);
        assert_eq!(cut(&wide, (1, 3)).unwrap(), x);
    }
}
