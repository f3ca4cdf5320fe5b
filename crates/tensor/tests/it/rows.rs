//! Rows of quantised layers of every kind against those that are put together value by value.

use fresco_tensor::{Stored, open_weights, safetensors};

use crate::quantised_layers::{layers, tensors};

fn part_of(stored: &Stored, start: usize, count: usize) -> Stored {
    stored.unread_rows(start, count).unwrap()
}

/// Every kind of layer, at once, later, in parts that begin inside a tile, and joined.
#[test]
fn rows_are_made_of_their_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let layers = layers(300, 3);
    let all = tensors(&layers);
    let pairs: Vec<_> = all.iter().map(|(n, s)| (n.as_str(), s)).collect();
    safetensors::write(&path, &pairs, &[]).unwrap();
    let file = open_weights(&path).unwrap();
    assert_eq!(file.names().len(), layers.len());
    for layer in &layers {
        let (name, count) = (format!("{}.weight", layer.name), layer.count());
        let whole = layer.part(0, count);
        let read = file.read(&name).unwrap();
        assert_eq!(read.bytes(), whole, "{name}");
        let info = file.info(&name).unwrap();
        assert_eq!((info.dtype, &*info.shape), (read.dtype(), read.shape()));
        assert!(read.shape().ends_with(&layer.shape[1..]), "{name}");
        let later = || {
            let later = file.later(&name).unwrap();
            later.reshape([count, layer.shape[2]]).unwrap()
        };
        assert_eq!(later().bytes(), whole, "{name}");
        let parts = [
            part_of(&later(), 131, 150),
            part_of(&later(), 0, 1),
            part_of(&part_of(&later(), 20, 200), 19, 150),
            later(),
        ];
        let wanted = [(131, 150), (0, 1), (39, 150), (0, count)];
        for (part, (start, count)) in parts.iter().zip(wanted) {
            assert_eq!(
                part_of(part, 0, count).bytes(),
                layer.part(start, count),
                "{name}"
            );
        }
        let joined = Stored::unread_joined(&parts).unwrap();
        let all = wanted.map(|(start, count)| layer.part(start, count));
        let (all, row) = (all.concat(), whole.len() / count);
        // From the first part into the third.
        let some = part_of(&joined, 140, 170);
        assert_eq!(some.bytes(), &all[140 * row..310 * row], "{name}");
        assert_eq!(joined.bytes(), all, "{name}");
    }
}
