//! Fusions that have weights, composed of what every back end has, against the processor; those without weights are composed in
//! every check of `against.rs`.

use fresco_tensor::gpu::{Format, with_composed_fusions};
use fresco_tensor::nn::{
    self, Act, After, Conv2d, GroupNorm, HeadPart, HeadSource, LayerInput, LayerNorm, Linear, Mask,
    MlpJoin, ModulatedRows, Padding, ReadyHeads, RmsNorm, SideColumns, concat_channels,
};
use fresco_tensor::{Device, Dtype, Stored, Tensor};

use crate::compare::{FORMATS, Random, Report, gpu, on_both};

fn dtype(format: Format) -> Dtype {
    match format {
        Format::F32 => Dtype::F32,
        Format::F16 => Dtype::F16,
        Format::Bf16 => Dtype::Bf16,
    }
}

fn stored(t: &Tensor, dtype: Dtype) -> Stored {
    Stored::from_f32(t, dtype).unwrap()
}

/// A weight whose products with normal inputs are about normal.
fn weight(random: &mut Random, shape: &[usize], dtype: Dtype) -> Stored {
    let inputs: usize = shape[1..].iter().product();
    let scale = 1.0 / (inputs as f32).sqrt();
    stored(&random.tensor(shape).mul_scalar(scale), dtype)
}

/// A layer with a bias, here and there.
fn layers(random: &mut Random, sizes: [usize; 2], format: Format, device: &Device) -> [Linear; 2] {
    let w = weight(random, &sizes, dtype(format));
    let bias = stored(&random.tensor(&sizes[..1]), Dtype::F32);
    [&Device::Cpu, device].map(|device| Linear::new(&w, Some(&bias), device).unwrap())
}

/// The same without a bias.
fn plain(random: &mut Random, sizes: [usize; 2], format: Format, device: &Device) -> [Linear; 2] {
    let w = weight(random, &sizes, dtype(format));
    [&Device::Cpu, device].map(|device| Linear::new(&w, None, device).unwrap())
}

#[test]
fn layers_compose_their_fusions() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(81);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for (rows, k, late, out) in [(5, 64, 32, 48), (33, 40, 24, 72), (1, 20, 12, 6)] {
            let case = format!("{rows}x{k}+{late}->{out}");
            let (x, x_here) = random.pair(&[1, rows, k], &device);
            let (behind, behind_here) = random.pair(&[1, rows, late], &device);
            let all: Vec<[Linear; 2]> = (0..3)
                .map(|_| layers(&mut random, [out, k], format, &device))
                .collect();
            let there = [&all[0][1], &all[1][1], &all[2][1]];
            let each = with_composed_fusions(|| Linear::forward_each(there, &x)).unwrap();
            for (found, layer) in each.into_iter().zip(&all) {
                let expected = layer[0].forward(&x_here).unwrap();
                report.check(format, &format!("each {case}"), Ok(found), &expected);
            }
            let few = with_composed_fusions(|| Linear::forward_few(&there, &x)).unwrap();
            assert_eq!(few.is_some(), rows <= 8 && k % 8 == 0);
            for (found, layer) in few.into_iter().flatten().zip(&all) {
                let expected = layer[0].forward(&x_here).unwrap();
                report.check(format, &format!("few {case}"), Ok(found), &expected);
            }
            let [gated_here, gated] = layers(&mut random, [2 * out, k], format, &device);
            let found = with_composed_fusions(|| gated.geglu(&x));
            let expected = gated_here.geglu(&x_here).unwrap();
            report.check(format, &format!("geglu {case}"), found, &expected);
            let [here, there] = layers(&mut random, [out, k + late], format, &device);
            let found = with_composed_fusions(|| there.forward_of_two(&x, &behind)).unwrap();
            let both = concat_channels(&[&x_here, &behind_here]).unwrap();
            let expected = here.forward(&both).unwrap();
            let found = found.expect("compositions are for every size");
            report.check(format, &format!("of two {case}"), Ok(found), &expected);
        }
    }
    report.end("composed layers");
}

#[test]
fn norms_compose_their_fusions() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(82);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        let (items, rows, k, out) = (2, 7, 48, 40);
        let [here, there] = layers(&mut random, [out, k], format, &device);
        let norm = LayerNorm::new(None, None, 1e-5).unwrap();
        let [x, shift, scale] =
            [[items, rows, k], [items, 1, k], [items, 1, k]].map(|s| random.pair(&s, &device));
        let modulated = |layer: &Linear, [x, shift, scale]: [&Tensor; 3]| {
            let rows = ModulatedRows {
                norm: &norm,
                x,
                shift,
                scale,
            };
            layer.forward_modulated(rows, After::default())
        };
        let found = with_composed_fusions(|| modulated(&there, [&x.0, &shift.0, &scale.0]));
        let expected = modulated(&here, [&x.1, &shift.1, &scale.1]).unwrap();
        report.check(format, "a layer of a norm", found, &expected);
        for (early, late) in [(24, 40), (12, 20)] {
            let c = early + late;
            let values = |random: &mut Random| stored(&random.tensor(&[c]), Dtype::F32);
            let (w, bias) = (values(&mut random), values(&mut random));
            let norm = GroupNorm::new(&w, &bias, 4, 1e-5).unwrap();
            let (x, x_here) = random.pair(&[2, 5, 6, early], &device);
            let (behind, behind_here) = random.pair(&[2, 5, 6, late], &device);
            let run = || norm.forward_of_two(&x, &behind, Act::Silu);
            let found = with_composed_fusions(run).unwrap();
            let both = concat_channels(&[&x_here, &behind_here]).unwrap();
            let expected = norm.forward(&both, Act::Silu).unwrap();
            let found = found.expect("compositions are for every size");
            report.check(format, "group norm of two", Ok(found), &expected);
        }
    }
    report.end("composed norms");
}

