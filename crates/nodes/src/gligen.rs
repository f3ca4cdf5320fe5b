//! Boxes with text in a picture (GLIGEN).

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Pieces, Value,
    entry, wrong_kind,
};
use fresco_memory::Handle;
use fresco_models::ModelError;
use fresco_models::denoise::hooks::{BlockKind, Hooks};
use fresco_models::denoise::{AttentionPoint, BaseModel, CondHooks, HookPoint};
use fresco_models::network::Lazy;
use fresco_models::sd::gligen::{Gligen, GligenConfig, MOST_BOXES, TextBox};
use fresco_models::store::WeightStore;
use fresco_tensor::{Device, Tensor};

use crate::clip::{Clip, required};
use crate::loaders::WeightSource;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork, registry, who};
use crate::sampling::run::failure;
use crate::types::{Conditioning, add_tensor};

pub static NODES: &[NodeEntry] = &[entry::<GligenLoader>(), entry::<GligenTextBoxApply>()];

type LazyGligen = Lazy<Arc<Gligen>>;

struct Loaded {
    network: Arc<LazyGligen>,
    hold: Arc<Hold>,
}

/// GLIGEN on a link.
#[derive(Clone)]
pub struct GligenModel(Arc<Loaded>);

impl Opaque for GligenModel {
    fn describe(&self) -> String {
        "a GLIGEN model".into()
    }
}

impl FromValue for GligenModel {
    const IO: &'static str = "GLIGEN";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind("GLIGEN", &value))
    }
}

impl From<GligenModel> for Value {
    fn from(model: GligenModel) -> Self {
        Self::object(model)
    }
}

/// A network whose weights are packed when it is first used.
fn network(store: &Arc<WeightStore>) -> LazyGligen {
    let own = Arc::clone(store);
    let build = move || Ok(Arc::new(Gligen::new(&own)?));
    Lazy::new(vec![Arc::clone(store)], Box::new(build))
}

/// Loads a model that puts what texts say into boxes.
#[derive(Node)]
#[node(
    id = "GLIGENLoader",
    v1,
    module = "nodes",
    category = "loaders",
    outputs("GLIGEN")
)]
pub struct GligenLoader {
    /// The file of the GLIGEN model.
    #[input(listed = "models/gligen")]
    gligen_name: String,
}

impl Node for GligenLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let source = WeightSource::find(cx, "gligen", &self.gligen_name)?;
        let key = source.key(Component::Control)?;
        let opened = registry(cx).open(&who(cx), &key, "Gligen", || {
            let file = source.open()?;
            if !GligenConfig::is_in(&**file) {
                let names = file.names();
                let what = fresco_models::detect::what_it_is(&names);
                let what = what.unwrap_or("of no kind that is known");
                return Err(NodeError::value_error(format!(
                    "{} is no GLIGEN model: it is {what}",
                    file.path().display()
                )));
            }
            let store = WeightStore::open(Arc::clone(file), "", Device::cpu());
            Gligen::verify(&store).map_err(failure)?;
            Ok(SharedNetwork::new(network(&store), store))
        })?;
        let shared = opened.shared;
        let options = LoadOptions::default();
        let hold = Hold::claim(cx, &shared, &opened.id, Component::Control, &options);
        let network = network(&shared.extra.on(hold.compute().clone()));
        let network = shared.joined(network);
        let model = GligenModel(Arc::new(Loaded { network, hold }));
        Ok(NodeOutput::one(model))
    }
}

/// Boxes in a conditioning.
#[derive(Clone)]
pub struct TextBoxes {
    model: GligenModel,
    boxes: Arc<Vec<TextBox>>,
}

impl TextBoxes {
    /// The handle of the network's weights.
    pub(crate) fn handle(&self) -> &Handle {
        self.model.0.hold.handle()
    }

    /// Says in the log where a network does not look at them.
    pub(crate) fn warn_of(network: &dyn BaseModel) {
        let point = HookPoint::Own(AttentionPoint::After);
        if !network.hook_points().grants(&BlockKind::LEVELS, point) {
            let name = network.name();
            tracing::warn!("the boxes of GLIGEN have no effect on {name}: it is not a UNet");
        }
    }

