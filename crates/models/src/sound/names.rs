//! Weights that are trained as a direction and its length, under the name that layers look for.

use std::collections::BTreeMap;

use crate::store::Origin;

/// Endings of the two tensors, length first.
const PAIRS: [[&str; 2]; 2] = [
    [
        ".parametrizations.weight.original0",
        ".parametrizations.weight.original1",
    ],
    [".weight_g", ".weight_v"],
];

/// Keys with where they are, from names that follow `prefix` in a file: pairs of length and direction become one weight.
/// Where `turned` says so of a layer's name, it makes a sequence longer, and its kernels (in, out, length) become the rows
/// of a matrix (length * out, in) under `turned.weight`, its bias a value named `shift`.
pub fn unnormed<'a>(
    names: impl IntoIterator<Item = &'a str>,
    prefix: &str,
    turned: impl Fn(&str) -> bool,
) -> BTreeMap<String, Origin> {
    let mut keys = BTreeMap::new();
    let whole = |name: &str| format!("{prefix}{name}");
    for name in names {
        let pair = PAIRS
            .iter()
            .find_map(|pair| Some((name.strip_suffix(pair[0])?, pair)));
        if let Some((layer, [_, direction])) = pair {
            let made = Origin::Normed {
                length: whole(name),
                direction: whole(&format!("{layer}{direction}")),
            };
            add(&mut keys, layer, "weight", made, turned(layer));
            continue;
        }
        if PAIRS.iter().any(|pair| name.ends_with(pair[1])) {
            continue;
        }
        let origin = Origin::Whole(whole(name));
        match name.rsplit_once('.') {
            Some((layer, part @ ("weight" | "bias"))) if turned(layer) => {
                add(&mut keys, layer, part, origin, true);
            }
            _ => {
                keys.insert(name.to_owned(), origin);
            }
        }
    }
    keys
}

fn add(keys: &mut BTreeMap<String, Origin>, layer: &str, part: &str, from: Origin, turned: bool) {
    let (key, origin) = match (turned, part) {
        (false, _) => (format!("{layer}.{part}"), from),
        (true, "weight") => (
            format!("{layer}.turned.weight"),
            Origin::Turned {
                from: Box::new(from),
                order: vec![2, 1, 0],
                joined: 2,
            },
        ),
        (true, _) => (format!("{layer}.shift"), from),
    };
    keys.insert(key, origin);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_directions_become_weights() {
        let names = [
            "a.bias",
            "a.weight_g",
            "a.weight_v",
            "up.bias",
            "up.parametrizations.weight.original0",
            "up.parametrizations.weight.original1",
            "b.alpha",
        ];
        let keys = unnormed(names, "vae.", |layer| layer == "up");
        let found: Vec<&str> = keys.keys().map(String::as_str).collect();
        assert_eq!(
            found,
            [
                "a.bias",
                "a.weight",
                "b.alpha",
                "up.shift",
                "up.turned.weight"
            ]
        );
        assert_eq!(
            keys["a.weight"].names(),
            ["vae.a.weight_v", "vae.a.weight_g"]
        );
    }
}
