//! Quantised files: one tensor for each weight, whatever it is made of; what is wrong is said by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::cpu::isa;
use fresco_tensor::formats::{GridKind, Levels, RowFormat, RowKind};
use fresco_tensor::nn::{Conv2d, Embedding, Linear, Padding};
use fresco_tensor::weights::{InMemory, quantised_parts, with_formats, with_fp8_products};
use fresco_tensor::{
    Device, Dtype, Stored, Tensor, WeightError, WeightFile, open_weights, safetensors, synthetic,
};

fn grid() -> RowKind {
    RowKind::Grid(GridKind {
        bits: 4,
        group: 16,
        wide_scales: false,
        levels: Levels::Usual,
        corrected: false,
    })
}

/// All formats that are written, for rows of a length that they can have.
fn formats(columns: usize) -> Vec<RowFormat> {
    let int4 = RowKind::Int4 { wide_input: false };
    let kinds = [
        (RowKind::F8E4M3, 0),
        (RowKind::F8E5M2, 0),
        (RowKind::Int8, 0),
        (RowKind::Int8, 64),
        (int4, 64),
        (RowKind::Nvfp4, 0),
        (RowKind::Mxfp8, 0),
        (grid(), 64),
    ];
    let formats = kinds.map(|(kind, rotation)| RowFormat::new(kind, columns, rotation).unwrap());
    formats.to_vec()
}

fn stored(name: &str, format: RowFormat, rows: usize) -> Stored {
    let plain = synthetic::value(name, &[rows, format.columns()], 0.3).unwrap();
    Stored::from_f32(&plain, Dtype::Rows(format)).unwrap()
}

fn tensors(pairs: impl IntoIterator<Item = (String, Stored)>) -> Arc<dyn WeightFile> {
    let tensors: BTreeMap<_, _> = pairs.into_iter().collect();
    Arc::new(InMemory::new("model.safetensors", tensors, Vec::new()))
}

fn parts(layer: &str, weight: &Stored) -> Vec<(String, Stored)> {
    let parts = quantised_parts(weight).unwrap().into_iter();
    parts
        .map(|(part, stored)| (format!("{layer}.{part}"), stored))
        .collect()
}

fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape(), b.shape());
    let pairs = a.data().iter().zip(b.data());
    let (off, of) = pairs.fold((0.0, 0.0), |(off, of), (a, b)| {
        let (a, b) = (f64::from(*a), f64::from(*b));
        (off + (a - b).powi(2), of + b * b)
    });
    (off / of).sqrt()
}

#[test]
fn files_have_one_tensor_for_each_weight() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let bias = Stored::from(&Tensor::ones([48]).unwrap());
    let mut all = vec![("plain.bias".to_owned(), bias)];
    let mut wanted = Vec::new();
    for (i, format) in formats(128).into_iter().enumerate() {
        let weight = stored(&format!("{i}"), format, 48);
        all.extend(parts(&format!("layer{i}"), &weight));
        wanted.push((format!("layer{i}.weight"), weight));
    }
    let pairs: Vec<_> = all.iter().map(|(n, s)| (n.as_str(), s)).collect();
    safetensors::write(&path, &pairs, &[]).unwrap();
    let file = open_weights(&path).unwrap();
    let mut names: Vec<String> = wanted.iter().map(|(name, _)| name.clone()).collect();
    names.push("plain.bias".to_owned());
    assert_eq!(file.names(), names);
    for (name, weight) in &wanted {
        let info = file.info(name).unwrap();
        assert_eq!((info.dtype, &*info.shape), (weight.dtype(), &[48, 128][..]));
        assert_eq!(file.read(name).unwrap(), *weight, "{name}");
    }
}

