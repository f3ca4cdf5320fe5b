//! Quantised layers of every kind as files have them, with the bytes of their rows put together value by value.

use fresco_tensor::formats::{USUAL_LEVELS, swizzle};
use fresco_tensor::{Dtype, Stored, Tensor};

/// A layer of a file.
pub(crate) struct Layer {
    pub(crate) name: &'static str,
    /// Its tensors by what follows its name and a dot.
    tensors: Vec<(&'static str, Stored)>,
    /// Matrices, and rows and columns of each.
    pub(crate) shape: [usize; 3],
    /// What each row is.
    rows: Vec<Vec<u8>>,
    state: u64,
}

/// The tensors of a file with these layers.
pub(crate) fn tensors(layers: &[Layer]) -> Vec<(String, Stored)> {
    let mut all = Vec::new();
    for layer in layers {
        for (part, stored) in &layer.tensors {
            all.push((format!("{}.{part}", layer.name), stored.clone()));
        }
    }
    all
}

impl Layer {
    /// With so many bytes of codes in each of the rows that the file has.
    fn new(
        name: &'static str,
        shape: [usize; 3],
        (stored_rows, width): (usize, usize),
        marker: &str,
    ) -> Self {
        let seed = |all: u64, byte: u8| all.wrapping_mul(31).wrapping_add(byte.into());
        let state = name.bytes().fold(7, seed);
        let mut layer = Self {
            name,
            tensors: Vec::new(),
            shape,
            rows: Vec::new(),
            state,
        };
        let [experts, rows, _] = shape;
        let codes = layer.random(experts * stored_rows * width);
        for expert in codes.chunks_exact(stored_rows * width) {
            let used = expert.chunks_exact(width).take(rows);
            layer.rows.extend(used.map(<[u8]>::to_vec));
        }
        let dtype = match name {
            "e4m3" | "mxfp8" => Dtype::F8E4M3,
            _ => Dtype::I8,
        };
        let sizes = match experts {
            1 => vec![stored_rows, width],
            _ => vec![experts, stored_rows, width],
        };
        layer.add("weight", dtype, sizes, codes);
        let text = format!("{{{marker}}}").into_bytes();
        layer.add("comfy_quant", Dtype::U8, vec![text.len()], text);
        layer
    }

    fn add(&mut self, part: &'static str, dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) {
        let stored = Stored::new(dtype, shape, bytes).unwrap();
        self.tensors.push((part, stored));
    }

    fn random(&mut self, count: usize) -> Vec<u8> {
        let mut next = || {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005);
            self.state = self.state.wrapping_add(1_442_695_040_888_963_407);
            (self.state >> 40) as u8
        };
        (0..count).map(|_| next()).collect()
    }

    /// Numbers in some format, as the file has them and in f32.
    fn numbers(&mut self, part: &'static str, dtype: Dtype, shape: &[usize]) -> Vec<[u8; 4]> {
        let bytes = self.random(shape.iter().product());
        let value = Tensor::from_fn(shape, |i| (f32::from(bytes[i]) - 100.0) / 64.0).unwrap();
        let stored = Stored::from_f32(&value, dtype).unwrap();
        let numbers = stored.to_f32().unwrap();
        self.tensors.push((part, stored));
        numbers.data().iter().map(|n| n.to_le_bytes()).collect()
    }

    fn each_row(&mut self, add: impl Fn([usize; 2], &mut Vec<u8>)) {
        let of_expert = self.shape[1];
        for (at, row) in self.rows.iter_mut().enumerate() {
            add([at / of_expert, at % of_expert], row);
        }
    }

    /// A number behind each row, of which the file has one for each row, each expert or all.
    fn own(mut self, part: &'static str, dtype: Dtype, shape: &[usize]) -> Self {
        let numbers = self.numbers(part, dtype, shape);
        let [experts, rows, _] = self.shape;
        self.each_row(|[expert, row], to| {
            let at = match numbers.len() {
                1 => 0,
                n if n == experts * rows => expert * rows + row,
                _ => expert,
            };
            to.extend(numbers[at]);
        });
        self
    }

    /// A byte for each group in tiles.
    fn tiled(mut self, dtype: Dtype, stored_rows: usize, groups: usize) -> Self {
        let experts = self.shape[0];
        let (high, wide) = swizzle::stored_size(stored_rows, groups);
        let bytes = self.random(experts * high * wide);
        self.add(
            "weight_scale",
            dtype,
            vec![experts * high, wide],
            bytes.clone(),
        );
        self.each_row(|[expert, row], to| {
            let tiles = &bytes[expert * high * wide..];
            to.extend((0..groups).map(|group| tiles[swizzle::place(row, group, groups)]));
        });
        self
    }

    /// Numbers of groups that stay as they are, row by row.
    fn by_row(mut self, part: &'static str, dtype: Dtype, groups: usize) -> Self {
        let size = dtype.bytes_for(1).unwrap();
        let all = self.rows.len();
        let bytes = self.random(all * groups * size);
        self.add(part, dtype, vec![all, groups], bytes.clone());
        let line = groups * size;
        for (row, numbers) in self.rows.iter_mut().zip(bytes.chunks_exact(line)) {
            row.extend(numbers);
        }
        self
    }

