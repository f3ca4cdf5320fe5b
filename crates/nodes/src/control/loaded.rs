//! Control nets from weight files, and the nodes that load them.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_memory::Handle;
use fresco_models::ModelError;
use fresco_models::control::{ControlInput, ControlNetwork, ControlStore, SeenHint};
use fresco_models::denoise::CallConds;
use fresco_models::denoise::hooks::ControlFeatures;
use fresco_models::network::Lazy;
use fresco_tensor::{Crop, Device, ResizeMethod, Tensor, common_upscale, repeat_to_batch};

use super::{Control, ControlModel, SteeredRun};
use crate::loaders::WeightSource;
use crate::resident::{Component, Hold, LoadOptions, SharedNetwork, registry, who};
use crate::sampling::Model;
use crate::sampling::run::failure;

type Network = Box<dyn ControlNetwork>;

/// What a network made of a hint at one size. The hint is kept, so that its storage stays its own. Both are in main
/// memory: they outlast the run.
struct Seen {
    hint: Tensor,
    extra: Vec<Tensor>,
    types: Vec<usize>,
    size: (usize, usize),
    made: SeenHint,
}

fn same(a: &Tensor, b: &Tensor) -> bool {
    a.shape() == b.shape() && std::ptr::eq(a.data(), b.data())
}

/// A control net or an adapter. Its weights are packed when it is first used.
pub struct LoadedControl {
    name: String,
    network: Arc<Lazy<Network>>,
    hold: Option<Arc<Hold>>,
    /// What it was made of, to tell which models it steers.
    found: Option<ControlStore>,
    /// Whether only the means of its features count.
    pooled: bool,
    wants_mask: bool,
    /// Of the last hint: the same in all steps of a run.
    seen: Mutex<Option<Seen>>,
}

fn lazy(found: &ControlStore) -> Lazy<Network> {
    let own = found.clone();
    let stores = vec![Arc::clone(&found.store)];
    Lazy::new(stores, Box::new(move || own.build())).resting(|network| network.rest())
}

impl LoadedControl {
    /// The control net in a file.
    fn load(cx: &Cx, source: &WeightSource, options: &LoadOptions) -> Result<Self, NodeError> {
        let key = source.key(Component::Control)?;
        let opened = registry(cx).open(&who(cx), &key, "ControlNet", || {
            let found = ControlStore::find(source.open()?, &Device::cpu()).map_err(failure)?;
            Ok::<_, NodeError>(SharedNetwork::new(lazy(&found), found))
        })?;
        let shared = opened.shared;
        let hold = Hold::claim(cx, &shared, &opened.id, Component::Control, options);
        let network = lazy(&shared.extra.on(hold.compute().clone()));
        let name = source.path().file_stem().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let wants_mask = shared.extra.wants_mask;
        Ok(Self {
            wants_mask,
            found: Some(shared.extra.clone()),
            ..Self::new(name, shared.joined(network), Some(hold))
        })
    }

    fn new(name: String, network: Arc<Lazy<Network>>, hold: Option<Arc<Hold>>) -> Self {
        Self {
            wants_mask: false,
            found: None,
            pooled: name.ends_with("_shuffle") || name.ends_with("_shuffle_fp16"),
            name,
            network,
            hold,
            seen: Mutex::default(),
        }
    }

    fn make(
        &self,
        network: &Network,
        control: &Control,
        hint: &Tensor,
        cells: (usize, usize),
        run: &SteeredRun<'_>,
    ) -> Result<SeenHint, ModelError> {
        let types = control.types();
        if let Some(format) = network.latent() {
            let latent = self.latent(network, control, hint, cells, run)?;
            let latent = format.process_in(&latent)?;
            return network.see(&self.masked(&latent, &control.extra_concat)?, &types);
        }
        let size = network.hint_size(cells.0, cells.1);
        let mut hint = resized(hint, size)?;
        let channels = network.hint_channels();
        if hint.dim(1)? > channels {
            hint = hint.narrow(1, 0, channels)?;
        }
        network.see(&network.prepare(hint)?, &types)
    }

