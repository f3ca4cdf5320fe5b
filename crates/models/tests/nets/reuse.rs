//! Passes that are left out while little changes, against the reference's decisions.

use fresco_models::denoise::{Reuse, ReuseRule};
use fresco_tensor::Tensor;

use crate::gold::{Gold, assert_near};

const RULE: ReuseRule = ReuseRule {
    threshold: 0.2,
    start_sigma: 0.85,
    end_sigma: 0.05,
};

/// The golden's model is a formula; two conditions go in a batch, along a flow.
#[test]
fn the_same_passes_are_left_out_as_in_the_reference() {
    let gold = Gold::open("families_image_misc");
    let calls = gold.about["easycache_calls"].as_array().unwrap();
    let wanted: Vec<u64> = calls.iter().filter_map(serde_json::Value::as_u64).collect();
    assert!(wanted.contains(&0) && wanted.contains(&1));
    let reuse = Reuse::new(RULE);
    let steps = wanted.len();
    let level = |i: usize| 1.0 - i as f32 / steps as f32;
    let sign = Tensor::from_vec([2, 1, 1, 1], vec![0.05, -0.05]).unwrap();
    let mut x = gold.tensor("easycache/x0");
    let (mut made, mut last) = (Vec::new(), x.clone());
    for i in 0..steps {
        let (sigma, next) = (level(i), level(i + 1));
        let mut called = 0;
        reuse.begin_step();
        let out = reuse.around(&x, sigma, &[10, 11], || {
            called = 1;
            let plain = x.map(|v| 0.9 * v + 0.1 * (3.0 * v).sin());
            Ok(plain.add(&sign.mul_scalar(sigma))?)
        });
        last = out.unwrap();
        made.push(called);
        let step = last.sub(&x).unwrap().mul_scalar(2.0 * (sigma - next));
        x = x.add(&step).unwrap();
    }
    assert_eq!(made, wanted);
    assert_near(&last, &gold.tensor("easycache/out_last"), "the last output");
}

#[test]
fn other_sizes_and_other_conditions_begin_anew() {
    let reuse = Reuse::new(RULE);
    let run = |x: &Tensor, sigma: f32, ids: &[usize]| {
        let mut called = false;
        reuse.begin_step();
        let out = reuse.around(x, sigma, ids, || {
            called = true;
            Ok(x.mul_scalar(0.5))
        });
        assert_eq!(out.unwrap().shape(), x.shape());
        called
    };
    let x = |n: usize, by: f32| Tensor::from_fn([1, 4, n, n], |i| (i as f32).sin() * by).unwrap();
    for (step, by) in [1.0, 1.01, 1.02].into_iter().enumerate() {
        // The third time enough is known.
        assert_eq!(run(&x(16, by), 0.8, &[1]), step < 2, "{step}");
    }
    // A condition that nothing is known of is asked.
    assert!(run(&x(16, 1.02), 0.8, &[2]));
    assert!(run(&x(24, 1.02), 0.8, &[1]));
    // Neither before its time nor after it.
    assert!(run(&x(24, 1.02), 0.9, &[1]) && run(&x(24, 1.02), 0.05, &[1]));
}
