//! `golden-conds.json`: areas, masks, time ranges and token lengths with a mock network, and which passes it made.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use fresco_models::denoise::hooks::{ControlFeatures, Hooks};
use fresco_models::denoise::{
    Area, Call, CallConds, Cond, CondValue, ControlSource, EncodeArgs, ModelConds, Predict, Region,
    Setting, predict, prepare,
};
use fresco_models::{ModelError, ModelSampling, Prediction};
use fresco_tensor::{Axes, Tensor};
use serde_json::Value;

/// `.5 x + mean(tokens)`, item by item; remembers its passes.
#[derive(Default)]
pub(crate) struct Mock {
    pub(crate) calls: RefCell<Vec<(Vec<usize>, Vec<usize>)>>,
    pub(crate) free: Option<u64>,
}

impl Predict for Mock {
    fn predict(&self, call: &Call<'_>) -> Result<Tensor, ModelError> {
        let passed = (
            call.x.shape().to_vec(),
            call.hooks.info.cond_or_uncond.clone(),
        );
        self.calls.borrow_mut().push(passed);
        let tokens = call.conds.0["c_crossattn"].tensor().expect("tokens");
        let means = tokens.mean(&[1, 2], Axes::Keep)?.unsqueeze(3)?;
        Ok(call.x.mul_scalar(0.5).add(&means)?)
    }

    fn pass_bytes(&self, shape: &[usize]) -> u64 {
        shape[0] as u64
    }

    fn memory_free(&self) -> Option<u64> {
        self.free
    }
}

pub(crate) fn tokens(value: f32, count: usize) -> Cond {
    Cond::new(Tensor::full([1, count, 8], value).unwrap())
}

pub(crate) fn latent() -> Tensor {
    Tensor::from_fn([1, 2, 16, 16], |j| (0.11 * j as f64 + 0.5).sin() as f32).unwrap()
}

pub(crate) fn sampling() -> ModelSampling {
    ModelSampling::discrete(Prediction::Eps, false)
}

pub(crate) fn plain_encode(args: &EncodeArgs<'_>) -> Result<ModelConds, ModelError> {
    let tokens = args.cond.tokens.clone().expect("tokens");
    Ok([("c_crossattn", CondValue::CrossAttn(tokens))].into())
}

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gold/golden-conds.json");
    let all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    all.get(name)
        .unwrap_or_else(|| panic!("no golden {name:?}"))
        .clone()
}

fn numbers(v: &Value) -> Vec<f64> {
    let list = v.as_array().expect("a list");
    list.iter().map(|v| v.as_f64().expect("a number")).collect()
}

#[track_caller]
fn check(name: &str, positive: Vec<Cond>, negative: Vec<Cond>, sigma: f32) {
    let (x, sampling) = (latent(), sampling());
    let setting = Setting {
        sampling: &sampling,
        noise: &x,
        latent: None,
        denoise_mask: None,
    };
    let lists = vec![
        (Arc::from("positive"), positive),
        ("negative".into(), negative),
    ];
    let lists = prepare(lists, &setting, &plain_encode).unwrap();
    let mock = Mock::default();
    let parts = [Some(&*lists[0].1), Some(&*lists[1].1)];
    let out = predict(&mock, &parts, &x, sigma, &Hooks::default()).unwrap();
    let golden = golden(name);
    for (i, key) in ["cond", "uncond"].into_iter().enumerate() {
        let Some(expected) = golden.get(key) else {
            continue;
        };
        let row = &out[i].data()[5 * 16..6 * 16];
        for (a, b) in row.iter().zip(numbers(&expected["row5_ch0"])) {
            assert!(
                (f64::from(*a) - b).abs() < 2e-5,
                "{name}: {key} {a} is not {b}"
            );
        }
        let sum: f64 = out[i].data().iter().map(|v| f64::from(*v)).sum();
        let wanted = expected["sum"].as_f64().unwrap();
        assert!(
            (sum - wanted).abs() < 1e-3,
            "{name}: {key} {sum} is not {wanted}"
        );
    }
    let calls: Vec<(Vec<usize>, Vec<usize>)> = golden["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| {
            let list = |v: &Value| numbers(v).iter().map(|n| *n as usize).collect();
            (list(&call[0]), list(&call[1]))
        })
        .collect();
    assert_eq!(*mock.calls.borrow(), calls, "{name}");
}