/// Codes that stay in their file until they are wanted, whole, in parts and joined, against what is read at once.
#[test]
fn codes_that_stay_in_the_file_make_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    // Rows that fill up no block of 16.
    let rows = 40;
    let mut all = Vec::new();
    for (i, format) in formats(128).into_iter().enumerate() {
        for (part, name) in ["a", "b"].into_iter().enumerate() {
            let weight = stored(&format!("{name}{i}"), format, rows - 8 * part);
            all.extend(parts(&format!("{name}{i}"), &weight));
        }
    }
    let plain = Tensor::from_fn([6, 10], |i| i as f32).unwrap();
    all.push(("plain.weight".to_owned(), Stored::from(&plain)));
    let pairs: Vec<_> = all.iter().map(|(n, s)| (n.as_str(), s)).collect();
    safetensors::write(&path, &pairs, &[]).unwrap();
    let file = open_weights(&path).unwrap();
    let rows_of = |stored: &Stored, start: usize, count: usize| {
        let row = stored.bytes().len() / stored.shape()[0];
        stored.bytes()[start * row..][..count * row].to_vec()
    };
    for name in file.names() {
        let wanted = file.read(&name).unwrap();
        let later = file.later(&name).unwrap();
        assert_eq!(later.byte_len(), wanted.byte_len(), "{name}");
        let part = later.unread_rows(3, 2).unwrap();
        assert_eq!(part.bytes(), rows_of(&wanted, 3, 2), "{name}");
        assert!(later.unread_rows(wanted.shape()[0], 1).is_none(), "{name}");
        let again = file.later(&name).unwrap();
        let joined = Stored::unread_joined(&[later.clone(), part_of(&again, 1, 3)]).unwrap();
        assert_eq!(joined.shape()[0], wanted.shape()[0] + 3);
        let part = part_of(&joined, wanted.shape()[0] - 1, 3);
        let mut both = rows_of(&wanted, wanted.shape()[0] - 1, 1);
        both.extend(rows_of(&wanted, 1, 2));
        assert_eq!(part.bytes(), both, "{name}");
        assert_eq!(later, wanted, "{name}");
        // What was read is no longer in the file.
        assert!(later.unread_rows(0, 1).is_none());
        let mut bytes = wanted.bytes().to_vec();
        bytes.extend(rows_of(&wanted, 1, 3));
        assert_eq!(joined.bytes(), bytes, "{name}");
    }
    let (a, b) = ("a0.weight", "a2.weight");
    let different = [a, b].map(|name| file.later(name).unwrap());
    assert!(Stored::unread_joined(&different).is_none());
    assert!(Stored::unread_joined(&[]).is_none());
}

fn part_of(stored: &Stored, start: usize, count: usize) -> Stored {
    stored.unread_rows(start, count).unwrap()
}

#[test]
fn plain_matrices_of_fp8_become_layers_with_scales_of_one() {
    let value = |name: &str, shape: &[usize], dtype| {
        let plain = synthetic::value(name, shape, 0.3).unwrap();
        (name.to_owned(), Stored::from_f32(&plain, dtype).unwrap())
    };
    let all = [
        value("l.weight", &[48, 40], Dtype::F8E4M3),
        value("l.bias", &[48], Dtype::F8E4M3),
        value("conv.weight", &[8, 4, 3, 3], Dtype::F8E4M3),
        value("other.weight", &[48, 40], Dtype::F8E5M2),
        value("table", &[48, 40], Dtype::F8E4M3),
        value("none.weight", &[0, 40], Dtype::F8E4M3),
        // Nothing says that the scale is one.
        value("scaled.weight", &[48, 40], Dtype::F8E4M3),
        value("scaled.weight_scale", &[3], Dtype::F32),
    ];
    let plain = tensors(all.clone());
    let file = with_fp8_products(Arc::clone(&plain));
    assert_eq!(file.names(), plain.names());
    let format = RowFormat::new(RowKind::F8E4M3, 40, 0).unwrap();
    for (name, stored) in &all {
        let (info, read) = (file.info(name).unwrap(), file.read(name).unwrap());
        assert_eq!((info.dtype, &*info.shape), (read.dtype(), read.shape()));
        if name == "l.weight" {
            assert_eq!(read.dtype(), Dtype::Rows(format));
            let values = |stored: &Stored| stored.to_f32().unwrap().data().to_vec();
            assert_eq!(values(&read), values(stored));
        } else {
            assert_eq!(read, *stored, "{name}");
        }
    }
    // Without such matrices it is the same file.
    let plain = tensors([value("l.weight", &[4, 4], Dtype::F16)]);
    let same = with_fp8_products(Arc::clone(&plain));
    assert!(Arc::ptr_eq(&plain, &same));
}

