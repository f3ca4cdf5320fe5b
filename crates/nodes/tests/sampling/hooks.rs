//! Hooks whose strength changes while a model is sampled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fresco_files::Folders;
use fresco_files::dirs::Dirs;
use fresco_graph::{Cx, Resources, Value, map};
use fresco_models::denoise::Call;
use fresco_models::{ModelError, ModelSampling, Prediction, WeightStore};
use fresco_nodes::sampling::{BaseModel, Model};
use fresco_tensor::{Device, Stored, Tensor, safetensors};

use crate::harness::*;

/// At which noise level which weights were used.
type Log = Arc<Mutex<Vec<(f32, usize)>>>;

/// Remembers which weights it is called with.
struct Watched {
    store: Arc<WeightStore>,
    log: Log,
}

impl BaseModel for Watched {
    fn name(&self) -> String {
        "watched".to_owned()
    }

    fn process_latent_in(&self, latent: &Tensor) -> fresco_tensor::Result<Tensor> {
        Ok(latent.clone())
    }

    fn process_latent_out(&self, latent: &Tensor) -> fresco_tensor::Result<Tensor> {
        Ok(latent.clone())
    }

    fn apply(&self, _: &ModelSampling, call: &Call<'_>) -> Result<Tensor, ModelError> {
        let mut log = self.log.lock().unwrap();
        log.push((call.sigma, self.store.address()));
        Ok(call.x.mul_scalar(0.5))
    }

    fn store(&self) -> Option<&Arc<WeightStore>> {
        Some(&self.store)
    }

    fn with_store(&self, store: Arc<WeightStore>) -> Result<Arc<dyn BaseModel>, ModelError> {
        let log = Arc::clone(&self.log);
        Ok(Arc::new(Self { store, log }))
    }
}

/// From nothing to all half way: one change of the weights, at the step where it is due.
#[test]
fn l09_a_scheduled_hook_changes_the_weights_once() {
    let base = tempfile::tempdir().unwrap();
    let loras = base.path().join("models/loras");
    std::fs::create_dir_all(&loras).unwrap();
    let diff = Tensor::ones([4, 4]).unwrap();
    let tensors = [("diffusion_model.time_embed.0.diff", &diff)];
    safetensors::write(loras.join("a.safetensors"), &tensors, &[]).unwrap();
    let mut resources = Resources::default();
    resources.insert(Folders::new(&Dirs::under(base.path())));
    let cx = Cx::detached(Arc::new(resources));

    let call = |id: &str, args| call_in(id, args, &cx).unwrap().remove(0);
    let first = call(
        "CreateHookKeyframe",
        map! {"strength_mult" => 0.0, "start_percent" => 0.0},
    );
    let both = call(
        "CreateHookKeyframe",
        map! {"strength_mult" => 1.0, "start_percent" => 0.5, "prev_hook_kf" => first},
    );
    let hooks = call(
        "CreateHookLoraModelOnly",
        map! {"lora_name" => "a.safetensors", "strength_model" => 1.0},
    );
    let hooks = call(
        "SetHookKeyframes",
        map! {"hooks" => hooks, "hook_kf" => both},
    );

    let weight = Stored::from(&Tensor::ones([4, 4]).unwrap());
    let weights = BTreeMap::from([("time_embed.0.weight".to_owned(), weight)]);
    let log = Log::default();
    let watched = Watched {
        store: WeightStore::from_stored("test", weights, Device::cpu()),
        log: Arc::clone(&log),
    };
    let own = watched.store.address();
    let sampling = ModelSampling::discrete(Prediction::Eps, false);
    let half = sampling.percent_to_sigma(0.5) as f32;
    let model = Model::new(Arc::new(watched), sampling);
    let positive: Value = vec![entry(text("p", 77), map! {"hooks" => hooks})].into();
    let args = ksampler(map! {
        "model" => model, "steps" => 10, "cfg" => 1.0, "positive" => positive,
    });
    call("KSampler", args);

    let log = log.lock().unwrap();
    assert_eq!(log.len(), 10);
    let changes: Vec<_> = log.windows(2).filter(|w| w[0].1 != w[1].1).collect();
    assert_eq!(changes.len(), 1, "{log:?}");
    let [before, after] = changes[0] else {
        unreachable!("windows of two");
    };
    assert!(before.0 > half && after.0 <= half, "{changes:?} {half}");
    assert_eq!((before.1 == own, after.1 == own), (true, false));
}
