//! Sizes of decoders whose layers are not all alike, as Gemma 4's: layers that see everything have wider heads, and the last
//! layers of some look at keys and values of layers before them.

use super::config::{LayerSizes, PerLayer};
use super::layout::PER_LAYER_TABLE;
use crate::error::{ModelError, Result};
use crate::store::WeightStore;

/// One of so many layers sees everything, where widths do not say which.
pub(super) const EVERY: usize = 6;

/// Layers of published sizes that share, and how many of the first have keys and values of their own. Their files have
/// matrices for the others too, which nobody uses.
const SHARING: [(usize, usize); 2] = [(35, 15), (42, 24)];

fn key(layer: usize, name: &str) -> String {
    format!("model.layers.{layer}.{name}.weight")
}

/// The first size of a weight that must be there.
fn rows(store: &WeightStore, layer: usize, name: &str) -> Result<usize> {
    let key = key(layer, name);
    match store.shape(&key).map(<[usize]>::first) {
        Some(Some(rows)) => Ok(*rows),
        Some(None) => Err(ModelError::Shape {
            file: store.file().to_owned(),
            key,
            expected: "rows".to_owned(),
            found: Vec::new(),
        }),
        None => Err(ModelError::Missing {
            file: store.file().to_owned(),
            key,
        }),
    }
}

/// What each layer is told of every token by itself; none where layers are told nothing.
pub(super) fn per_layer(store: &WeightStore, layers: usize) -> Result<Option<PerLayer>> {
    let Some(shape) = store.shape(PER_LAYER_TABLE) else {
        return Ok(None);
    };
    match *shape {
        [vocabulary, all] if layers > 0 && all > 0 && all.is_multiple_of(layers) => {
            Ok(Some(PerLayer {
                vocabulary,
                all,
                width: all / layers,
            }))
        }
        _ => Err(ModelError::Shape {
            file: store.file().to_owned(),
            key: PER_LAYER_TABLE.to_owned(),
            expected: format!("rows for each of {layers} layers"),
            found: shape.to_vec(),
        }),
    }
}

/// The sizes of all layers.
pub(super) fn layers(store: &WeightStore, count: usize, heads: usize) -> Result<Vec<LayerSizes>> {
    let mut found = Vec::new();
    for layer in 0..count {
        found.push(alone(store, layer, heads)?);
    }
    let widest = found.last().map_or(0, |last| last.head);
    let even = found.iter().all(|sizes| sizes.head == widest);
    for (layer, sizes) in found.iter_mut().enumerate() {
        sizes.slides = if even {
            !(layer + 1).is_multiple_of(EVERY) && layer + 1 < count
        } else {
            sizes.head != widest
        };
    }
    let first = first_sharing(store, &found);
    for layer in first..count {
        let (slides, head) = (found[layer].slides, found[layer].head);
        let alike = |other: &usize| found[*other].slides == slides && found[*other].head == head;
        let Some(of) = (0..first).rfind(alike) else {
            let reason =
                format!("layer {layer} has no keys of its own, and no layer before it is like it");
            return Err(ModelError::unsupported(store.file(), reason));
        };
        found[of].lends = true;
        found[layer].kv_heads = found[of].kv_heads;
        found[layer].shares = Some(of);
    }
    Ok(found)
}

/// The first layer that looks at keys of others; the number of layers if none does.
fn first_sharing(store: &WeightStore, layers: &[LayerSizes]) -> usize {
    let count = layers.len();
    let keyless = |layer: &usize| !store.has(&key(*layer, "self_attn.k_proj"));
    if let Some(first) = (0..count).find(keyless) {
        return first;
    }
    if !store.has(PER_LAYER_TABLE) {
        return count;
    }
    // Of some, the layers that share have a wider feed-forward.
    let inner = layers.first().map_or(0, |first| first.inner);
    let wider = layers.iter().position(|sizes| sizes.inner > inner);
    let published = SHARING.iter().find(|(layers, _)| *layers == count);
    wider.or(published.map(|(_, own)| *own)).unwrap_or(count)
}

/// What the weights of one layer say.
fn alone(store: &WeightStore, layer: usize, heads: usize) -> Result<LayerSizes> {
    let head = rows(store, layer, "self_attn.q_norm")?;
    let queries = rows(store, layer, "self_attn.q_proj")?;
    let shared = store.has(&key(layer, "self_attn.k_proj"));
    let keys = if shared {
        rows(store, layer, "self_attn.k_proj")?
    } else {
        head
    };
    let kv_heads = keys.checked_div(head).unwrap_or(0);
    let whole = head > 0 && heads.checked_mul(head) == Some(queries);
    let grouped = kv_heads > 0 && keys.is_multiple_of(head) && heads.is_multiple_of(kv_heads);
    if !whole || !grouped || !head.is_multiple_of(2) {
        let reason = format!(
            "{queries} channels of queries and {keys} of keys of layer {layer} do not make {heads} heads of {head}"
        );
        return Err(ModelError::unsupported(store.file(), reason));
    }
    Ok(LayerSizes {
        head,
        turned: head,
        kv_heads,
        inner: rows(store, layer, "mlp.gate_proj")?,
        slides: false,
        keys_are_values: !store.has(&key(layer, "self_attn.v_proj")),
        shares: None,
        lends: false,
    })
}