#[test]
fn formats_are_said_in_several_ways() {
    let format = RowFormat::new(RowKind::F8E4M3, 32, 0).unwrap();
    let weight = stored("w", format, 4);
    let codes = |dtype| Stored::new(dtype, [4, 32], parts("l", &weight)[0].1.bytes().to_vec());
    let scale = parts("l", &weight)[1].1.clone();
    let text = |text: &str| {
        let bytes = text.as_bytes().to_vec();
        Stored::new(Dtype::U8, [bytes.len()], bytes).unwrap()
    };
    let named = |pairs: &[(&str, Stored)]| {
        let pairs = pairs.iter().map(|(n, s)| ((*n).to_owned(), s.clone()));
        pairs.collect::<BTreeMap<_, _>>()
    };
    let f8 = codes(Dtype::F8E4M3).unwrap();
    let marker = |elements: usize| Stored::new(Dtype::F8E4M3, [elements], vec![0; elements]);
    let listed = r#"{"format_version":"1.0","layers":{"l":"float8_e4m3fn"}}"#;
    let ways = [
        // The list in the metadata, also without the prefix of a checkpoint.
        (
            named(&[("l.weight", f8.clone()), ("l.weight_scale", scale.clone())]),
            listed,
            false,
        ),
        (
            named(&[
                ("l.weight", codes(Dtype::U8).unwrap()),
                ("l.weight_scale", scale.clone()),
                ("l.input_scale", scale.clone()),
                (
                    "l.comfy_quant",
                    text(r#"{"format":"float8_e4m3fn","full_precision_matrix_mult":true}"#),
                ),
            ]),
            "",
            true,
        ),
        (
            named(&[
                ("l.weight", f8.clone()),
                ("l.scale_weight", scale.clone()),
                ("l.scale_input", scale.clone()),
                ("scaled_fp8", marker(2).unwrap()),
            ]),
            "",
            true,
        ),
        (
            named(&[
                ("l.weight", f8.clone()),
                ("l.scale_weight", scale.clone()),
                ("scaled_fp8", marker(0).unwrap()),
            ]),
            "",
            false,
        ),
        // Nothing but a scale.
        (
            named(&[("l.weight", f8.clone()), ("l.scale_weight", scale.clone())]),
            "",
            false,
        ),
    ];
    for (number, (tensors, list, exact)) in ways.into_iter().enumerate() {
        let metadata = match list {
            "" => Vec::new(),
            list => vec![("_quantization_metadata".to_owned(), list.to_owned())],
        };
        let file = with_formats(Arc::new(InMemory::new("f", tensors, metadata))).unwrap();
        assert_eq!(file.names(), ["l.weight"], "way {number}");
        let read = file.read("l.weight").unwrap();
        assert_eq!(
            read.dtype(),
            Dtype::Rows(format.exact(exact)),
            "way {number}"
        );
        assert_eq!(read.bytes(), weight.bytes(), "way {number}");
    }
    // Floats of a scaled file that were left as they are.
    let plain = Stored::from(&Tensor::full([2, 2], 3.0).unwrap());
    let half = Stored::from(&Tensor::full([1], 0.5).unwrap());
    let pairs = [
        ("p.weight", plain),
        ("p.scale_weight", half),
        ("scaled_fp8", marker(0).unwrap()),
    ];
    let file = with_formats(Arc::new(InMemory::new("f", named(&pairs), Vec::new()))).unwrap();
    let read = file.read("p.weight").unwrap().to_f32().unwrap();
    assert_eq!(read.data(), [1.5; 4]);
    // A file that says nothing is the same file.
    let pairs = [("p.weight", f8)];
    let file = with_formats(Arc::new(InMemory::new("f", named(&pairs), Vec::new()))).unwrap();
    assert_eq!(file.info("p.weight").unwrap().dtype, Dtype::F8E4M3);
}

#[test]
fn what_is_wrong_is_named() {
    let int8 = RowFormat::new(RowKind::Int8, 64, 64).unwrap();
    let nvfp4 = RowFormat::new(RowKind::Nvfp4, 64, 0).unwrap();
    let codes = RowFormat::new(grid(), 64, 64).unwrap();
    let f32s = |shape: &[usize]| Stored::from(&Tensor::ones(shape).unwrap());
    let bytes = |count: usize| Stored::new(Dtype::U8, [count], vec![0; count]).unwrap();
    let json = |text: &str| Stored::new(Dtype::U8, [text.len()], text.into()).unwrap();
    // The format, the part that is replaced (or taken away), and what the message says.
    let cases: Vec<(RowFormat, &str, Option<Stored>, &str)> = vec![
        (int8, "weight_scale", Some(f32s(&[5])), "has 5 numbers"),
        (int8, "weight_scale", None, "missing"),
        (
            int8,
            "comfy_quant",
            Some(json("{\"format\":\"int3\"}")),
            "\"int3\" is not known",
        ),
        (int8, "comfy_quant", Some(json("{")), "JSON"),
        (int8, "comfy_quant", Some(json("[1]")), "not an object"),
        (
            int8,
            "comfy_quant",
            Some(json("{\"format\":\"int8_tensorwise\",\"convrot\":true}")),
            "groups of 256",
        ),
        (
            int8,
            "weight",
            Some(f32s(&[16, 64])),
            "cannot have the format F32",
        ),
        (
            int8,
            "weight",
            Some(Stored::new(Dtype::I8, [64], vec![0; 64]).unwrap()),
            "rows",
        ),
        (nvfp4, "weight_scale", Some(bytes(100)), "has 100 numbers"),
        (
            nvfp4,
            "weight_scale",
            Some(f32s(&[128, 4])),
            "must be bytes",
        ),
        (nvfp4, "weight_scale_2", None, "missing"),
        (codes, "weight_s_rel", None, "missing"),
        (codes, "weight_s_channel", Some(f32s(&[3])), "has 3 numbers"),
        (codes, "weight_codebook", Some(f32s(&[7])), "7 levels"),
        (
            codes,
            "weight",
            Some(Stored::new(Dtype::I8, [16, 31], vec![0; 496]).unwrap()),
            "31 bytes",
        ),
    ];
    for (format, part, change, message) in cases {
        let mut all: BTreeMap<_, _> = parts("block.l", &stored("w", format, 16))
            .into_iter()
            .collect();
        all.remove(&format!("block.l.{part}"));
        if let Some(change) = change {
            all.insert(format!("block.l.{part}"), change);
        }
        let error = with_formats(tensors(all)).err().map(|e| e.to_string());
        let error = error.unwrap_or_default();
        assert!(error.contains(message), "{part}: {error}");
        assert!(
            error.contains("block.l.") && error.contains("model.safetensors"),
            "{error}"
        );
    }
    let metadata = vec![("_quantization_metadata".to_owned(), "{}".to_owned())];
    let file = Arc::new(InMemory::new("f", BTreeMap::new(), metadata));
    assert!(matches!(
        with_formats(file),
        Err(WeightError::Quantised { .. })
    ));
}

/// Products with packed weights are those with the plain ones, whatever multiplies.
#[test]
fn products_with_whole_inputs_are_those_of_plain_weights() {
    let cpu = Device::cpu();
    let bias = Stored::from(&synthetic::value("bias", &[70], 0.5).unwrap());
    for rows in [1, 5, 40] {
        let x = synthetic::value("x", &[rows, 192], 1.0).unwrap();
        for format in formats(192) {
            let weight = stored("w", format, 70);
            let plain = Stored::from(&weight.to_f32().unwrap());
            let wanted = Linear::new(&plain, Some(&bias), &cpu).unwrap();
            let layer = Linear::new(&weight, Some(&bias), &cpu).unwrap().exact();
            let off = distance(&layer.forward(&x).unwrap(), &wanted.forward(&x).unwrap());
            assert!(off < 1e-6, "{} {rows}: {off}", format.name());
            assert_eq!(layer.weight().unwrap(), weight, "{}", format.name());
            let layer = Linear::new(&weight, Some(&bias), &cpu).unwrap();
            let off = distance(&layer.forward(&x).unwrap(), &wanted.forward(&x).unwrap());
            let bound = match format.kind() {
                RowKind::Int8 | RowKind::Grid(_) => 0.02,
                RowKind::Int4 { .. } => 0.2,
                _ => 1e-6,
            };
            assert!(off < bound, "{} {rows}: {off}", format.name());
        }
    }
}

#[test]
fn gates_are_those_of_plain_weights() {
    let cpu = Device::cpu();
    let x = synthetic::value("x", &[2, 17, 64], 1.0).unwrap();
    for out in [128, 72] {
        let bias = Stored::from(&synthetic::value("bias", &[out], 0.5).unwrap());
        for format in formats(64) {
            let weight = stored("w", format, out);
            let plain = Stored::from(&weight.to_f32().unwrap());
            let wanted = Linear::new(&plain, Some(&bias), &cpu).unwrap();
            let layer = Linear::new(&weight, Some(&bias), &cpu).unwrap();
            let found = layer.geglu(&x).unwrap();
            let bound = match format.kind() {
                RowKind::Int4 { .. } => 0.4,
                _ => 0.03,
            };
            let off = distance(&found, &wanted.geglu(&x).unwrap());
            assert!(off < bound, "{} {out}: {off}", format.name());
            let layer = Linear::new(&weight, Some(&bias), &cpu).unwrap().exact();
            let off = distance(&layer.geglu(&x).unwrap(), &wanted.geglu(&x).unwrap());
            assert!(off < 1e-6, "{} {out}: {off}", format.name());
        }
    }
}

/// Sums of bytes are exact: no instruction set gives another bit.
#[test]
fn products_of_bytes_do_not_depend_on_the_machine() {
    let x = synthetic::value("x", &[37, 320], 1.0).unwrap();
    let format = RowFormat::new(RowKind::Int8, 320, 64).unwrap();
    let layer = Linear::new(&stored("w", format, 70), None, &Device::cpu()).unwrap();
    let wanted = layer.forward(&x).unwrap();
    isa::allow_tiles(false);
    let without_tiles = layer.forward(&x).unwrap();
    let mut others = Vec::new();
    for isa in isa::available() {
        isa::force(Some(isa));
        others.push(layer.forward(&x).unwrap());
    }
    isa::force(None);
    isa::allow_tiles(true);
    assert_eq!(without_tiles, wanted);
    for other in others {
        assert_eq!(other, wanted);
    }
    // What is no number stays so, and only in its row.
    let mut broken = x.clone();
    broken.data_mut()[5] = f32::NAN;
    let found = layer.forward(&broken).unwrap();
    assert!(found.data()[..70].iter().all(|v| v.is_nan()));
    assert_eq!(found.data()[70..], wanted.data()[70..]);
}

#[test]
fn tables_are_looked_up_row_by_row() {
    for format in formats(64) {
        let table = stored("table", format, 9);
        let plain = table.to_f32().unwrap();
        let found = Embedding::new(&table).unwrap().lookup(&[7, 0, 7]).unwrap();
        for (row, id) in [7, 0, 7].into_iter().enumerate() {
            let wanted = &plain.data()[id * 64..][..64];
            assert_eq!(&found.data()[row * 64..][..64], wanted, "{}", format.name());
        }
    }
}

#[test]
fn kernels_of_convolutions_may_be_quantised() {
    let cpu = Device::cpu();
    let x = synthetic::value("x", &[1, 6, 5, 4], 1.0).unwrap();
    let plain = synthetic::value("k", &[8, 4, 3, 3], 0.3).unwrap();
    for (kind, rotation) in [(RowKind::F8E4M3, 0), (RowKind::Int8, 0), (RowKind::Int8, 4)] {
        let format = RowFormat::new(kind, 36, rotation).unwrap();
        let weight = Stored::from_f32(&plain, Dtype::Rows(format)).unwrap();
        let wanted = Stored::from(&weight.to_f32().unwrap());
        let conv = |w: &Stored| Conv2d::new(w, None, 1, Padding::Same(1), &cpu).unwrap();
        let off = distance(
            &conv(&weight).forward(&x).unwrap(),
            &conv(&wanted).forward(&x).unwrap(),
        );
        assert!(off < 1e-6, "{}: {off}", format.name());
    }
}

/// A copy on a device takes what the weight takes in its file, and gives it back as it was.
#[test]
fn copies_on_devices_stay_packed() {
    let device = Device::register_sim(7411, 1 << 20).unwrap();
    let x = synthetic::value("x", &[20, 128], 1.0).unwrap();
    for format in formats(128) {
        let weight = stored("w", format, 64);
        let here = Linear::new(&weight, None, &Device::cpu()).unwrap();
        let before = device.used();
        let there = Linear::new(&weight, None, &device).unwrap();
        assert_eq!(device.used() - before, weight.bytes().len() as u64);
        let y = {
            let there = there.forward(&x.to(&device).unwrap()).unwrap();
            there.to(&Device::cpu()).unwrap()
        };
        assert_eq!(y, here.forward(&x).unwrap(), "{}", format.name());
        assert_eq!(there.weight().unwrap(), weight, "{}", format.name());
        there.slot().move_to(&Device::cpu()).unwrap();
        assert_eq!(device.used(), before);
        assert_eq!(there.weight().unwrap(), weight, "{}", format.name());
    }
}
