//! Every kind of adapter on matrices and convolutions, with and without alpha and a scale of its rows, against its formula
//! in 64 bits; and whether the order of two changes matters.

use std::path::Path;

use fresco_models::lora::{LoraFile, NameMap, load};
use fresco_models::patch::{Patch, PatchSet};
use fresco_tensor::{Tensor, safetensors, synthetic};

/// A matrix of 64-bit numbers. A convolution is one with its input channels and places in the columns.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, value: impl Fn(usize, usize) -> f64) -> Self {
        let all = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
        Self {
            rows,
            columns,
            values: all.map(|(i, j)| value(i, j)).collect(),
        }
    }

    fn of(tensor: &Tensor) -> Self {
        let rows = tensor.shape()[0];
        let columns = tensor.len() / rows;
        Self::new(rows, columns, |i, j| {
            f64::from(tensor.data()[i * columns + j])
        })
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.columns + j]
    }

    fn times(&self, other: &Self) -> Self {
        assert_eq!(self.columns, other.rows);
        Self::new(self.rows, other.columns, |i, j| {
            (0..self.columns)
                .map(|k| self.at(i, k) * other.at(k, j))
                .sum()
        })
    }

    fn with(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        assert_eq!((self.rows, self.columns), (other.rows, other.columns));
        Self::new(self.rows, self.columns, |i, j| {
            f(self.at(i, j), other.at(i, j))
        })
    }

    fn scaled(&self, by: f64) -> Self {
        Self::new(self.rows, self.columns, |i, j| self.at(i, j) * by)
    }

    fn transposed(&self) -> Self {
        Self::new(self.columns, self.rows, |i, j| self.at(j, i))
    }

    fn eye(n: usize) -> Self {
        Self::new(n, n, |i, j| f64::from(u8::from(i == j)))
    }

    /// By Gauss and Jordan. The matrices here are near the identity, so no pivot is small.
    fn inverse(&self) -> Self {
        let n = self.rows;
        let (mut left, mut right) = (self.clone(), Self::eye(n));
        for k in 0..n {
            let pivot = left.at(k, k);
            for m in [&mut left, &mut right] {
                for j in 0..n {
                    m.values[k * n + j] /= pivot;
                }
            }
            for i in (0..n).filter(|&i| i != k) {
                let by = left.at(i, k);
                for m in [&mut left, &mut right] {
                    for j in 0..n {
                        m.values[i * n + j] -= by * m.values[k * n + j];
                    }
                }
            }
        }
        right
    }
}

