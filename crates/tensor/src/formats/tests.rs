use super::*;
use crate::dtype::Dtype;
use crate::stored::Stored;
use crate::synthetic;
use crate::tensor::Tensor;

fn formats(columns: usize) -> Vec<RowFormat> {
    let grid = |levels, wide_scales| {
        RowKind::Grid(GridKind {
            bits: 4,
            group: 16,
            wide_scales,
            levels,
            corrected: false,
        })
    };
    let kinds = [
        (RowKind::F8E4M3, 0),
        (RowKind::F8E5M2, 0),
        (RowKind::Int8, 0),
        (RowKind::Int8, 64),
        (RowKind::Int4 { wide_input: false }, 64),
        (RowKind::Nvfp4, 0),
        (RowKind::Mxfp8, 0),
        (grid(Levels::Usual, false), 64),
        (grid(Levels::Usual, true), 16),
        (grid(Levels::Even, false), 64),
    ];
    let formats = kinds.map(|(kind, rotation)| RowFormat::new(kind, columns, rotation).unwrap());
    formats.to_vec()
}

fn error(a: &Tensor, b: &Tensor) -> f64 {
    let pairs = a.data().iter().zip(b.data());
    let (off, of) = pairs.fold((0.0, 0.0), |(off, of), (a, b)| {
        let (a, b) = (f64::from(*a), f64::from(*b));
        (off + (a - b).powi(2), of + b * b)
    });
    (off / of).sqrt()
}

#[test]
fn what_is_written_is_near_and_written_again_the_same() {
    let plain = synthetic::value("formats", &[5, 192], 0.5).unwrap();
    for format in formats(192) {
        let dtype = Dtype::Rows(format);
        let stored = Stored::from_f32(&plain, dtype).unwrap();
        assert_eq!(stored.bytes().len(), 5 * format.row_bytes());
        assert_eq!(stored.len(), plain.len());
        let back = stored.to_f32().unwrap();
        let bound = match format.kind() {
            RowKind::Int8 | RowKind::F8E4M3 | RowKind::Mxfp8 => 0.03,
            RowKind::F8E5M2 => 0.06,
            _ => 0.14,
        };
        let off = error(&back, &plain);
        assert!(off < bound && off > 1e-4, "{}: {off}", format.name());
        let again = Stored::from_f32(&back, dtype).unwrap().to_f32().unwrap();
        assert!(error(&again, &back) < 0.1, "{}", format.name());
        let chance = Stored::by_chance(&plain, dtype, 7).unwrap();
        assert_eq!(chance, Stored::by_chance(&plain, dtype, 7).unwrap());
        assert_ne!(chance, stored, "{}", format.name());
        assert!(error(&chance.to_f32().unwrap(), &plain) < 2.5 * bound);
    }
}

/// Changes far below the steps of a format are there on average.
#[test]
fn small_changes_survive() {
    let rows = 400;
    let plain = synthetic::value("small", &[1, 64], 0.5).unwrap();
    for format in formats(64) {
        let dtype = Dtype::Rows(format);
        // The same row many times, each rounded by another chance.
        let many = Tensor::from_fn([rows, 64], |i| plain.data()[i % 64] * 1.001).unwrap();
        let back = Stored::by_chance(&many, dtype, 3)
            .unwrap()
            .to_f32()
            .unwrap();
        let mean = Tensor::from_fn([1, 64], |i| {
            (0..rows).map(|r| back.data()[r * 64 + i]).sum::<f32>() / rows as f32
        });
        let off = error(&mean.unwrap(), &plain.mul_scalar(1.001));
        assert!(off < 0.02, "{}: {off}", format.name());
    }
}

#[test]
fn zeros_stay_zeros() {
    let zeros = Tensor::zeros([3, 64]).unwrap();
    for format in formats(64) {
        let back = Stored::from_f32(&zeros, Dtype::Rows(format)).unwrap();
        let back = back.to_f32().unwrap();
        assert!(
            back.data().iter().all(|v| v.abs() < 1e-6),
            "{}",
            format.name()
        );
    }
}

#[test]
fn parts_of_rows_are_those_of_whole_rows() {
    let plain = synthetic::value("parts", &[2, 128], 0.5).unwrap();
    for format in formats(128) {
        let stored = Stored::from_f32(&plain, Dtype::Rows(format)).unwrap();
        let row = &stored.bytes()[format.row_bytes()..];
        let mut whole = vec![0.0; 128];
        format.plain(row, 0..128, &mut whole);
        let mut part = vec![0.0; 37];
        format.plain(row, 21..58, &mut part);
        assert_eq!(part, whole[21..58], "{}", format.name());
        if format.has_bytes() {
            let mut bytes = vec![0; 128];
            format.bytes_in_fours(row, 0..128, &mut bytes, (0, 4));
            let bytes: Vec<f32> = bytes.iter().map(|b| f32::from(*b as i8)).collect();
            assert_eq!(bytes, whole, "{}", format.name());
        }
    }
}

#[test]
fn impossible_formats_are_refused() {
    let refused = [
        RowFormat::new(RowKind::Int8, 0, 0),
        RowFormat::new(RowKind::Int8, 64, 8),
        RowFormat::new(RowKind::Int8, 60, 16),
        RowFormat::new(RowKind::Int8, 1 << 20, 0),
        RowFormat::new(RowKind::Int4 { wide_input: true }, 7, 0),
        RowFormat::new(
            RowKind::Affine(AffineKind {
                group: 64,
                scale: ScaleNumber::F32,
            }),
            96,
            0,
        ),
    ];
    assert!(refused.iter().all(Option::is_none));
}
