//! Arrows between the folders of a room that is large enough to have layers. Between rooms Cargo checks them, inside of a room
//! only this rule does.

use super::{code::without_prose, complain};
use crate::tree::Source;

/// A folder and what its files do not name.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "crates/server/src/http/",
        &["crate::services", "crate::routes"],
    ),
    ("crates/server/src/services/", &["crate::routes"]),
];

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (folder, upper) in LAYERS {
        let inside = |source: &&Source| source.path.starts_with(folder);
        for source in sources.iter().filter(inside) {
            for (index, line) in without_prose(&source.text).lines().enumerate() {
                if let Some(name) = upper.iter().find(|name| line.contains(**name)) {
                    let text = format!("{name} is above {folder}");
                    complaints.push(complain(source, index + 1, &text));
                }
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_layers_do_not_know_upper_ones() {
        let complaints = |path: &str| {
            let source = Source {
                path: path.to_owned(),
                text: "use crate::routes::table;\n/// See crate::services.".to_owned(),
            };
            check(&[source]).len()
        };
        assert_eq!(complaints("crates/server/src/http/body.rs"), 1);
        assert_eq!(complaints("crates/server/src/services/hub/relay.rs"), 1);
        assert_eq!(complaints("crates/server/src/routes/dispatch.rs"), 0);
    }
}
