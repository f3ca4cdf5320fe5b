//! Noise of the reference, bit for bit.

use fresco_tensor::{Generator, SafeTensors};

use crate::golden::path;

fn gold() -> SafeTensors {
    SafeTensors::open(path("noise.safetensors")).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[track_caller]
fn check(gold: &SafeTensors, name: &str, values: &[f32]) {
    let expect = gold.tensor(name).unwrap();
    let wrong = expect
        .data()
        .iter()
        .zip(values)
        .position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(
        wrong,
        None,
        "{name}: {:?}",
        wrong.map(|i| (expect.data()[i], values[i]))
    );
    assert_eq!(bits(expect.data()), bits(values), "{name}");
}

#[test]
fn every_seed_and_shape() {
    let gold = gold();
    let mut checked = 0;
    for info in &gold.header().tensors {
        let Some((seed, shape)) = info
            .name
            .strip_prefix("seed")
            .and_then(|n| n.split_once('/'))
        else {
            continue;
        };
        let shape: Result<Vec<usize>, _> = shape.split('x').map(str::parse).collect();
        let Ok(shape) = shape else { continue };
        let noise = Generator::new(seed.parse().unwrap()).randn(&shape).unwrap();
        check(&gold, &info.name, noise.data());
        checked += 1;
    }
    assert_eq!(checked, 8 * 6 + 1);
}

#[test]
fn consecutive_draws_share_state() {
    let gold = gold();
    let mut g = Generator::new(7);
    for (name, count) in [("a_20", 20), ("b_7", 7), ("c_33", 33)] {
        let noise = g.randn(&[count]).unwrap();
        check(&gold, &format!("seed7/consecutive_{name}"), noise.data());
    }
}

#[test]
fn other_distributions() {
    let gold = gold();
    let uniform = Generator::new(7).rand(&[32]).unwrap();
    check(&gold, "seed7/raw_rand_32", uniform.data());
    let doubles = Generator::new(7).randn_f64(20);
    let expect = gold.bytes("seed7/f64_randn_20").unwrap();
    for (a, bytes) in doubles.iter().zip(expect.chunks_exact(8)) {
        let b = f64::from_le_bytes(bytes.try_into().unwrap());
        assert!((a - b).abs() <= 4e-16 * b.abs(), "{a} {b}");
    }
}