fn region(size: [usize; 2], offset: [usize; 2]) -> Area {
    Area::Cells(Region {
        size: size.to_vec(),
        offset: offset.to_vec(),
    })
}

fn masked() -> Cond {
    let mask = Tensor::from_fn([32, 32], |i| {
        let (y, x) = (i / 32, i % 32);
        f32::from(u8::from((8..24).contains(&y) && (4..20).contains(&x)))
    });
    Cond {
        mask: Some(mask.unwrap()),
        mask_strength: 0.5,
        ..tokens(3.0, 4)
    }
}

#[test]
fn one_prompt_each() {
    check("plain", vec![tokens(1.0, 4)], vec![tokens(-1.0, 4)], 7.0);
}

#[test]
fn areas() {
    let small = Cond {
        area: Some(region([8, 8], [4, 4])),
        strength: 0.8,
        ..tokens(3.0, 4)
    };
    check(
        "pos 1.0 + pos 3.0 area(h8,w8,y4,x4) strength .8; neg -1",
        vec![tokens(1.0, 4), small],
        vec![tokens(-1.0, 4)],
        7.0,
    );
    let part = Cond {
        area: Some(Area::Parts(vec![0.5, 0.5, 0.25, 0.5])),
        ..tokens(3.0, 4)
    };
    check(
        "pos 1.0 + pos 3.0 percentage area (.5,.5,.25,.5)",
        vec![tokens(1.0, 4), part],
        vec![tokens(-1.0, 4)],
        7.0,
    );
}

#[test]
fn masks() {
    check(
        "pos 1.0 + pos 3.0 with 32x32 mask ones in [8:24,4:20] mask_strength .5",
        vec![tokens(1.0, 4), masked()],
        vec![tokens(-1.0, 4)],
        7.0,
    );
    let bounded = Cond {
        area_of_mask: true,
        ..masked()
    };
    check(
        "same, set_area_to_bounds",
        vec![tokens(1.0, 4), bounded],
        vec![tokens(-1.0, 4)],
        7.0,
    );
}

#[test]
fn time_ranges() {
    let early = || Cond {
        end_percent: Some(0.5),
        ..tokens(1.0, 4)
    };
    let late = || Cond {
        start_percent: Some(0.5),
        ..tokens(3.0, 4)
    };
    let negative = || vec![tokens(-1.0, 4)];
    let name = "pos 1.0 end .5, pos 3.0 start .5, sigma 7";
    check(name, vec![early(), late()], negative(), 7.0);
    check("same, sigma 1", vec![early(), late()], negative(), 1.0);
}

#[test]
fn token_lengths() {
    let name = "token lengths 4 and 6 (lcm 12, ratio 3 -> batched)";
    check(name, vec![tokens(1.0, 4)], vec![tokens(-1.0, 6)], 7.0);
    let name = "token lengths 4 and 7 (lcm 28, ratio 7 -> separate)";
    check(name, vec![tokens(1.0, 4)], vec![tokens(-1.0, 7)], 7.0);
}

/// Runs one positive list with so much memory and gives the sizes of the passes.
fn passes(count: usize, free: Option<u64>) -> Vec<usize> {
    let mock = Mock {
        free,
        ..Mock::default()
    };
    let mut conds: Vec<Cond> = (0..count).map(|i| tokens(i as f32, 4)).collect();
    for cond in &mut conds {
        let tokens = cond.tokens.clone().unwrap();
        cond.model_conds
            .insert("c_crossattn", CondValue::CrossAttn(tokens));
    }
    let out = predict(
        &mock,
        &[Some(&conds), None],
        &latent(),
        7.0,
        &Hooks::default(),
    );
    let out = out.unwrap();
    // However they are split: the mean of all, and zeros for the list that is not there.
    let mean = (count as f32 - 1.0) / 2.0;
    let wanted = latent().mul_scalar(0.5).add_scalar(mean);
    for (a, b) in out[0].data().iter().zip(wanted.data()) {
        assert!((a - b).abs() < 1e-5);
    }
    assert!(out[1].data().iter().all(|v| *v == 0.0));
    let calls = mock.calls.borrow();
    calls.iter().map(|(shape, _)| shape[0]).collect()
}

