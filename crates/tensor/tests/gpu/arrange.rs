use fresco_tensor::{Tensor, nn};

use crate::against::{Checks, Random};

#[test]
fn permutations() {
    let (mut checks, mut random) = (Checks::default(), Random::new(11));
    let cases: &[(&[usize], &[usize])] = &[
        (&[2, 3], &[1, 0]),
        (&[64, 64], &[1, 0]),
        (&[100, 37], &[1, 0]),
        (&[65, 129], &[1, 0]),
        (&[1000, 16], &[1, 0]),
        (&[3, 70, 90], &[0, 2, 1]),
        (&[3, 70, 90], &[2, 1, 0]),
        (&[3, 70, 90], &[1, 2, 0]),
        (&[2, 77, 8, 40], &[0, 2, 1, 3]),
        (&[2, 77, 5, 3], &[0, 2, 1, 3]),
        (&[2, 8, 77, 40], &[0, 1, 3, 2]),
        (&[2, 3, 4, 5], &[3, 1, 0, 2]),
        (&[2, 3, 4, 5, 6, 7], &[5, 0, 4, 1, 3, 2]),
        (&[2, 2, 3, 2, 3, 2, 2, 2], &[7, 2, 5, 0, 3, 6, 1, 4]),
        (&[2, 40, 2, 2, 3, 2, 33], &[6, 4, 2, 0, 5, 3, 1]),
        (&[0, 3], &[1, 0]),
        (&[1, 1], &[1, 0]),
    ];
    for (shape, order) in cases {
        let x = [random.tensor(shape)];
        let case = format!("permute {shape:?} {order:?}");
        checks.run_within(&case, 0.0, &x, |t| t[0].permute(order));
    }
    for shape in [
        &[2, 16, 16, 320][..],
        &[1, 7, 9, 3],
        &[2, 5, 1, 65],
        &[1, 64, 64, 4],
    ] {
        let x = [random.tensor(shape)];
        checks.run_within("to planes", 0.0, &x, |t| t[0].nhwc_to_nchw());
        checks.run_within("to pixels", 0.0, &x, |t| t[0].nchw_to_nhwc());
    }
    checks.finish();
}

#[test]
fn matrices_by_distance() {
    let (mut checks, mut random) = (Checks::default(), Random::new(14));
    for n in [1, 2, 7, 64, 77] {
        let x = [random.tensor(&[3, 2 * n - 1])];
        let case = format!("{n} rows and columns");
        checks.run_within(&case, 0.0, &x, |t| t[0].by_distance(n));
        let x = [random.tensor(&[2 * n - 1, 5])];
        let case = format!("{n} rows and columns, from columns");
        checks.run_within(&case, 0.0, &x, |t| t[0].transpose(0, 1)?.by_distance(n));
    }
    checks.finish();
}

#[test]
fn cuts_and_joins() {
    let (mut checks, mut random) = (Checks::default(), Random::new(12));
    for shape in [&[6, 10, 24][..], &[6, 10, 7], &[6, 9, 1], &[5, 8, 64, 3]] {
        let x = [random.tensor(shape), random.tensor(shape)];
        for dim in 0..shape.len() {
            let size = shape[dim];
            let case = |name: &str| format!("{name} {shape:?} along {dim}");
            checks.run_within(&case("narrow"), 0.0, &x, |t| {
                t[0].narrow(dim, size / 3, size / 2)
            });
            checks.run_within(&case("nothing"), 0.0, &x, |t| t[0].narrow(dim, size, 0));
            checks.run_within(&case("select"), 0.0, &x, |t| t[0].select(dim, size - 1));
            checks.run_within(&case("cat"), 0.0, &x, |t| {
                Tensor::cat(&[&t[0], &t[1], &t[0].narrow(dim, 0, 1)?], dim)
            });
            checks.run_within(&case("stack"), 0.0, &x, |t| {
                Tensor::stack(&[&t[0], &t[1]], dim)
            });
            checks.run_within(&case("flip"), 0.0, &x, |t| t[0].flip(&[dim]));
            checks.run_within(&case("index"), 0.0, &x, |t| {
                t[0].index_select(dim, &[size - 1, 0, size / 2, 0])
            });
            checks.run_within(&case("no index"), 0.0, &x, |t| t[0].index_select(dim, &[]));
            checks.run_within(&case("repeat entries"), 0.0, &x, |t| {
                t[0].repeat_interleave(dim, 3)
            });
            checks.run_within(&case("second piece"), 0.0, &x, |t| {
                Ok(t[0].split(dim, size.div_ceil(2))?.remove(size.min(2) - 1))
            });
        }
        let counts: Vec<usize> = (0..shape.len()).map(|d| d % 2 + 1).collect();
        checks.run_within("repeat", 0.0, &x, |t| t[0].repeat(&counts));
        checks.run_within("rot90", 0.0, &x, |t| t[0].rot90(1, 0, 1));
        let empty = t_empty(shape);
        checks.run_within("cat with nothing", 0.0, &[x[0].clone(), empty], |t| {
            Tensor::cat(&[&t[0], &t[1]], 0)
        });
    }
    let x = [
        random.tensor(&[4, 1, 48]),
        random.tensor(&[48]),
        random.tensor(&[4, 1]),
    ];
    checks.run_within("expand", 0.0, &x, |t| t[0].expand(&[3, 4, 5, 48]));
    checks.run_within("expand rows", 0.0, &x, |t| t[1].expand(&[7, 48]));
    checks.run_within("expand columns", 0.0, &x, |t| t[2].expand(&[4, 100]));
    checks.finish();
}

