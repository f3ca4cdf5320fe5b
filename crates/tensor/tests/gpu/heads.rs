use fresco_tensor::nn::{
    self, HeadPart, HeadRope, HeadSource, Mask, MlpJoin, ReadyHeads, RmsNorm, SideColumns,
};
use fresco_tensor::{Dtype, Stored, Tensor};

use crate::against::{Checks, Random};

#[test]
fn heads_are_joined() {
    let (mut checks, mut random) = (Checks::default(), Random::new(51));
    // Items, tokens of two parts, heads, channels of a head, columns behind queries, keys and values.
    for (b, text, image, heads, d, more) in [
        (1, 512, 1024, 24, 128, 0),
        (2, 7, 33, 4, 64, 256),
        (2, 5, 0, 3, 96, 8),
        (1, 3, 4, 2, 40, 0),
        (1, 3, 4, 2, 16, 3),
        (2, 3, 4, 2, 6, 0),
        (1, 9, 20, 2, 256, 16),
    ] {
        let width = heads * d;
        let stored = |t: &Tensor| Stored::from_f32(t, Dtype::F32).unwrap();
        let weights = [random.tensor(&[d]), random.tensor(&[d])];
        let [query, key] = weights.map(|w| RmsNorm::new(Some(&stored(&w)), 1e-6).unwrap());
        let inputs = |random: &mut Random, tables: &[usize]| {
            let angles = random.scaled(tables, 50.0);
            [
                random.tensor(&[b, text, 3 * width + more]),
                random.tensor(&[b, image, 3 * width + more]),
                angles.map(f32::cos),
                angles.map(f32::sin),
            ]
        };
        for (apart, normed, each_item) in [
            (false, true, false),
            (true, true, true),
            (false, false, true),
            (true, false, false),
        ] {
            let tables = if each_item {
                vec![b, text + image, d / 2]
            } else {
                vec![text + image, d / 2]
            };
            let inputs = inputs(&mut random, &tables);
            let case = format!("{heads} heads of {d}, apart {apart}, normed {normed}");
            checks.run(&case, &inputs, |t| {
                let norms = normed.then_some((&query, &key));
                let parts = [&t[0], &t[1]].map(|all| HeadPart {
                    from: HeadSource::Joined(all),
                    norms,
                });
                let rope = HeadRope {
                    cos: &t[2],
                    sin: &t[3],
                    apart,
                };
                let [q, k, v] = nn::join_heads(&parts, heads, width, Some(rope))?;
                Tensor::cat(&[&q, &k, &v], 2)
            });
            checks.run("three tensors without positions", &inputs[..1], |t| {
                let one = |n: usize| t[0].narrow(2, n * width, width);
                let (q, k, v) = (one(0)?, one(1)?, one(2)?);
                let part = HeadPart {
                    from: HeadSource::Apart([&q, &k, &v]),
                    norms: normed.then_some((&query, &key)),
                };
                let [q, k, v] = nn::join_heads(&[part], heads, width, None)?;
                Tensor::cat(&[&q, &k, &v], 2)
            });
            checks.run("queries and keys alone", &inputs, |t| {
                let all = Tensor::cat(&[&t[0], &t[1]], 1)?;
                let (q, k) = (all.narrow(2, 0, width)?, all.narrow(2, width, width)?);
                let rope = HeadRope {
                    cos: &t[2],
                    sin: &t[3],
                    apart,
                };
                let [q, k] = nn::join_pair([&q, &k], (&query, &key), heads, Some(rope))?;
                Tensor::cat(&[&q, &k], 2)
            });
        }
    }
    checks.finish();
}

#[test]
fn columns_join_attention() {
    let (mut checks, mut random) = (Checks::default(), Random::new(52));
    for (b, n, left, first, columns) in [
        (1, 600, 1024, 3072, 4096),
        (2, 5, 16, 48, 32),
        (2, 5, 8, 24, 16),
        (1, 5, 6, 9, 10),
        (0, 5, 16, 48, 32),
    ] {
        let inputs = [
            random.tensor(&[b, n, left]),
            random.scaled(&[b, n, first + columns], 3.0),
        ];
        for kind in [MlpJoin::GeluTanh, MlpJoin::GateFirst, MlpJoin::GateLast] {
            checks.run(&format!("{kind:?}"), &inputs, |t| {
                SideColumns::new(t[1].clone(), first, kind)?.join(&t[0])
            });
        }
    }
    checks.finish();
}

#[test]
fn rows_in_parts() {
    let (mut checks, mut random) = (Checks::default(), Random::new(53));
    for (shape, parts) in [
        (&[1, 6 * 3072][..], 6),
        (&[2, 3, 48], 3),
        (&[5, 12], 4),
        (&[5, 9 * 16], 9),
        (&[0, 16], 2),
    ] {
        let x = [random.tensor(shape)];
        for part in 0..parts {
            checks.run_within(&format!("part {part} of {parts}"), 0.0, &x, |t| {
                Ok(t[0].split_last(parts)?.swap_remove(part))
            });
        }
    }
    checks.finish();
}

#[test]
fn heads_attend_to_values_in_their_rows() {
    let (mut checks, mut random) = (Checks::default(), Random::new(53));
    // Items, tokens, heads, channels of a head, columns behind queries, keys and values.
    for (b, n, heads, d, more) in [
        (1, 700, 4, 128, 1024),
        (2, 130, 3, 64, 8),
        (1, 300, 2, 40, 0),
        (2, 90, 2, 256, 16),
        (1, 40, 2, 64, 4),
        (2, 9, 2, 6, 3),
    ] {
        let width = heads * d;
        let angles = random.scaled(&[n, d / 2], 50.0);
        let inputs = [
            random.tensor(&[b, n, 3 * width + more]),
            angles.map(f32::cos),
            angles.map(f32::sin),
        ];
        checks.run(&format!("{n} tokens, {heads} heads of {d}"), &inputs, |t| {
            let part = HeadPart {
                from: HeadSource::Joined(&t[0]),
                norms: None,
            };
            let rope = HeadRope {
                cos: &t[1],
                sin: &t[2],
                apart: false,
            };
            ReadyHeads::new(&[part], heads, width, Some(rope), Mask::None)?.attend()
        });
    }
    checks.finish();
}