    /// The hint as a latent of so many cells.
    fn latent(
        &self,
        network: &Network,
        control: &Control,
        hint: &Tensor,
        cells: (usize, usize),
        run: &SteeredRun<'_>,
    ) -> Result<Tensor, ModelError> {
        let refuse = |reason: &str| ModelError::unsupported(&*self.name, reason);
        let vae = control.vae.as_ref().ok_or_else(|| {
            refuse(
                "this control net needs a VAE, and none was given: connect one to the node that applies it",
            )
        })?;
        let cx = run
            .cx
            .ok_or_else(|| refuse("there is no run to encode its hint in"))?;
        let failed = |error: NodeError| {
            if cx.check_interrupt().is_err() {
                ModelError::Cancelled
            } else {
                let reason = format!("its hint could not be encoded: {}", error.message());
                ModelError::unsupported(&*self.name, reason)
            }
        };
        let ratio = vae.ratio().map_err(failed)?;
        let pixels = resized(hint, (cells.0 * ratio, cells.1 * ratio))?;
        let pixels = network.prepare(pixels)?.nchw_to_nhwc()?;
        vae.encode_rgb(&pixels, cx).map_err(failed)
    }

    /// A latent with the planes that go beside it: the mask, all of it where none was given.
    fn masked(&self, latent: &Tensor, extra: &[Tensor]) -> Result<Tensor, ModelError> {
        let whole = Tensor::ones([1, 1, 1, 1])?;
        let planes = match extra {
            [] if self.wants_mask => std::slice::from_ref(&whole),
            planes => planes,
        };
        let &[count, _, ref frames @ .., rows, columns] = latent.shape() else {
            return Err(ModelError::invalid(
                "control net",
                "its hint is not a latent",
            ));
        };
        let frames = frames.first().copied();
        let mut parts = vec![latent.clone()];
        for plane in planes {
            let mut plane = repeat_to_batch(&resized(plane, (columns, rows))?, count)?;
            if let Some(frames) = frames {
                let channels = plane.dim(1)?;
                let shape = [count, channels, frames, rows, columns];
                plane = plane.unsqueeze(2)?.expand(&shape)?;
            }
            parts.push(plane);
        }
        Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?)
    }

    /// What the network makes of the hint for a latent of so many cells.
    fn made(
        &self,
        network: &Network,
        control: &Control,
        hint: &Tensor,
        cells: (usize, usize),
        run: &SteeredRun<'_>,
    ) -> Result<SeenHint, ModelError> {
        // Nothing is left half done under this lock.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let types = control.types();
        let extra = &control.extra_concat;
        if let Some(seen) = &*seen
            && (seen.size, &seen.types) == (cells, &types)
            && same(&seen.hint, hint)
            && seen.extra.len() == extra.len()
            && seen.extra.iter().zip(extra).all(|(a, b)| same(a, b))
        {
            return Ok(seen.made.clone());
        }
        let made = self.make(network, control, hint, cells, run)?;
        *seen = Some(Seen {
            hint: hint.clone(),
            extra: extra.clone(),
            types,
            size: cells,
            made: made.clone(),
        });
        Ok(made)
    }
}

/// A picture (b, c, h, w) at another size, cut around its middle.
fn resized(hint: &Tensor, size: (usize, usize)) -> Result<Tensor, ModelError> {
    let (nearest, center) = (ResizeMethod::NearestExact, Crop::Center);
    Ok(common_upscale(hint, size.0, size.1, nearest, center)?)
}

/// One item per item of a batch of `chunks` conditions: each of them sees the first hints, repeated where there are too
/// few. A single hint is for all.
fn spread(of: &Tensor, batch: usize, chunks: usize) -> Result<Tensor, ModelError> {
    let have = of.dim(0)?;
    if have <= 1 {
        return Ok(of.clone());
    }
    let each = batch / chunks.max(1);
    let places: Vec<usize> = (0..batch).map(|i| (i % each.max(1)) % have).collect();
    Ok(of.index_select(0, &places)?)
}

impl ControlModel for LoadedControl {
    fn name(&self) -> &str {
        &self.name
    }

    fn wants_mask(&self) -> bool {
        self.wants_mask
    }

    fn handle(&self) -> Option<&Handle> {
        self.hold.as_deref().map(Hold::handle)
    }

