//! People in a video who speak: a patch of Wan, against the same sums written out.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{Call, CallConds, CondValue};
use fresco_models::detect_checkpoint;
use fresco_models::model_patch::PatchStore;
use fresco_models::network::Lazy;
use fresco_models::wan::talk::{TalkControl, TalkNetwork};
use fresco_tensor::{Device, Stored, Tensor, WeightFile, synthetic};

use crate::gold::{Gold, MemoryFile};

const DIM: usize = 64;
const VALUES: usize = 6;
const WIDTH: usize = 8;
const TOKENS: usize = 2;

/// A patch for networks of width 64 and two blocks.
pub(crate) fn keys() -> BTreeMap<String, Vec<usize>> {
    let mut keys = BTreeMap::new();
    let mut linear = |name: String, out: usize, input: usize| {
        keys.insert(format!("{name}.weight"), vec![out, input]);
        keys.insert(format!("{name}.bias"), vec![out]);
    };
    linear("audio_proj.proj1".into(), 12, 5 * VALUES);
    linear("audio_proj.proj1_vf".into(), 12, 8 * VALUES);
    linear("audio_proj.proj2".into(), 12, 12);
    linear("audio_proj.proj3".into(), TOKENS * WIDTH, 12);
    for block in 0..2 {
        let name = |rest: &str| format!("blocks.{block}.audio_cross_attn.{rest}");
        linear(name("q_linear"), DIM, DIM);
        linear(name("kv_linear"), 2 * DIM, WIDTH);
        linear(name("proj"), DIM, DIM);
    }
    for (name, width) in [
        ("audio_proj.norm", WIDTH),
        ("blocks.0.norm_x", DIM),
        ("blocks.1.norm_x", DIM),
    ] {
        keys.insert(format!("{name}.weight"), vec![width]);
        keys.insert(format!("{name}.bias"), vec![width]);
    }
    keys
}

fn weights() -> BTreeMap<String, Tensor> {
    let made = keys().into_iter();
    made.map(|(name, shape)| {
        let weight = synthetic::weight(&name, &shape).unwrap();
        (name, weight)
    })
    .collect()
}

fn patch() -> PatchStore {
    let stored = weights().into_iter();
    let stored = stored.map(|(name, weight)| (name, Stored::from(&weight)));
    let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(stored.collect()));
    PatchStore::find(&file, &Device::cpu()).unwrap()
}

fn linear(weights: &BTreeMap<String, Tensor>, name: &str, x: &[f64]) -> Vec<f64> {
    let (w, b) = (
        &weights[&format!("{name}.weight")],
        &weights[&format!("{name}.bias")],
    );
    let rows = w.data().chunks(x.len()).zip(b.data());
    rows.map(|(row, b)| {
        let sum: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
        sum + f64::from(*b)
    })
    .collect()
}

#[test]
fn what_a_frame_hears_is_the_windows_of_its_pictures() {
    let windows = synthetic::value("windows", &[5, 5, VALUES], 1.0).unwrap();
    let found = patch();
    let network = found.build().unwrap();
    let heard = network
        .of::<TalkNetwork>()
        .unwrap()
        .frame_features(&windows, 2)
        .unwrap();
    assert_eq!(heard.shape(), [2, TOKENS, WIDTH]);
    let w = weights();
    let at = |picture: usize, slots: std::ops::Range<usize>| -> Vec<f64> {
        let all = slots.flat_map(|slot| {
            let start = (picture * 5 + slot) * VALUES;
            windows.data()[start..start + VALUES].to_vec()
        });
        all.map(f64::from).collect()
    };
    let later = [at(1, 0..3), at(2, 2..3), at(3, 2..3), at(4, 2..5)].concat();
    let relu = |x: Vec<f64>| -> Vec<f64> { x.into_iter().map(|v| v.max(0.0)).collect() };
    let firsts = [
        relu(linear(&w, "audio_proj.proj1", &at(0, 0..5))),
        relu(linear(&w, "audio_proj.proj1_vf", &later)),
    ];
    for (frame, first) in firsts.iter().enumerate() {
        let second = relu(linear(&w, "audio_proj.proj2", first));
        let third = linear(&w, "audio_proj.proj3", &second);
        for (token, values) in third.chunks(WIDTH).enumerate() {
            let mean = values.iter().sum::<f64>() / WIDTH as f64;
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / WIDTH as f64;
            for (k, v) in values.iter().enumerate() {
                let even = (v - mean) / (variance + 1e-5).sqrt();
                let wanted = even * f64::from(w["audio_proj.norm.weight"].data()[k])
                    + f64::from(w["audio_proj.norm.bias"].data()[k]);
                let found = f64::from(heard.data()[(frame * TOKENS + token) * WIDTH + k]);
                assert!(
                    (found - wanted).abs() < 1e-4,
                    "{frame} {token} {k}: {found} {wanted}"
                );
            }
        }
    }
    let short = synthetic::value("windows", &[4, 5, VALUES], 1.0).unwrap();
    let other = synthetic::value("windows", &[5, 3, VALUES], 1.0).unwrap();
    let network = network.of::<TalkNetwork>().unwrap();
    assert!(
        network.frame_features(&short, 2).is_err() && network.frame_features(&other, 2).is_err()
    );
}