#[test]
fn a_convolution_composes_with_a_layer_beside_it() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(83);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        for (late, act, with) in [
            (0, Act::None, false),
            (24, Act::Silu, true),
            (8, Act::None, true),
        ] {
            let (b, side, c, early, out) = (2, 6, 16, 40, 24);
            let kernels = weight(&mut random, &[out, c, 3, 3], dtype(format));
            let bias = stored(&random.tensor(&[out]), Dtype::F32);
            let [conv_here, conv] = [&Device::Cpu, &device]
                .map(|d| Conv2d::new(&kernels, Some(&bias), 1, Padding::Same(1), d).unwrap());
            let [layer_here, layer] = layers(&mut random, [out, early + late], format, &device);
            let (h, h_here) = random.pair(&[b, side, side, c], &device);
            let (x, x_here) = random.pair(&[b, side, side, early], &device);
            let (behind, behind_here) = random.pair(&[b, side, side, late], &device);
            let (add, add_here) = random.pair(&[b, side, side, out], &device);
            let (item, item_here) = random.pair(&[b, out], &device);
            let behind = (late > 0).then_some(&behind);
            let after = After {
                act,
                add: with.then_some(&add),
                per_item: with.then_some(&item),
                ..After::default()
            };
            let run = || conv.forward_and(&h, &layer, (&x, behind), after);
            let found = with_composed_fusions(run).unwrap();
            let both = concat_channels(&[&x_here, &behind_here]).unwrap();
            let skipped = layer_here.forward(&both).unwrap();
            let before = After {
                add: Some(&skipped),
                per_item: with.then_some(&item_here),
                ..After::default()
            };
            let sum = conv_here.forward_with(&h_here, before).unwrap();
            let mut expected = nn::activate(sum, act);
            if with {
                expected = expected.add(&add_here).unwrap();
            }
            let case = format!("{early} and {late} {act:?} {with}");
            let found = found.expect("compositions are for every size");
            report.check(format, &case, Ok(found), &expected);
        }
    }
    report.end("composed convolutions");
}

#[test]
fn attention_composes_what_stands_around_it() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    let mut random = Random::new(84);
    for format in FORMATS {
        let device = gpu.computing_only_in(format);
        let (items, tokens, heads, d) = (2, 9, 3, 16);
        let width = heads * d;
        let (all, all_here) = random.pair(&[items, tokens, 3 * width + 8], &device);
        let norms = [0, 1].map(|_| stored(&random.tensor(&[d]), Dtype::F32));
        let [query, key] = norms.map(|w| RmsNorm::new(Some(&w), 1e-6).unwrap());
        let seen = |all: &Tensor| {
            let part = HeadPart {
                from: HeadSource::Joined(all),
                norms: Some((&query, &key)),
            };
            ReadyHeads::new(&[part], heads, width, None, Mask::None)?.attend()
        };
        let found = with_composed_fusions(|| seen(&all));
        report.check(format, "values in rows", found, &seen(&all_here).unwrap());
        for kind in [MlpJoin::GeluTanh, MlpJoin::GateFirst, MlpJoin::GateLast] {
            let columns = kind_width(kind, 64);
            let first = plain(&mut random, [3 * width + 64, width], format, &device);
            let second = plain(&mut random, [width, width + columns], format, &device);
            let (x, x_here) = random.pair(&[1, tokens, width], &device);
            let (seen, seen_here) = random.pair(&[1, tokens, width], &device);
            let gate = random.tensor(&[1, width]);
            let (gate, gate_here) = on_both(&gate, &device);
            let through = |at: usize, [x, seen, gate]: [&Tensor; 3]| {
                let (all, kind) = first[at].forward_beside(LayerInput::Rows(x), 3 * width, kind)?;
                let beside = SideColumns::new(all, 3 * width, kind)?;
                beside.through(&second[at], seen, x.clone(), gate)
            };
            let found = with_composed_fusions(|| through(1, [&x, &seen, &gate]));
            let expected = through(0, [&x_here, &seen_here, &gate_here]).unwrap();
            report.check(format, &format!("beside {kind:?}"), found, &expected);
        }
    }
    report.end("composed attention");
}

fn kind_width(kind: MlpJoin, columns: usize) -> usize {
    match kind {
        MlpJoin::GeluTanh | MlpJoin::Done => columns,
        MlpJoin::GateFirst | MlpJoin::GateLast => columns / 2,
    }
}