    fn features(
        &self,
        control: &Control,
        run: &SteeredRun<'_>,
        x: &Tensor,
        sigma: f32,
        conds: &CallConds,
        chunks: usize,
    ) -> Result<Option<ControlFeatures>, ModelError> {
        let hint = control
            .hint
            .as_ref()
            .ok_or_else(|| ModelError::invalid("control net", "no picture was applied"))?;
        let &[batch, _, .., rows, columns] = x.shape() else {
            return Err(ModelError::invalid(
                "control net",
                "there is no latent to steer",
            ));
        };
        if let (Some(found), Some(steered)) = (&self.found, run.weights) {
            found.check(steered)?;
        }
        let network = self.network.get()?;
        let seen = self.made(&network, control, hint, (columns, rows), run)?;
        let seen = seen.map(|of| spread(&of, batch, chunks))?;
        let sampling = run.sampling;
        let features = network.features(&ControlInput {
            x: &sampling.input(sigma, x),
            seen: &seen,
            types: &control.types(),
            steered: run.weights,
            timesteps: &vec![sampling.timestep(sigma); batch],
            conds,
        })?;
        let strength = control.strength as f32;
        Ok(Some(features.scaled(strength, self.pooled)?))
    }
}

/// The control net of a name in the user's folder.
pub(crate) fn load_control(
    cx: &Cx,
    name: &str,
    options: &LoadOptions,
) -> Result<Control, NodeError> {
    let source = WeightSource::find(cx, "controlnet", name)?;
    let net = LoadedControl::load(cx, &source, options)?;
    Ok(Control::new(Arc::new(net)))
}

/// The same for nets that may be stored as differences to a model. Those that are whole need none; those of differences
/// are refused by name.
pub(crate) fn load_diff_control(
    cx: &Cx,
    _model: &Model,
    name: &str,
    options: &LoadOptions,
) -> Result<Control, NodeError> {
    load_control(cx, name, options)
}

/// Loads a control net or a T2I adapter.
#[derive(Node)]
#[node(
    id = "ControlNetLoader",
    v1,
    module = "nodes",
    display = "Load ControlNet Model",
    category = "loaders",
    outputs("CONTROL_NET")
)]
pub(super) struct ControlNetLoader {
    #[input(listed = "models/controlnet")]
    control_net_name: String,
}

impl Node for ControlNetLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let net = load_control(cx, &self.control_net_name, &LoadOptions::default())?;
        Ok(NodeOutput::one(net))
    }
}

/// Loads a control net that may be stored as differences to the model.
#[derive(Node)]
#[node(
    id = "DiffControlNetLoader",
    v1,
    module = "nodes",
    display = "Load ControlNet Model (diff)",
    category = "loaders",
    outputs("CONTROL_NET")
)]
pub(super) struct DiffControlNetLoader {
    /// The model that the differences are to.
    model: Model,
    #[input(listed = "models/controlnet")]
    control_net_name: String,
}

