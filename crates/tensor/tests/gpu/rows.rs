//! Rows of quantised weights that a GPU puts together from the tensors of a file: byte for byte those that main memory has.

use fresco_tensor::nn::{Linear, SlotGroup};
use fresco_tensor::{Device, Stored, open_weights, safetensors};

use crate::against::{Random, gpus};
use crate::quantised_layers::{layers, tensors};

/// So many that layers of all kinds go through pinned memory, and some of their scales too.
const ROWS: usize = 2411;
const UNITS: usize = 15;

/// Whole, in parts that begin inside a tile, and joined in another order.
#[test]
fn rows_are_put_together_on_the_gpu() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let layers = layers(ROWS, UNITS);
    let all = tensors(&layers);
    let pairs: Vec<_> = all.iter().map(|(n, s)| (n.as_str(), s)).collect();
    safetensors::write(&path, &pairs, &[]).unwrap();
    let file = open_weights(&path).unwrap();
    for layer in &layers {
        let name = format!("{}.weight", layer.name);
        let (rows, columns) = (layer.count(), layer.shape[2]);
        let later = || {
            let later = file.later(&name).unwrap();
            later.reshape([rows, columns]).unwrap()
        };
        let here = |stored: &Stored| Linear::new(stored, None, &gpu.device).unwrap();
        let whole = layer.part(0, rows);
        assert!(whole.len() > 1 << 20, "{name}: {} bytes", whole.len());
        assert!(here(&later()).weight().unwrap().bytes() == whole, "{name}");
        // As q, k and v of a layout that joins them, and of one that keeps them apart.
        let cuts = [(1200, rows - 1200), (1, 1199), (0, 1)];
        let parts = cuts.map(|(start, count)| later().unread_rows(start, count).unwrap());
        let wanted = cuts.map(|(start, count)| layer.part(start, count)).concat();
        let joined = Stored::unread_joined(&parts).unwrap();
        assert!(here(&joined).weight().unwrap().bytes() == wanted, "{name}");
        let cut = later().unread_rows(7, rows - 8).unwrap();
        let wanted = layer.part(7, rows - 8);
        assert!(here(&cut).weight().unwrap().bytes() == wanted, "{name}");
        // Nothing of it came to main memory.
        assert!(cut.unread_rows(0, 1).is_some(), "{name}");
    }
}

/// Layers that have no room on the GPU come over beside its work.
#[test]
fn rows_that_stream_are_put_together_there() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let layers = layers(ROWS, UNITS);
    let all = tensors(&layers);
    let pairs: Vec<_> = all.iter().map(|(n, s)| (n.as_str(), s)).collect();
    safetensors::write(&path, &pairs, &[]).unwrap();
    let file = open_weights(&path).unwrap();
    let mut random = Random::new(76);
    for name in ["int8", "int4", "nvfp4", "grid", "affine"] {
        let later = file.later(&format!("{name}.weight")).unwrap();
        let x = random.scaled(&[3, later.shape()[1]], 0.5);
        let x = x.to(&gpu.device).unwrap();
        let run = |layer: &Linear| {
            let y = layer.forward(&x).unwrap().to(&Device::cpu()).unwrap();
            y.data().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let read = file.read(&format!("{name}.weight")).unwrap();
        let wanted = run(&Linear::new(&read, None, &gpu.device).unwrap());
        let group = SlotGroup::new();
        group.set_ahead(1);
        let streamed = Linear::in_group(&later, None, &group).unwrap();
        // Later ones may come from main memory, where it is brought meanwhile.
        for pass in 0..3 {
            assert!(run(&streamed) == wanted, "{name} {pass}");
        }
    }
}