#[test]
fn memory_limits_the_passes() {
    assert_eq!(passes(4, None), [4]);
    assert_eq!(passes(4, Some(100)), [4]);
    // A pass of n takes 1.5 n.
    assert_eq!(passes(4, Some(4)), [2, 2]);
    assert_eq!(passes(3, Some(2)), [1, 1, 1]);
    assert_eq!(passes(2, Some(0)), [1, 1]);
}

#[test]
fn default_conditions_take_the_rest() {
    let x = latent();
    let encoded = |mut cond: Cond| {
        let tokens = cond.tokens.clone().unwrap();
        cond.model_conds
            .insert("c_crossattn", CondValue::CrossAttn(tokens));
        cond
    };
    let left = Tensor::from_fn([1, 16, 16], |i| f32::from(u8::from(i % 16 < 8))).unwrap();
    let conds = vec![
        encoded(Cond {
            mask: Some(left),
            ..tokens(1.0, 4)
        }),
        encoded(Cond {
            is_default: true,
            ..tokens(5.0, 4)
        }),
    ];
    let mock = Mock::default();
    let out = predict(&mock, &[Some(&conds)], &x, 7.0, &Hooks::default()).unwrap();
    for (i, (o, x)) in out[0].data().iter().zip(x.data()).enumerate() {
        let wanted = x * 0.5 + if i % 16 < 8 { 1.0 } else { 5.0 };
        assert!((o - wanted).abs() < 1e-5);
    }
}

#[test]
fn odd_conditions_are_errors() {
    let (x, sampling) = (latent(), sampling());
    let setting = Setting {
        sampling: &sampling,
        noise: &x,
        latent: None,
        denoise_mask: None,
    };
    let run = |cond: Cond| {
        let lists = vec![(Arc::from("positive"), vec![cond])];
        let lists = prepare(lists, &setting, &plain_encode)?;
        predict(
            &Mock::default(),
            &[Some(&lists[0].1)],
            &x,
            7.0,
            &Hooks::default(),
        )
    };
    let outside = Cond {
        area: Some(region([8, 8], [16, 0])),
        ..tokens(1.0, 4)
    };
    let message = run(outside).unwrap_err().to_string();
    assert!(message.contains("not inside a latent"), "{message}");
    for shape in [vec![4], vec![0, 4, 4], vec![1, 2, 3, 4, 5]] {
        let odd = Cond {
            mask: Some(Tensor::zeros(shape).unwrap()),
            ..tokens(1.0, 4)
        };
        assert!(run(odd).is_err());
    }
    let empty = Cond::new(Tensor::zeros([0, 4, 8]).unwrap());
    assert!(run(empty).is_err());
}

/// A control net that adds nothing.
struct Quiet;

impl ControlSource for Quiet {
    fn features(
        &self,
        _: &Tensor,
        _: f32,
        _: &CallConds,
        _: usize,
    ) -> Result<Option<ControlFeatures>, ModelError> {
        Ok(None)
    }
}

/// The lists after preparation.
fn prepared(positive: Vec<Cond>, negative: Vec<Cond>) -> Vec<Vec<Cond>> {
    let (x, sampling) = (latent(), sampling());
    let setting = Setting {
        sampling: &sampling,
        noise: &x,
        latent: None,
        denoise_mask: None,
    };
    let lists = vec![
        (Arc::from("positive"), positive),
        ("negative".into(), negative),
    ];
    let lists = prepare(lists, &setting, &plain_encode).unwrap();
    lists.into_iter().map(|(_, list)| list).collect()
}

#[test]
fn control_nets_act_on_both_prompts() {
    let steered = |to_uncond: bool| Cond {
        control: Some(Arc::new(Quiet)),
        control_to_uncond: to_uncond,
        ..tokens(1.0, 4)
    };
    let same = |a: &Cond, b: &Cond| match (&a.control, &b.control) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    };
    let lists = prepared(vec![steered(true)], vec![tokens(-1.0, 4)]);
    assert!(same(&lists[0][0], &lists[1][0]) && lists[1][0].control.is_some());
    // So they share a pass.
    let mock = Mock::default();
    let parts = [Some(&*lists[0]), Some(&*lists[1])];
    predict(&mock, &parts, &latent(), 7.0, &Hooks::default()).unwrap();
    assert_eq!(mock.calls.borrow().len(), 1);
    // Not where the node did not ask for it, and not over one that is there.
    let lists = prepared(vec![steered(false)], vec![tokens(-1.0, 4)]);
    assert!(lists[1][0].control.is_none());
    let lists = prepared(vec![steered(true)], vec![steered(false), tokens(-1.0, 4)]);
    assert!(!same(&lists[0][0], &lists[1][0]) && lists[1][1].control.is_none());
    let lists = prepared(vec![steered(true)], Vec::new());
    assert!(lists[1].is_empty());
}

