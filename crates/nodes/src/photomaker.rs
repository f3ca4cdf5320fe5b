//! People in prompts (PhotoMaker).

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Value, entry,
    wrong_kind,
};
use fresco_memory::Need;
use fresco_models::network::Lazy;
use fresco_models::sd::photomaker::{self, PhotoMaker};
use fresco_models::store::WeightStore;
use fresco_models::text::PromptTokens;
use fresco_tensor::Device;

use crate::clip::{Clip, required};
use crate::loaders::WeightSource;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork, registry, who};
use crate::sampling::run::failure;
use crate::types::{Image, tensor};

pub static NODES: &[NodeEntry] = &[entry::<PhotoMakerLoader>(), entry::<PhotoMakerEncode>()];

/// The word that the person stands for.
const WORD: &str = "photomaker";

type LazyMaker = Lazy<PhotoMaker>;

struct Loaded {
    network: Arc<LazyMaker>,
    hold: Arc<Hold>,
}

/// PHOTOMAKER on a link.
#[derive(Clone)]
pub struct PhotoMakerModel(Arc<Loaded>);

impl Opaque for PhotoMakerModel {
    fn describe(&self) -> String {
        "a PhotoMaker model".into()
    }
}

impl FromValue for PhotoMakerModel {
    const IO: &'static str = "PHOTOMAKER";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind("PHOTOMAKER", &value))
    }
}

impl From<PhotoMakerModel> for Value {
    fn from(model: PhotoMakerModel) -> Self {
        Self::object(model)
    }
}

/// A network whose weights are packed when it is first used.
fn network(store: &Arc<WeightStore>) -> LazyMaker {
    let own = Arc::clone(store);
    let build = move || PhotoMaker::new(&own);
    Lazy::new(vec![Arc::clone(store)], Box::new(build))
}

/// Loads a model that puts a person into a prompt.
#[derive(Node)]
#[node(
    id = "PhotoMakerLoader",
    v3,
    module = "comfy_extras.nodes_photomaker",
    category = "_for_testing/photomaker",
    outputs("PHOTOMAKER"),
    experimental
)]
pub struct PhotoMakerLoader {
    /// The file of the PhotoMaker model.
    #[input(listed = "models/photomaker")]
    photomaker_model_name: String,
}

impl Node for PhotoMakerLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let source = WeightSource::find(cx, "photomaker", &self.photomaker_model_name)?;
        let key = source.key(Component::Vision)?;
        let opened = registry(cx).open(&who(cx), &key, "PhotoMaker", || {
            let store = photomaker::store(source.open()?, Device::cpu()).map_err(failure)?;
            PhotoMaker::verify(&store).map_err(failure)?;
            Ok::<_, NodeError>(SharedNetwork::new(network(&store), store))
        })?;
        let shared = opened.shared;
        let options = LoadOptions::default();
        let hold = Hold::claim(cx, &shared, &opened.id, Component::Vision, &options);
        let network = network(&shared.extra.on(hold.compute().clone()));
        let network = shared.joined(network);
        let model = PhotoMakerModel(Arc::new(Loaded { network, hold }));
        Ok(NodeOutput::one(model))
    }
}

/// Turns a prompt into conditioning in which the word `photomaker` is the person in a picture.
#[derive(Node)]
#[node(
    id = "PhotoMakerEncode",
    v3,
    module = "comfy_extras.nodes_photomaker",
    category = "_for_testing/photomaker",
    outputs("CONDITIONING"),
    experimental
)]
pub struct PhotoMakerEncode {
    /// The model that knows how to put a person into a prompt.
    photomaker: PhotoMakerModel,
    /// Pictures of the person.
    image: Image,
    clip: Option<Clip>,
    /// The prompt; the word photomaker stands for the person.
    #[input(
        default = "photograph of photomaker",
        multiline = true,
        dynamicPrompts = true
    )]
    text: String,
}

/// Leaves the tokens of a group out; the last token of a chunk fills it up again.
fn without(tokens: &mut PromptTokens, group: usize) {
    for (_, tokens) in &mut tokens.0 {
        for chunk in &mut tokens.chunks {
            let (count, last) = (chunk.len(), chunk.last().cloned());
            chunk.retain(|token| token.word != group);
            if let Some(last) = last {
                chunk.resize(count, last);
            }
        }
    }
}

impl Node for PhotoMakerEncode {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let place = self.text.split(' ').position(|word| word == WORD);
        let mut tokens = clip.tokenize(&self.text, cx)?;
        if let Some(place) = place {
            without(&mut tokens, place + 1);
        }
        let mut conditioning = clip.encode(&tokens, fresco_graph::Map::new(), cx)?;
        let Some(place) = place else {
            return Ok(NodeOutput::one(conditioning));
        };
        let maker = &self.photomaker.0;
        let in_use = InUse::of(cx, &[maker.hold.handle()], Need::default())?;
        for cond in &mut conditioning.0 {
            let prompt = cond.tensor()?.clone();
            let made = in_use.run(|| {
                let network = maker.network.get()?;
                let person = network.person(&self.image.0)?;
                network.fuse(&prompt, &person, place)
            });
            cond.tokens = tensor(made.map_err(failure)?);
        }
        Ok(NodeOutput::one(conditioning))
    }
}

#[cfg(test)]
mod tests {
    use fresco_models::text::{Token, Tokens, Weighted};

    use super::*;

    #[test]
    fn a_group_is_left_out_and_the_chunk_stays_as_long() {
        let token = |id: u32, word: usize| Weighted {
            token: Token::Id(id),
            weight: 1.0,
            word,
        };
        let chunk = vec![token(1, 0), token(2, 1), token(3, 2), token(9, 0)];
        let mut tokens = PromptTokens(vec![(
            "clip_l",
            Tokens {
                chunks: vec![chunk],
                missing: Vec::new(),
            },
        )]);
        without(&mut tokens, 1);
        let ids = tokens.0[0].1.chunks[0].iter().map(|t| t.token.clone());
        assert_eq!(
            ids.collect::<Vec<_>>(),
            [1, 3, 9, 9].map(Token::Id).to_vec()
        );
    }
}