/// Parts of an adapter by their names in the file.
type Parts = Vec<(&'static str, Tensor)>;

fn part(parts: &Parts, name: &str) -> Matrix {
    let found = parts.iter().find(|(n, _)| *n == name);
    Matrix::of(&found.unwrap_or_else(|| panic!("no {name}")).1)
}

/// What makes a case: the shape of its weight and its parts.
struct Case {
    name: &'static str,
    weight: &'static [usize],
    parts: &'static [(&'static str, &'static [usize])],
    /// What alpha is divided by; `None` where alpha is no scale.
    rank: Option<f64>,
    /// The contribution before scale and strength.
    change: fn(&Parts, &Matrix) -> Matrix,
}

fn lora(p: &Parts, _: &Matrix) -> Matrix {
    part(p, "lora_up.weight").times(&part(p, "lora_down.weight"))
}

fn loha(p: &Parts, _: &Matrix) -> Matrix {
    let one = part(p, "hada_w1_a").times(&part(p, "hada_w1_b"));
    one.with(
        &part(p, "hada_w2_a").times(&part(p, "hada_w2_b")),
        |a, b| a * b,
    )
}

/// The product of Kronecker; `places` columns of the second belong to one input channel.
fn kron(one: &Matrix, two: &Matrix, places: usize) -> Matrix {
    let channels = two.columns / places;
    Matrix::new(one.rows * two.rows, one.columns * two.columns, |i, j| {
        let (channel, place) = (j / places, j % places);
        let left = one.at(i / two.rows, channel / channels);
        left * two.at(i % two.rows, channel % channels * places + place)
    })
}

fn lokr(p: &Parts, _: &Matrix) -> Matrix {
    kron(&part(p, "lokr_w1"), &part(p, "lokr_w2"), 1)
}

fn lokr_factored(p: &Parts, _: &Matrix) -> Matrix {
    let one = part(p, "lokr_w1_a").times(&part(p, "lokr_w1_b"));
    kron(&one, &part(p, "lokr_w2_a").times(&part(p, "lokr_w2_b")), 1)
}

fn lokr_conv(p: &Parts, _: &Matrix) -> Matrix {
    kron(&part(p, "lokr_w1"), &part(p, "lokr_w2"), 9)
}

fn glora_old(p: &Parts, w: &Matrix) -> Matrix {
    let through = w.times(&part(p, "a2.weight")).times(&part(p, "a1.weight"));
    let own = part(p, "b2.weight").times(&part(p, "b1.weight"));
    own.with(&through, |a, b| a + b)
}

fn glora_new(p: &Parts, w: &Matrix) -> Matrix {
    let inner = part(p, "a1.weight").times(&part(p, "a2.weight"));
    // Over input channels, at each place.
    let places = w.columns / inner.rows;
    let through = Matrix::new(w.rows, w.columns, |i, j| {
        let (to, place) = (j / places, j % places);
        (0..inner.rows)
            .map(|from| w.at(i, from * places + place) * inner.at(from, to))
            .sum()
    });
    let own = part(p, "b1.weight").times(&part(p, "b2.weight"));
    own.with(&through, |a, b| a + b)
}

const CASES: &[Case] = &[
    Case {
        name: "lora",
        weight: &[12, 8],
        parts: &[("lora_up.weight", &[12, 3]), ("lora_down.weight", &[3, 8])],
        rank: Some(3.0),
        change: lora,
    },
    Case {
        name: "lora of a convolution",
        weight: &[12, 8, 3, 3],
        parts: &[
            ("lora_up.weight", &[12, 3, 1, 1]),
            ("lora_down.weight", &[3, 8, 3, 3]),
        ],
        rank: Some(3.0),
        change: lora,
    },
    Case {
        name: "loha",
        weight: &[12, 8],
        parts: &[
            ("hada_w1_a", &[12, 3]),
            ("hada_w1_b", &[3, 8]),
            ("hada_w2_a", &[12, 2]),
            ("hada_w2_b", &[2, 8]),
        ],
        rank: Some(3.0),
        change: loha,
    },
    Case {
        name: "loha of a convolution",
        weight: &[12, 8, 3, 3],
        parts: &[
            ("hada_w1_a", &[12, 3]),
            ("hada_w1_b", &[3, 72]),
            ("hada_w2_a", &[12, 3]),
            ("hada_w2_b", &[3, 72]),
        ],
        rank: Some(3.0),
        change: loha,
    },
    Case {
        name: "lokr",
        weight: &[12, 8],
        parts: &[("lokr_w1", &[3, 2]), ("lokr_w2", &[4, 4])],
        rank: None,
        change: lokr,
    },
    Case {
        name: "lokr in factors",
        weight: &[12, 8],
        parts: &[
            ("lokr_w1_a", &[3, 2]),
            ("lokr_w1_b", &[2, 2]),
            ("lokr_w2_a", &[4, 3]),
            ("lokr_w2_b", &[3, 4]),
        ],
        rank: Some(3.0),
        change: lokr_factored,
    },
    Case {
        name: "lokr of a convolution",
        weight: &[12, 8, 3, 3],
        parts: &[("lokr_w1", &[3, 2]), ("lokr_w2", &[4, 4, 3, 3])],
        rank: None,
        change: lokr_conv,
    },
    Case {
        name: "glora, old layout",
        weight: &[12, 8],
        parts: &[
            ("a1.weight", &[3, 8]),
            ("a2.weight", &[8, 3]),
            ("b1.weight", &[3, 8]),
            ("b2.weight", &[12, 3]),
        ],
        rank: Some(3.0),
        change: glora_old,
    },
    Case {
        name: "glora, new layout",
        weight: &[12, 8],
        parts: &[
            ("a1.weight", &[8, 3]),
            ("a2.weight", &[3, 8]),
            ("b1.weight", &[12, 3]),
            ("b2.weight", &[3, 8]),
        ],
        rank: Some(3.0),
        change: glora_new,
    },
    Case {
        name: "glora of a convolution, new layout",
        weight: &[12, 8, 3, 3],
        parts: &[
            ("a1.weight", &[8, 3]),
            ("a2.weight", &[3, 8]),
            ("b1.weight", &[12, 3]),
            ("b2.weight", &[3, 72]),
        ],
        rank: Some(3.0),
        change: glora_new,
    },
];

fn tensors(name: &str, shapes: &[(&'static str, &[usize])]) -> Parts {
    let one = |(part, shape): &(&'static str, &[usize])| {
        (
            *part,
            synthetic::value(&format!("{name}.{part}"), shape, 0.4).unwrap(),
        )
    };
    shapes.iter().map(one).collect()
}

/// The patches of a file with these parts for a weight of this shape.
fn patches(
    folder: &Path,
    shape: &[usize],
    parts: &[(&str, &Tensor)],
    strength: f64,
) -> Vec<(String, Patch)> {
    let names: Vec<String> = parts
        .iter()
        .map(|(part, _)| format!("diffusion_model.k.{part}"))
        .collect();
    let list: Vec<(&str, &Tensor)> = names
        .iter()
        .zip(parts)
        .map(|(name, (_, tensor))| (name.as_str(), *tensor))
        .collect();
    let path = folder.join("a.safetensors");
    safetensors::write(&path, &list, &[]).unwrap();
    let file = LoraFile::open(&path).unwrap();
    let loaded = load(&file, &NameMap::for_model(&[("k.weight", shape)])).unwrap();
    assert!(loaded.unused.is_empty(), "{:?}", loaded.unused);
    loaded.patches(strength, |_| true)
}

fn merged(weight: &Tensor, patches: Vec<(String, Patch)>) -> Tensor {
    let set = PatchSet::default().with(patches);
    set.apply("diffusion_model.k.weight", weight.clone())
        .unwrap()
}

#[track_caller]
fn assert_near(actual: &Tensor, expected: &Matrix, what: &str) {
    let pairs = actual.data().iter().zip(&expected.values);
    let (error, size) = pairs.fold((0.0f64, 0.0f64), |(error, size), (&a, &b)| {
        (error.max((f64::from(a) - b).abs()), size.max(b.abs()))
    });
    assert!(error < size * 2e-6, "{what}: {error} of {size}");
}

/// Rows of the changed weight brought to the lengths `m`, or columns (input channels of `places` each).
fn decomposed(w: &Matrix, changed: &Matrix, m: &[f64], places: usize, strength: f64) -> Matrix {
    let eps = f64::from(f32::EPSILON);
    let by_row = m.len() == w.rows;
    let length = |i: usize, j: usize| -> f64 {
        let squares: f64 = if by_row {
            (0..w.columns).map(|j| w.at(i, j).powi(2)).sum()
        } else {
            let channel = j / places;
            (0..w.rows)
                .flat_map(|i| (0..places).map(move |p| (i, channel * places + p)))
                .map(|(i, j)| changed.at(i, j).powi(2))
                .sum()
        };
        squares.sqrt() + eps
    };
    Matrix::new(w.rows, w.columns, |i, j| {
        let scale = if by_row { m[i] } else { m[j / places] };
        let new = changed.at(i, j) * scale / length(i, j);
        w.at(i, j) + strength * (new - w.at(i, j))
    })
}

#[test]
fn l01_kinds_by_their_formulas() {
    let folder = tempfile::tempdir().unwrap();
    let mut ran = 0;
    for case in CASES {
        let weight = synthetic::weight("formulas.weight", case.weight).unwrap();
        let w = Matrix::of(&weight);
        let parts = tensors(case.name, case.parts);
        let places = w.columns / case.weight[1];
        let inputs = case.weight[1];
        for alpha in [None, Some(1.5f32)] {
            for strength in [1.0, 0.7, -0.4] {
                for dora in [None, Some(w.rows), Some(inputs)] {
                    let mut all: Vec<(&str, &Tensor)> =
                        parts.iter().map(|(n, t)| (*n, t)).collect();
                    let alpha_tensor = Tensor::scalar(alpha.unwrap_or(0.0));
                    if alpha.is_some() {
                        all.push(("alpha", &alpha_tensor));
                    }
                    let m = dora.map(|n| {
                        let shape = if n == w.rows { [n, 1] } else { [1, n] };
                        let mut m = synthetic::value("m", &shape, 0.3).unwrap();
                        for v in m.data_mut() {
                            *v += 1.0;
                        }
                        m
                    });
                    if let Some(m) = &m {
                        all.push(("dora_scale", m));
                    }
                    let scale = match (alpha, case.rank) {
                        (Some(alpha), Some(rank)) => f64::from(alpha) / rank,
                        _ => 1.0,
                    };
                    let change = (case.change)(&parts, &w).scaled(scale);
                    let expected = match &m {
                        None => w.with(&change, |a, b| a + strength * b),
                        Some(m) => {
                            let m: Vec<f64> = m.data().iter().map(|v| f64::from(*v)).collect();
                            let changed = w.with(&change, |a, b| a + b);
                            decomposed(&w, &changed, &m, places, strength)
                        }
                    };
                    let found =
                        merged(&weight, patches(folder.path(), case.weight, &all, strength));
                    let what = format!("{} {alpha:?} {strength} {dora:?}", case.name);
                    assert_near(&found, &expected, &what);
                    ran += 1;
                }
            }
        }
    }
    assert_eq!(ran, CASES.len() * 18);
}

/// Rotations `(I + Q)(I - Q)^-1` of blocks, `Q` no longer than alpha.
fn rotations(blocks: &Tensor, alpha: Option<f32>) -> Vec<Matrix> {
    let b = *blocks.shape().last().unwrap();
    let mut all: Vec<Matrix> = blocks
        .data()
        .chunks_exact(b * b)
        .map(|block| {
            let block = Matrix::new(b, b, |i, j| f64::from(block[i * b + j]));
            block.with(&block.transposed(), |x, y| x - y)
        })
        .collect();
    let squares = all.iter().flat_map(|q| &q.values).map(|v| v * v);
    let norm = squares.sum::<f64>().sqrt() + 1e-8;
    if let Some(alpha) = alpha.map(f64::from).filter(|a| *a > 0.0 && norm > *a) {
        all = all.iter().map(|q| q.scaled(alpha / norm)).collect();
    }
    let eye = Matrix::eye(b);
    all.iter()
        .map(|q| {
            let plus = eye.with(q, |x, y| x + y);
            plus.times(&eye.with(q, |x, y| x - y).inverse())
        })
        .collect()
}

#[test]
fn l01_rotations_by_their_formulas() {
    let folder = tempfile::tempdir().unwrap();
    for shape in [&[16, 8][..], &[16, 8, 3, 3]] {
        let weight = synthetic::weight("formulas.weight", shape).unwrap();
        let w = Matrix::of(&weight);
        let blocks = synthetic::value("blocks", &[4, 4, 4], 0.3).unwrap();
        let stages = synthetic::value("stages", &[2, 4, 4, 4], 0.3).unwrap();
        let rescale = synthetic::weight("rescale.weight", &[16]).unwrap();
        let rescale = rescale.reshape([16, 1]).unwrap();
        for alpha in [None, Some(0.5f32), Some(100.0)] {
            for strength in [1.0, 0.7] {
                let alpha_tensor = Tensor::scalar(alpha.unwrap_or(0.0));
                let run = |parts: &[(&str, &Tensor)]| {
                    let mut all = parts.to_vec();
                    if alpha.is_some() {
                        all.push(("alpha", &alpha_tensor));
                    }
                    merged(&weight, patches(folder.path(), shape, &all, strength))
                };
                let what = format!("{shape:?} {alpha:?} {strength}");
                let turns = rotations(&blocks, alpha);
                // Rows of a block, with the transposed rotation; the strength counts twice.
                let expected = Matrix::new(w.rows, w.columns, |i, j| {
                    let (block, row) = (i / 4, i % 4);
                    let turn = &turns[block];
                    let change: f64 = (0..4)
                        .map(|n| {
                            let one = f64::from(u8::from(n == row));
                            strength * (turn.at(n, row) - one) * w.at(block * 4 + n, j)
                        })
                        .sum();
                    w.at(i, j) + strength * change
                });
                assert_near(&run(&[("oft_blocks", &blocks)]), &expected, &what);

                let turns = rotations(&stages, alpha);
                let eye = Matrix::eye(4);
                let mut current = w.clone();
                for stage in 0..2 {
                    // Row g of a group of 2k is next to row g + k.
                    let k = (1 << stage) * 2;
                    let place = |i: usize| {
                        let (group, rest) = (i / (2 * k), i % (2 * k));
                        group * 2 * k + rest / 2 + rest % 2 * k
                    };
                    let shuffled = Matrix::new(w.rows, w.columns, |i, j| current.at(place(i), j));
                    let mut next = current.clone();
                    for i in 0..w.rows {
                        let turn = turns[stage * 4 + i / 4]
                            .with(&eye, |r, e| strength * r + (1.0 - strength) * e);
                        for j in 0..w.columns {
                            let sum = (0..4)
                                .map(|n| turn.at(i % 4, n) * shuffled.at(i / 4 * 4 + n, j))
                                .sum();
                            next.values[place(i) * w.columns + j] = sum;
                        }
                    }
                    current = next;
                }
                let expected = Matrix::new(w.rows, w.columns, |i, j| {
                    let turned = current.at(i, j) * f64::from(rescale.data()[i]);
                    w.at(i, j) + strength * (turned - w.at(i, j))
                });
                let found = run(&[("oft_blocks", &stages), ("rescale", &rescale)]);
                assert_near(&found, &expected, &format!("stages {what}"));
            }
        }
    }
}

/// What adds to the weight can come in any order; what depends on the weight cannot.
#[test]
fn l02_the_order_of_two_changes() {
    let folder = tempfile::tempdir().unwrap();
    let shape = &[12, 8];
    let weight = synthetic::weight("formulas.weight", shape).unwrap();
    let kind = |name: &str, number: usize| -> Parts {
        let named = |n: &str| CASES.iter().find(|c| c.name == n).unwrap();
        let of = |n: &str| tensors(&format!("{number}"), named(n).parts);
        match name {
            "oft" => vec![(
                "oft_blocks",
                synthetic::value(&format!("oft{number}"), &[3, 4, 4], 0.3).unwrap(),
            )],
            "dora" => {
                let mut parts = of("lora");
                let mut scale = synthetic::value(&format!("m{number}"), &[1, 8], 0.2).unwrap();
                for v in scale.data_mut() {
                    *v += 1.0;
                }
                parts.push(("dora_scale", scale));
                parts
            }
            _ => of(name),
        }
    };
    for (name, commutes) in [
        ("lora", true),
        ("loha", true),
        ("lokr", true),
        ("glora, old layout", false),
        ("oft", false),
        ("dora", false),
    ] {
        let changes = [1, 2].map(|number| {
            let parts = kind(name, number);
            let list: Vec<(&str, &Tensor)> = parts.iter().map(|(n, t)| (*n, t)).collect();
            patches(folder.path(), shape, &list, 0.8)
        });
        let run = |order: [usize; 2]| {
            let list = order.iter().flat_map(|i| changes[*i].clone()).collect();
            merged(&weight, list)
        };
        let (there, back) = (run([0, 1]), run([1, 0]));
        let pairs = there.data().iter().zip(back.data());
        let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert_eq!(apart < 1e-6, commutes, "{name}: {apart}");
    }
}