#[test]
fn areas_are_matched_with_the_smallest_around_them() {
    let at = |value: f32, size: [usize; 2], offset: [usize; 2]| Cond {
        area: Some(region(size, offset)),
        ..tokens(value, 4)
    };
    let value = |cond: &Cond| cond.model_conds["c_crossattn"].tensor().unwrap().data()[0];
    let negative = vec![
        tokens(-1.0, 4),
        at(-2.0, [12, 12], [0, 0]),
        at(-3.0, [8, 8], [0, 0]),
    ];
    let lists = prepared(vec![at(1.0, [4, 4], [2, 2])], negative);
    // The small area gets the words of the smallest one that holds it.
    assert_eq!(lists[1].len(), 4);
    assert_eq!(lists[1][3].area, Some(region([4, 4], [2, 2])));
    assert_eq!(value(&lists[1][3]), -3.0);
    // And the positive list has entries for all areas of the other, with nothing larger to take words from but itself.
    assert_eq!(lists[0].len(), 1);
    // An equal area needs no other.
    let lists = prepared(
        vec![at(1.0, [4, 4], [2, 2])],
        vec![at(-1.0, [4, 4], [2, 2])],
    );
    assert_eq!((lists[0].len(), lists[1].len()), (1, 1));
}

/// Remembers the prompts that it was given.
#[derive(Default)]
struct Prompts(RefCell<Vec<Tensor>>);

impl Predict for Prompts {
    fn predict(&self, call: &Call<'_>) -> Result<Tensor, ModelError> {
        let tokens = call.conds.0["c_crossattn"].tensor().expect("tokens");
        self.0.borrow_mut().push(tokens.clone());
        Ok(call.x.clone())
    }

    fn pass_bytes(&self, _: &[usize]) -> u64 {
        0
    }

    fn memory_free(&self) -> Option<u64> {
        None
    }
}

#[test]
fn steps_get_the_inputs_of_the_first_one() {
    let encoded = |value: f32| {
        let tokens = Tensor::full([1, 3, 8], value).unwrap();
        let conds: ModelConds = [("c_crossattn", CondValue::CrossAttn(tokens))].into();
        Cond {
            model_conds: conds,
            ..Cond::default()
        }
    };
    let (mut positive, negative) = ([encoded(1.0)], [encoded(2.0)]);
    let network = Prompts::default();
    let step = |positive: &[Cond], count: usize| {
        let x = Tensor::zeros([count, 2, 4, 4]).unwrap();
        let lists = [Some(positive), Some(&negative[..])];
        predict(&network, &lists, &x, 1.0, &Hooks::default()).unwrap();
        network.0.borrow().last().cloned().unwrap()
    };
    for count in [1, 3] {
        let (first, second) = (step(&positive, count), step(&positive, count));
        assert_eq!(first.shape(), [2 * count, 3, 8]);
        assert_eq!(first.storage_address(), second.storage_address());
        // The negative prompt is first, as in the reference.
        let half = first.len() / 2;
        assert!(first.data()[..half].iter().all(|v| *v == 2.0));
        assert!(first.data()[half..].iter().all(|v| *v == 1.0));
    }
    // Another prompt in its place is seen.
    let other = Tensor::full([1, 3, 8], 5.0).unwrap();
    let other = CondValue::CrossAttn(other);
    positive[0].model_conds.insert("c_crossattn", other);
    let changed = step(&positive, 3);
    assert!(
        changed.data()[changed.len() / 2..]
            .iter()
            .all(|v| *v == 5.0)
    );
    // And a copy of a condition keeps nothing of the old one's.
    let copy = [positive[0].clone()];
    let copied = step(&copy, 3);
    assert!(copied.is_same(&changed));
    assert_ne!(copied.storage_address(), changed.storage_address());
}
