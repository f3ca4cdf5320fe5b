//! Networks that listen, on links, and what they give: AUDIO_ENCODER_OUTPUT is a dictionary of `encoded_audio` (b, moments,
//! width), `encoded_audio_all_layers`, a list of such, and `audio_samples`.

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Value, entry, map,
    wrong_kind,
};
use fresco_memory::Need;
use fresco_models::ModelError;
use fresco_models::audio_encoder::{self, AudioEncoder, AudioEncoderConfig, AudioFeatures, RATE};
use fresco_models::network::Lazy;
use fresco_models::store::WeightStore;
use fresco_tensor::{Device, Tensor};

use crate::audio::{Audio, resample::resample};
use crate::loaders::WeightSource;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork, registry, who};
use crate::sampling::run::failure;
use crate::types::tensor;

pub static NODES: &[NodeEntry] = &[entry::<AudioEncoderLoader>(), entry::<AudioEncoderEncode>()];

type Encoder = Lazy<AudioEncoder>;

fn encoder(store: &Arc<WeightStore>, config: &AudioEncoderConfig) -> Encoder {
    let (own, config) = (Arc::clone(store), config.clone());
    let build = move || config.build(&own);
    Lazy::new(vec![Arc::clone(store)], Box::new(build))
}

struct LoadedEncoder {
    network: Arc<Encoder>,
    hold: Arc<Hold>,
}

/// AUDIO_ENCODER on a link.
#[derive(Clone)]
pub struct Listener(Arc<LoadedEncoder>);

impl Listener {
    /// The encoder in a file of the user's folder.
    fn load(cx: &Cx, name: &str) -> Result<Self, NodeError> {
        let source = WeightSource::find(cx, "audio_encoders", name)?;
        let key = source.key(Component::Hearing)?;
        let opened = registry(cx).open(&who(cx), &key, "AudioEncoder", || {
            let store = audio_encoder::store(source.open()?, Device::cpu());
            let config = AudioEncoderConfig::detect(&store).map_err(failure)?;
            config.verify(&store).map_err(failure)?;
            let network = encoder(&store, &config);
            Ok::<_, NodeError>(SharedNetwork::new(network, (store, config)))
        })?;
        let shared = opened.shared;
        let options = LoadOptions::default();
        let hold = Hold::claim(cx, &shared, &opened.id, Component::Hearing, &options);
        let (store, config) = &shared.extra;
        let network = encoder(&store.on(hold.compute().clone()), config);
        let network = shared.joined(network);
        Ok(Self(Arc::new(LoadedEncoder { network, hold })))
    }

    /// What it hears in sound of [`RATE`] samples a second.
    fn encode(&self, sound: &Tensor, cx: &Cx) -> Result<AudioFeatures, NodeError> {
        let in_use = InUse::of(cx, &[self.0.hold.handle()], Need::default())?;
        let check = || cx.check_interrupt().map_err(|_| ModelError::Cancelled);
        let heard = in_use.run(|| self.0.network.get()?.encode(sound, &check));
        heard.map_err(failure)
    }
}

impl Opaque for Listener {
    fn describe(&self) -> String {
        "an audio encoder".into()
    }
}

impl FromValue for Listener {
    const IO: &'static str = "AUDIO_ENCODER";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind("AUDIO_ENCODER", &value))
    }
}

impl From<Listener> for Value {
    fn from(listener: Listener) -> Self {
        Self::object(listener)
    }
}

/// Loads a model that listens to sound.
#[derive(Node)]
#[node(
    id = "AudioEncoderLoader",
    v3,
    module = "comfy_extras.nodes_audio_encoder",
    category = "loaders",
    outputs("AUDIO_ENCODER")
)]
pub struct AudioEncoderLoader {
    /// The file of the audio encoder.
    #[input(listed = "models/audio_encoders")]
    audio_encoder_name: String,
}

impl Node for AudioEncoderLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        Ok(NodeOutput::one(Listener::load(
            cx,
            &self.audio_encoder_name,
        )?))
    }
}

/// Lets an audio encoder listen to a sound.
#[derive(Node)]
#[node(
    id = "AudioEncoderEncode",
    v3,
    module = "comfy_extras.nodes_audio_encoder",
    category = "conditioning",
    outputs("AUDIO_ENCODER_OUTPUT")
)]
pub struct AudioEncoderEncode {
    /// The network that listens.
    audio_encoder: Listener,
    audio: Audio,
}

impl Node for AudioEncoderEncode {
    fn run(self, cx: &Cx) -> NodeResult {
        let sound = resample(self.audio.waveform()?, self.audio.sample_rate()?, RATE)?;
        let samples = sound.dim(2)?;
        let heard = self.audio_encoder.encode(&sound, cx)?;
        let layers: Vec<Value> = heard.states.into_iter().map(tensor).collect();
        Ok(NodeOutput::one(Value::from(map! {
            "encoded_audio" => tensor(heard.last),
            "encoded_audio_all_layers" => layers,
            "audio_samples" => samples as i64,
        })))
    }
}