/// A prediction of the small network over two latent frames, with a patch beside it.
fn pass(control: Option<TalkControl>) -> Tensor {
    let file: Arc<dyn WeightFile> =
        Arc::new(MemoryFile::new(Gold::open("wan_i2v_small").weights()));
    let found = detect_checkpoint(&file).unwrap();
    let model = found
        .network
        .open(found.store(&file, Device::cpu()))
        .unwrap();
    let x = synthetic::value("x", &[1, 16, 2, 4, 4], 1.0).unwrap();
    let conds = [
        (
            "c_concat",
            CondValue::NoiseShape(synthetic::value("y", &[1, 20, 2, 4, 4], 1.0).unwrap()),
        ),
        (
            "c_crossattn",
            CondValue::CrossAttn(synthetic::value("words", &[1, 5, 40], 1.0).unwrap()),
        ),
    ];
    let mut hooks = Hooks::default();
    if let Some(control) = control {
        hooks.beside.push(Arc::new(control));
    }
    let call = Call {
        x: &x,
        sigma: 0.5,
        conds: &CallConds(conds.into_iter().collect()),
        control: None,
        hooks: &hooks,
    };
    model.apply(&found.network.facts().sampling, &call).unwrap()
}

fn control(speakers: usize, strength: f32) -> TalkControl {
    let found = patch();
    let own = found.clone();
    let windows = |name: &str| synthetic::value(name, &[5, 5, VALUES], 1.0).unwrap();
    let mut left = Tensor::zeros([4, 4]).unwrap();
    for row in 0..4 {
        left.data_mut()[row * 4..row * 4 + 2].fill(1.0);
    }
    let right = left.rsub_scalar(1.0);
    TalkControl {
        network: Arc::new(Lazy::new(
            vec![Arc::clone(&found.store)],
            Box::new(move || own.build()),
        )),
        windows: ["first", "second"][..speakers]
            .iter()
            .map(|n| windows(n))
            .collect(),
        masks: (speakers == 2).then_some([left, right]),
        strength,
        known: None,
    }
}

#[test]
fn sounds_change_a_video_as_much_as_they_count() {
    let distance = |a: &Tensor, b: &Tensor| -> f64 {
        let both = a.data().iter().zip(b.data());
        both.map(|(a, b)| f64::from((a - b).abs())).sum()
    };
    let plain = pass(None);
    assert!(distance(&pass(Some(control(1, 0.0))), &plain) == 0.0);
    let one = pass(Some(control(1, 1.0)));
    assert!(distance(&one, &plain) > 1e-3 && one.data().iter().all(|v| v.is_finite()));
    assert!(distance(&pass(Some(control(1, 0.1))), &plain) < distance(&one, &plain));
    // Each speaker's sound acts, and where they are.
    let two = pass(Some(control(2, 1.0)));
    assert!(distance(&two, &one) > 1e-4);
    let mut other = control(2, 1.0);
    other.windows.swap(0, 1);
    assert!(distance(&pass(Some(other)), &two) > 1e-4);
    let mut moved = control(2, 1.0);
    moved.masks = moved.masks.map(|[a, b]| [b, a]);
    assert!(distance(&pass(Some(moved)), &two) > 1e-5);
}

#[test]
fn known_frames_never_have_noise() {
    let known = |value: f32| {
        let mut control = control(1, 1.0);
        control.known = Some(Tensor::full([1, 16, 1, 4, 4], value).unwrap());
        control
    };
    // What is predicted of the other frame depends on what is known, not on the noise there.
    let other = |t: &Tensor| t.narrow(2, 1, 1).unwrap();
    assert!(other(&pass(Some(known(0.0)))) != other(&pass(Some(known(1.0)))));
}