impl Node for DiffControlNetLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let options = LoadOptions::default();
        let net = load_diff_control(cx, &self.model, &self.control_net_name, &options)?;
        Ok(NodeOutput::one(net))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use fresco_graph::Value;
    use fresco_models::denoise::CondValue;
    use fresco_models::denoise::hooks::BlockKind;
    use fresco_models::sd::control::ControlNet;
    use fresco_models::sd::unet::{First, Heads, Middle, Stage, UNetConfig};
    use fresco_models::{ModelSampling, Prediction, WeightStore};
    use fresco_tensor::{Stored, WeightError, WeightFile, WeightInfo, synthetic};

    use super::*;
    use crate::control::steer;
    use crate::small_files::keys;
    use crate::vae::{Vae, VaeModel};

    struct Memory(BTreeMap<String, Stored>);

    impl WeightFile for Memory {
        fn path(&self) -> &Path {
            Path::new("nets/control_small.safetensors")
        }

        fn names(&self) -> Vec<String> {
            self.0.keys().cloned().collect()
        }

        fn info(&self, name: &str) -> Option<WeightInfo> {
            self.0.get(name).map(|stored| WeightInfo {
                dtype: stored.dtype(),
                shape: stored.shape().to_vec(),
            })
        }

        fn read(&self, name: &str) -> Result<Stored, WeightError> {
            self.0
                .get(name)
                .cloned()
                .ok_or_else(|| WeightError::Missing {
                    path: self.path().to_path_buf(),
                    name: name.to_owned(),
                })
        }

        fn metadata(&self) -> &[(String, String)] {
            &[]
        }
    }

    /// A net without attention, which needs no prompt.
    fn weights() -> BTreeMap<String, Stored> {
        let stage = |first| Stage {
            first,
            channels: 32,
            depth: 0,
            up: false,
        };
        let config = UNetConfig {
            in_channels: 4,
            out_channels: 4,
            model_channels: 32,
            context_dim: None,
            adm: None,
            linear_projection: false,
            heads: Heads::Count(8),
            input: vec![
                stage(First::Conv),
                stage(First::Residual),
                stage(First::Down),
            ],
            middle: Middle {
                residuals: 1,
                depth: 0,
            },
            output: Vec::new(),
            timed: false,
        };
        let keys = ControlNet::weights(&config, 3).unwrap().into_iter();
        keys.map(|(key, shape)| {
            let value = synthetic::weight(&key, &shape).unwrap();
            (key, Stored::from(&value))
        })
        .collect()
    }

    fn largest_gap(a: &ControlFeatures, b: &ControlFeatures, scale: f32) -> f32 {
        let maps = |f: &ControlFeatures| -> Vec<Tensor> {
            let both = [BlockKind::OUTPUT, BlockKind::MIDDLE];
            let maps = both.into_iter().flat_map(|kind| f.of(kind));
            maps.flatten().cloned().collect()
        };
        let (a, b) = (maps(a), maps(b));
        assert_eq!((a.len(), b.len()), (4, 4));
        let gap = |(x, y): (&Tensor, &Tensor)| {
            let pairs = x.data().iter().zip(y.data());
            pairs
                .map(|(x, y)| (x - y * scale).abs())
                .fold(0.0, f32::max)
        };
        a.iter().zip(&b).map(gap).fold(0.0, f32::max)
    }

    #[test]
    fn nets_act_in_their_range_at_their_strength_and_in_chains() {
        let file: Arc<dyn WeightFile> = Arc::new(Memory(weights()));
        let found = ControlStore::find(&file, &Device::cpu()).unwrap();
        let loaded = LoadedControl::new("control_small".to_owned(), Arc::new(lazy(&found)), None);
        assert_eq!(loaded.name(), "control_small");
        let sampling = ModelSampling::discrete(Prediction::Eps, false);
        let x = synthetic::value("x", &[2, 4, 8, 8], 3.0).unwrap();
        // Of another shape and with a fourth channel: cut around the middle, and without it.
        let hint = synthetic::value("hint", &[1, 4, 40, 56], 1.0).unwrap();
        let control = Control {
            hint: Some(hint.clone()),
            strength: 0.5,
            range: (0.0, 0.5),
            ..Control::new(Arc::new(loaded))
        };
        let conds = CallConds::default();
        let steered = SteeredRun {
            sampling: &sampling,
            weights: None,
            cx: None,
        };
        let run =
            |control: &Control, sigma: f32| steer(control, &steered, &x, sigma, &conds, 2).unwrap();
        let half = run(&control, 5.0).unwrap();
        let store = WeightStore::from_stored("test", weights(), Device::cpu());
        let net = ControlNet::new(&store).unwrap();
        let rgb = hint.narrow(1, 0, 3).unwrap();
        let (method, crop) = (ResizeMethod::NearestExact, Crop::Center);
        let seen = net.see(&common_upscale(&rgb, 64, 64, method, crop).unwrap());
        let times = [sampling.timestep(5.0); 2];
        let scaled = sampling.input(5.0, &x);
        let whole = net.forward(&scaled, &seen.unwrap(), &times, None, None);
        let whole = whole.unwrap();
        assert!(largest_gap(&half, &whole, 0.5) < 1e-5);
        assert!(largest_gap(&half, &whole, 1.0) > 1e-2);
        // The same again, from what was kept of the hint; nothing once the range is over.
        assert!(largest_gap(&run(&control, 5.0).unwrap(), &half, 1.0) == 0.0);
        assert!(run(&control, 0.1).is_none());
        let chain = Control {
            strength: 1.0,
            range: (0.0, 1.0),
            previous: Value::from(control.clone()),
            ..control.clone()
        };
        assert!(largest_gap(&run(&chain, 5.0).unwrap(), &whole, 1.5) < 1e-4);
        let late = run(&chain, 0.1).unwrap();
        assert_eq!(late.of(BlockKind::OUTPUT).len(), 3);
        let bare = Control {
            hint: None,
            ..control
        };
        assert!(steer(&bare, &steered, &x, 5.0, &conds, 2).is_err());
    }

    #[test]
    fn hints_are_spread_over_the_chunks() {
        let hints = Tensor::from_fn([3, 1, 1, 1], |i| i as f32).unwrap();
        let seen = |batch, chunks| spread(&hints, batch, chunks).unwrap().data().to_vec();
        assert_eq!(seen(4, 2), [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(seen(8, 2), [0.0, 1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0]);
        assert_eq!(seen(3, 1), [0.0, 1.0, 2.0]);
        let one = hints.narrow(0, 1, 1).unwrap();
        assert_eq!(spread(&one, 4, 2).unwrap().shape(), [1, 1, 1, 1]);
    }

    /// Every eighth pixel, in sixteen channels.
    struct EighthVae;

    impl VaeModel for EighthVae {
        fn encode(&self, pixels: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
            let [_, h, w, _] = pixels.dims4()?;
            let rows: Vec<usize> = (0..h).step_by(8).collect();
            let columns: Vec<usize> = (0..w).step_by(8).collect();
            let small = pixels.index_select(1, &rows)?.index_select(2, &columns)?;
            let small = small.narrow(3, 0, 1)?.nhwc_to_nchw()?;
            Ok(small.repeat(&[1, 16, 1, 1])?)
        }

        fn decode(&self, latent: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
            Ok(latent.clone())
        }

        fn spatial_ratio(&self) -> usize {
            8
        }

        fn temporal_ratio(&self) -> Option<usize> {
            None
        }

        fn latent_channels(&self) -> usize {
            16
        }
    }

    #[test]
    fn nets_that_see_latents_get_them_from_a_vae() {
        let weights = keys("sd3_controlnet_small")
            .into_iter()
            .map(|(key, shape)| {
                let shape: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
                let value = synthetic::weight(&key, &shape).unwrap();
                (key, Stored::from(&value))
            });
        let file: Arc<dyn WeightFile> = Arc::new(Memory(weights.collect()));
        let found = ControlStore::find(&file, &Device::cpu()).unwrap();
        assert!(found.wants_mask);
        let mut loaded = LoadedControl::new("sd3".to_owned(), Arc::new(lazy(&found)), None);
        loaded.wants_mask = found.wants_mask;
        let sampling = ModelSampling::flow(3.0, 1000.0);
        let x = synthetic::value("x", &[2, 16, 6, 8], 1.0).unwrap();
        let mut conds = CallConds::default();
        let tokens = synthetic::value("context", &[2, 5, 40], 1.0).unwrap();
        conds.0.insert("c_crossattn", CondValue::Regular(tokens));
        let cx = Cx::detached(Arc::default());
        let run = SteeredRun {
            sampling: &sampling,
            weights: None,
            cx: Some(&cx),
        };
        let control = Control {
            hint: Some(synthetic::value("hint", &[1, 3, 20, 30], 1.0).unwrap()),
            ..Control::new(Arc::new(loaded))
        };
        let said = steer(&control, &run, &x, 0.5, &conds, 2).unwrap_err();
        assert!(said.to_string().contains("needs a VAE"), "{said}");
        let with = Control {
            vae: Some(Vae(Arc::new(EighthVae))),
            ..control
        };
        let features = |control: &Control| {
            let found = steer(control, &run, &x, 0.5, &conds, 2).unwrap().unwrap();
            found.of(BlockKind::OUTPUT)[0].clone().unwrap()
        };
        let open = features(&with);
        assert_eq!(open.shape(), [2, 12, 256]);
        // Without a mask all of the picture counts.
        let masked = |value: f32| Control {
            extra_concat: vec![Tensor::full([1, 1, 40, 40], value).unwrap()],
            ..with.clone()
        };
        assert_eq!(features(&masked(1.0)), open);
        assert_ne!(features(&masked(0.0)), open);
    }
}
