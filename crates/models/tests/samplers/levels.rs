//! Noise levels: tables, schedules, and what KSampler makes of them.

use fresco_models::samplers::{SamplerName, ksampler_sigmas};
use fresco_models::{ModelSampling, Prediction, Scheduler};
use fresco_tensor::SafeTensors;

use crate::golden::tensors;

/// In the order of the golden files.
const MODELS: [&str; 6] = [
    "sd15_eps",
    "sdxl_eps",
    "sd15_zsnr_v",
    "sd3_flow_shift3",
    "flux_default",
    "flux_shift1.15",
];

pub(crate) fn sampling_of(model: &str) -> ModelSampling {
    match model {
        "sd15_eps" | "sdxl_eps" => ModelSampling::discrete(Prediction::Eps, false),
        "sd15_zsnr_v" => ModelSampling::discrete(Prediction::V, true),
        "flux_default" | "flux_shift1.15" => ModelSampling::exponential_flow(1.15),
        "sd3_flow_shift3" => ModelSampling::flow(3.0, 1000.0),
        other => panic!("unknown model {other}"),
    }
}

/// How many of the values are not the same to the last bit; none may be off by more than three units in the last place
/// of a large one.
#[track_caller]
fn differing(name: &str, given: &[f32], wanted: &[f32]) -> usize {
    assert_eq!(
        given.len(),
        wanted.len(),
        "{name}: {given:?} not {wanted:?}"
    );
    let mut count = 0;
    for (a, b) in given.iter().zip(wanted) {
        if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) {
            continue;
        }
        count += 1;
        assert!(
            (a - b).abs() <= 4e-7 * b.abs(),
            "{name}: {a} is not {b} in {given:?}"
        );
    }
    count
}

fn expected(gold: &SafeTensors, name: &str) -> Vec<f32> {
    gold.tensor(name).unwrap().data().to_vec()
}

#[test]
fn tables_and_time_steps() {
    let gold = tensors("schedules");
    for model in MODELS {
        let sampling = sampling_of(model);
        let of = |what: &str| expected(&gold, &format!("{model}/{what}"));
        let off = differing(model, sampling.sigmas(), &of("sigmas_table"));
        assert!(off * 50 <= sampling.sigmas().len(), "{model}: {off} differ");
        let levels = of("timestep_of_sigma_in");
        let steps: Vec<f32> = levels.iter().map(|s| sampling.timestep(*s)).collect();
        assert_eq!(steps, of("timestep_of_sigma"), "{model}");
        let parts: Vec<f32> = (0..=10)
            .map(|p| sampling.percent_to_sigma(f64::from(p) / 10.0) as f32)
            .collect();
        differing(model, &parts, &of("percent_to_sigma_0_to_1_by_0.1"));
    }
}

#[test]
fn every_schedule_of_the_reference() {
    let gold = tensors("schedules");
    let (mut checked, mut values, mut off) = (0, 0, 0);
    for name in gold.names() {
        let [model, scheduler, steps] = name.split('/').collect::<Vec<_>>()[..] else {
            continue;
        };
        let scheduler = Scheduler::named(scheduler).unwrap();
        let steps = steps.parse().unwrap();
        let given = scheduler.sigmas(&sampling_of(model), steps).unwrap();
        off += differing(name, &given, &expected(&gold, name));
        values += given.len();
        checked += 1;
    }
    assert_eq!(checked, MODELS.len() * 9 * 13);
    assert!(off * 100 <= values, "{off} of {values} values differ");
}

#[test]
fn what_ksampler_makes_of_them() {
    let gold = tensors("ksampler_sigmas");
    let (mut checked, mut values, mut off) = (0, 0, 0);
    for name in gold.names() {
        let [model, sampler, scheduler, steps, denoise] = name.split('/').collect::<Vec<_>>()[..]
        else {
            panic!("{name}");
        };
        let given = ksampler_sigmas(
            &sampling_of(model),
            SamplerName::named(sampler).unwrap(),
            Scheduler::named(scheduler).unwrap(),
            steps.parse().unwrap(),
            denoise.parse().unwrap(),
        )
        .unwrap();
        off += differing(name, &given, &expected(&gold, name));
        values += given.len();
        checked += 1;
    }
    assert_eq!(checked, 96);
    assert!(off * 100 <= values, "{off} of {values} values differ");
}