fn t_empty(shape: &[usize]) -> Tensor {
    let mut shape = shape.to_vec();
    shape[0] = 0;
    Tensor::zeros(shape).unwrap()
}

#[test]
fn writing_into_a_box() {
    let (mut checks, mut random) = (Checks::default(), Random::new(13));
    let cases: &[(&[usize], &[usize], &[usize])] = &[
        (&[3, 3], &[2, 2], &[1, 0]),
        (&[2, 32, 32, 16], &[2, 8, 8, 16], &[0, 4, 8, 0]),
        (&[2, 9, 33], &[1, 9, 5], &[1, 0, 7]),
        (&[2, 9, 32], &[1, 9, 8], &[1, 0, 4]),
        (&[5], &[0], &[2]),
    ];
    for (shape, part, start) in cases {
        let x = [random.tensor(shape), random.tensor(part)];
        let case = format!("paste {part:?} at {start:?} of {shape:?}");
        checks.run_within(&case, 0.0, &x, |t| {
            // Others that hold the tensor do not see it.
            let (mut changed, before) = (t[0].clone(), t[0].clone());
            changed.paste(start, &t[1])?;
            changed.paste(start, &t[1])?;
            Tensor::cat(&[&changed, &before], 0)
        });
    }
    checks.finish();
}

#[test]
fn channels_and_pixels() {
    let (mut checks, mut random) = (Checks::default(), Random::new(14));
    for (a, b) in [(320, 640), (8, 3), (5, 7), (16, 8)] {
        let x = [random.tensor(&[2, 9, 9, a]), random.tensor(&[2, 9, 9, b])];
        checks.run_within("concat", 0.0, &x, |t| nn::concat_channels(&[&t[0], &t[1]]));
    }
    let sizes = [
        ([2, 8, 8, 320], 16, 16),
        ([1, 5, 7, 3], 10, 14),
        ([1, 5, 7, 4], 13, 9),
        ([2, 9, 8, 6], 4, 3),
        ([0, 4, 4, 8], 8, 8),
        ([1, 4, 4, 8], 0, 8),
    ];
    for (shape, height, width) in sizes {
        let x = [random.tensor(&shape)];
        let case = format!("nearest {shape:?}");
        checks.run_within(&case, 0.0, &x, |t| {
            nn::upsample_nearest(&t[0], height, width)
        });
    }
    checks.finish();
}

#[test]
fn parts_in_place_are_not_written_through() {
    let (mut checks, mut random) = (Checks::default(), Random::new(18));
    let x = [random.tensor(&[1, 512, 64])];
    checks.run("a part is changed", &x, |t| {
        let part = t[0].narrow(1, 128, 256)?;
        // In its own memory, were it not a part of another's.
        let changed = nn::activate(part, nn::Act::Silu);
        let again = t[0].narrow(1, 128, 256)?;
        Tensor::cat(&[&changed, &again, &t[0]], 1)
    });
    checks.run("the whole is changed", &x, |t| {
        let whole = t[0].mul_scalar(2.0);
        let parts = whole.reshape([1, 512 * 64])?.split_last(4)?;
        let changed = nn::activate(whole, nn::Act::Silu);
        let mut all = vec![changed.reshape([1, 512 * 64])?];
        all.extend(parts);
        Tensor::cat(&all.iter().collect::<Vec<_>>(), 1)
    });
    checks.finish();
}
