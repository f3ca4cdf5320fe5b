//! Brownian noise, bit for bit.

use fresco_models::brownian::BrownianNoise;
use fresco_models::{Scheduler, samplers::SampleError};

use crate::golden::tensors;
use crate::support::{SHAPE, eps};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn brownian_noise_of_the_reference() {
    let gold = tensors("brownian");
    let sigmas = gold.tensor("sigmas").unwrap();
    let sigmas = sigmas.data();
    let schedule = Scheduler::Karras.sigmas(&eps(), 6).unwrap();
    assert_eq!(bits(sigmas), bits(&schedule));
    let positive = &sigmas[..sigmas.len() - 1];
    let mut checked = 0;
    for seed in [0u64, 1234, 1_099_511_627_783] {
        let (low, high) = (positive[positive.len() - 1], sigmas[0]);
        let mut path = BrownianNoise::new(seed, &SHAPE, low, high);
        let mut check = |name: &str, from: f32, to: f32| {
            let wanted = gold.tensor(&format!("seed{seed}/{name}")).unwrap();
            let noise = path.between(from, to).unwrap();
            assert_eq!(bits(noise.data()), bits(wanted.data()), "{seed} {name}");
            checked += 1;
        };
        for (i, w) in positive.windows(2).enumerate() {
            check(&format!("step{i}"), w[0], w[1]);
        }
        let (a, b) = (sigmas[0].ln(), sigmas[1].ln());
        check("mid", sigmas[0], (b - (b - a) * 0.5).exp());
    }
    assert_eq!(checked, 3 * 6);
}

#[test]
fn parts_of_a_path_add_up() {
    let mut path = BrownianNoise::new(3, &SHAPE, 0.03, 14.0);
    let mut part = |from: f32, to: f32| {
        let noise = path.between(from, to).unwrap();
        noise.mul_scalar((to - from).abs().sqrt())
    };
    let (whole, first, second) = (part(11.0, 0.7), part(11.0, 4.2), part(4.2, 0.7));
    let back = part(0.7, 11.0);
    for i in 0..whole.len() {
        let (w, f, s) = (whole.data()[i], first.data()[i], second.data()[i]);
        assert!((w - f - s).abs() < 1e-4, "{w} is not {f} + {s}");
        assert_eq!(w, -back.data()[i]);
    }
}

#[test]
fn ranges_that_are_none() {
    let mut path = BrownianNoise::new(3, &SHAPE, 0.5, 14.0);
    for (from, to) in [(3.0, 3.0), (0.2, 0.1), (100.0, 50.0)] {
        let noise = path.between(from, to).unwrap();
        assert!(noise.data().iter().all(|v| *v == 0.0));
    }
    // Nothing positive at all, as a run over levels of zero asks for.
    let mut path = BrownianNoise::new(3, &SHAPE, f32::INFINITY, 0.0);
    assert!(path.between(1.0, 0.5).is_ok());
    let mut path = BrownianNoise::new(3, &SHAPE, 1e-6, f32::MAX);
    let far = path.between(2.0, 1.0);
    assert!(matches!(far, Err(SampleError::BrownianRange { .. })));
}