    /// The same where a group has those of all rows, as f32 or as they are.
    fn by_group(mut self, part: &'static str, dtype: Dtype, groups: usize, float: bool) -> Self {
        let [experts, rows, _] = self.shape;
        let floats = self.numbers(part, dtype, &[experts * groups, rows]);
        let size = dtype.bytes_for(1).unwrap();
        let bytes = self.tensors.last().unwrap().1.bytes().to_vec();
        self.each_row(|[expert, row], to| {
            for group in 0..groups {
                let at = (expert * groups + group) * rows + row;
                if float {
                    to.extend(floats[at]);
                } else {
                    to.extend(&bytes[at * size..][..size]);
                }
            }
        });
        self
    }

    /// A table of levels, which is part of the rows unless it is the usual one.
    fn table(mut self, dtype: Dtype, usual: bool) -> Self {
        if usual {
            let levels = Stored::from(&Tensor::from_slice(&USUAL_LEVELS));
            self.tensors.push(("weight_codebook", levels));
            return self;
        }
        let levels = self.numbers("weight_codebook", dtype, &[16]);
        self.each_row(|_, to| to.extend(levels.iter().flatten()));
        self
    }

    /// Rows of all matrices.
    pub(crate) fn count(&self) -> usize {
        self.rows.len()
    }

    /// The bytes of some of the rows.
    pub(crate) fn part(&self, start: usize, count: usize) -> Vec<u8> {
        self.rows[start..start + count].concat()
    }
}

/// Layers of so many rows and some 64 times as many columns as `units`, of sizes that come out even nowhere they need not.
pub(crate) fn layers(rows: usize, units: usize) -> Vec<Layer> {
    let wide = 64 * units;
    let high = rows.next_multiple_of(16);
    let marker = |format: &str, more: &str| format!("\"format\":\"{format}\"{more}");
    let turned = ",\"convrot\":true,\"convrot_groupsize\":64";
    let shaped = |sizes: &str| format!(",\"orig_shape\":{sizes}");
    let sixteenths = wide / 16 + 1;
    let nvfp4 = shaped(&format!("[{rows},{}]", 16 * sixteenths - 6));
    let experts = shaped(&format!("[3,{},{wide}]", rows / 3)) + ",\"num_experts\":3";
    let (third, stored_third) = (rows / 3, (rows / 3).next_multiple_of(16));
    let blocks = wide / 32 + 1;
    let mxfp8 = shaped(&format!("[{rows},{}]", 32 * blocks - 3));
    let grid = marker("asym_w4a8_int8", &format!("{turned},\"group_size\":16"));
    let affine = marker("awq_w4a16", ",\"group_size\":64");
    let own = "weight_scale";
    let channel = "weight_s_channel";
    let (wide_shape, groups) = ([1, rows, wide], wide / 16);
    vec![
        Layer::new(
            "e4m3",
            [1, rows, wide + 1],
            (rows, wide + 1),
            &marker("float8_e4m3fn", ""),
        )
        .own(own, Dtype::F32, &[]),
        Layer::new(
            "int8",
            wide_shape,
            (rows, wide),
            &marker("int8_tensorwise", ""),
        )
        .own(own, Dtype::Bf16, &[rows, 1]),
        Layer::new(
            "int4",
            wide_shape,
            (rows, wide / 2),
            &marker("convrot_w4a4", turned),
        )
        .own(own, Dtype::F32, &[rows]),
        Layer::new(
            "int4 odd",
            [1, rows, wide + 4],
            (rows, wide / 2 + 2),
            &marker("convrot_w4a4", ",\"convrot\":true,\"convrot_groupsize\":4"),
        )
        .own(own, Dtype::F16, &[rows]),
        Layer::new(
            "nvfp4",
            [1, rows, 16 * sixteenths - 6],
            (high, 8 * sixteenths),
            &marker("nvfp4", &nvfp4),
        )
        .tiled(Dtype::F8E4M3, high, sixteenths)
        .own("weight_scale_2", Dtype::F32, &[]),
        Layer::new(
            "nvfp4 experts",
            [3, third, wide],
            (stored_third, wide / 2),
            &marker("nvfp4", &experts),
        )
        .tiled(Dtype::U8, stored_third, wide / 16)
        .own("weight_scale_2", Dtype::F32, &[3]),
        Layer::new(
            "mxfp8",
            [1, rows, 32 * blocks - 3],
            (rows, 32 * blocks),
            &marker("mxfp8", &mxfp8),
        )
        .tiled(Dtype::U8, rows, blocks),
        Layer::new("grid", wide_shape, (rows, wide / 2), &grid)
            .by_row("weight_s_rel", Dtype::F8E4M3, groups)
            .table(Dtype::F32, true)
            .own(channel, Dtype::F32, &[rows]),
        Layer::new("grid of six bits", wide_shape, (rows, wide * 3 / 4), &grid)
            .by_row("weight_s_rel", Dtype::F32, groups)
            .by_group("weight_correction", Dtype::F16, groups, true)
            .own(channel, Dtype::Bf16, &[rows]),
        Layer::new("grid with levels", wide_shape, (rows, wide / 2), &grid)
            .by_row("weight_s_rel", Dtype::U8, groups)
            .by_group("weight_correction", Dtype::Bf16, groups, true)
            .table(Dtype::Bf16, false)
            .own(channel, Dtype::F32, &[rows, 1]),
        Layer::new("affine", wide_shape, (rows, wide / 2), &affine)
            .by_group(own, Dtype::F16, units, false)
            .by_group("weight_zeros", Dtype::F16, units, false),
        Layer::new("affine in f32", wide_shape, (rows, wide / 2), &affine)
            .by_group(own, Dtype::F32, units, false)
            .by_group("weight_zeros", Dtype::F32, units, false),
    ]
}