    /// What acts while a condition with these boxes is predicted.
    pub(crate) fn hooks(&self, in_use: Option<Arc<InUse>>) -> Arc<dyn CondHooks> {
        Arc::new(Looking {
            boxes: self.clone(),
            in_use,
        })
    }
}

impl Opaque for TextBoxes {
    fn describe(&self) -> String {
        format!("{} boxes with text", self.boxes.len())
    }

    fn bytes(&self) -> u64 {
        let words = self.boxes.iter().map(|one| one.words.len() as u64 * 4);
        words.sum()
    }

    fn pieces(&self, pieces: &mut Pieces) {
        for one in self.boxes.iter() {
            add_tensor(pieces, &one.words);
        }
    }
}

struct Looking {
    boxes: TextBoxes,
    in_use: Option<Arc<InUse>>,
}

impl CondHooks for Looking {
    fn add(&self, x: &Tensor, hooks: &mut Hooks) -> Result<(), ModelError> {
        let [_, _, rows, columns] = x.dims4()?;
        let make = || -> Result<_, ModelError> {
            let network = self.boxes.model.0.network.get()?;
            let tokens = network.tokens(&self.boxes.boxes, (rows, columns))?;
            Ok((network, tokens))
        };
        let (network, tokens) = match &self.in_use {
            Some(in_use) => in_use.run(make)?,
            None => make()?,
        };
        Gligen::look(&network, tokens, hooks);
        Ok(())
    }
}

/// Pixels along a side of a cell of the latents that these models know.
const CELL: i64 = 8;

/// Puts what a text says into a box of the picture.
#[derive(Node)]
#[node(
    id = "GLIGENTextBoxApply",
    v1,
    module = "nodes",
    category = "conditioning/gligen",
    outputs("CONDITIONING")
)]
pub struct GligenTextBoxApply {
    /// The prompt that gets the box.
    conditioning_to: Conditioning,
    clip: Option<Clip>,
    /// The model that puts things into boxes.
    gligen_textbox_model: GligenModel,
    /// What is in the box.
    #[input(multiline = true, dynamicPrompts = true)]
    text: String,
    /// Width of the box in pixels.
    #[input(default = 64, min = 8, max = 16384, step = 8)]
    width: i64,
    /// Height of the box in pixels.
    #[input(default = 64, min = 8, max = 16384, step = 8)]
    height: i64,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    x: i64,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    y: i64,
}

impl Node for GligenTextBoxApply {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let tokens = clip.tokenize(&self.text, cx)?;
        let encoded = clip.encode_unprojected(&tokens, cx)?;
        let words = encoded.pooled.ok_or_else(|| {
            NodeError::value_error(
                "this text encoder has no vector for all of a text, which boxes need: GLIGEN is for SD1.x and SD2.x",
            )
        })?;
        let cells = |pixels: i64| (pixels.max(0) / CELL) as usize;
        let one = TextBox {
            words,
            cells: [
                cells(self.height),
                cells(self.width),
                cells(self.y),
                cells(self.x),
            ],
        };
        let mut conditioning = self.conditioning_to;
        for cond in &mut conditioning.0 {
            let known = cond.options.get("gligen");
            let known = known.and_then(|value| value.downcast::<TextBoxes>());
            let mut boxes = known.map_or_else(Vec::new, |known| (*known.boxes).clone());
            boxes.push(one.clone());
            if boxes.len() > MOST_BOXES {
                return Err(NodeError::value_error(format!(
                    "a conditioning can have {MOST_BOXES} boxes with text, not {}",
                    boxes.len()
                )));
            }
            let boxes = TextBoxes {
                model: self.gligen_textbox_model.clone(),
                boxes: Arc::new(boxes),
            };
            cond.options.insert("gligen".into(), Value::object(boxes));
        }
        Ok(NodeOutput::one(conditioning))
    }
}
