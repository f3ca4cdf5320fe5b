//! Which room may know which. A new arrow is a decision, made here first.

use crate::metadata::Metadata;

/// Room, and the rooms it may depend on. Arrows that only tests use are free.
const ALLOWED: &[(&str, &[&str])] = &[
    ("fresco-graph-macros", &[]),
    ("fresco-graph", &["fresco-graph-macros"]),
    ("fresco-tensor", &[]),
    // Paths and picture files: nodes and server both need them and must not know each other.
    ("fresco-files", &[]),
    // Coders and containers of films and sound: heavy dependencies that only nodes and the decoding process need.
    ("fresco-media", &[]),
    ("fresco-models", &["fresco-tensor"]),
    // What is asked of memory, which the engine hands out, has one type.
    ("fresco-memory", &["fresco-placement", "fresco-tensor"]),
    (
        "fresco-nodes",
        &[
            "fresco-graph",
            "fresco-tensor",
            "fresco-files",
            "fresco-media",
            "fresco-models",
            "fresco-memory",
        ],
    ),
    ("fresco-python", &["fresco-graph", "fresco-tensor"]),
    // Who takes which job: pure, so that the simulator runs the same functions.
    ("fresco-placement", &[]),
    ("fresco-engine", &["fresco-graph", "fresco-placement"]),
    // The broker: jobs on their way to workers elsewhere, and their files.
    (
        "fresco-cluster",
        &[
            "fresco-engine",
            "fresco-graph",
            "fresco-files",
            // What memory is told, which is the same here and elsewhere.
            "fresco-memory",
            "fresco-placement",
        ],
    ),
    (
        "fresco-server",
        // What the memory room reports, and what other fronts and workers say, is turned into the API's JSON once, here.
        &[
            "fresco-cluster",
            "fresco-engine",
            "fresco-graph",
            "fresco-files",
            "fresco-memory",
        ],
    ),
    (
        "fresco",
        &[
            "fresco-graph",
            "fresco-tensor",
            "fresco-files",
            "fresco-media",
            "fresco-models",
            "fresco-memory",
            "fresco-nodes",
            "fresco-python",
            "fresco-engine",
            "fresco-server",
            "fresco-cluster",
        ],
    ),
    // Tools see the program from outside.
    ("fresco-tests", &[]),
    // Except these: one measures the kernels, the planner and networks, one makes model files as the tensor room writes them, and one
    // runs networks by themselves.
    (
        "fresco-bench",
        &[
            "fresco-tensor",
            "fresco-media",
            "fresco-memory",
            "fresco-models",
            "fresco-synth",
            "fresco-tests",
        ],
    ),
    ("fresco-synth", &["fresco-tensor"]),
    ("fresco-gold", &["fresco-tensor", "fresco-models"]),
    ("fresco-sim", &["fresco-placement"]),
    ("xtask", &[]),
];

pub(super) fn check(metadata: &Metadata) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in metadata.packages.iter().filter(|package| package.member) {
        if !ALLOWED.iter().any(|(room, _)| *room == package.name) {
            complaints.push(format!(
                "{} is not in the table of rooms (tools/xtask/src/tidy/arrows.rs)",
                package.name
            ));
        }
    }
    for (from, to) in metadata.own_arrows() {
        let known = ALLOWED.iter().find(|(room, _)| *room == from);
        if known.is_some_and(|(_, may)| !may.contains(&to.as_str())) {
            complaints.push(format!("{from} must not depend on {to}"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::tests::fake;

    #[test]
    fn allowed_arrows_pass() {
        let metadata = fake(
            &["fresco-graph", "fresco-engine", "fresco-server", "fresco"],
            &[
                ("fresco-engine", "fresco-graph", None),
                ("fresco-server", "fresco-engine", None),
                ("fresco", "fresco-server", None),
            ],
        );
        assert!(check(&metadata).is_empty());
    }

    #[test]
    fn a_forbidden_arrow_fails() {
        let metadata = fake(
            &["fresco-server", "fresco-tensor"],
            &[("fresco-server", "fresco-tensor", None)],
        );
        assert_eq!(
            check(&metadata),
            ["fresco-server must not depend on fresco-tensor"]
        );
    }

    #[test]
    fn a_forbidden_build_arrow_fails_and_a_test_arrow_does_not() {
        let build = [("fresco-engine", "fresco-nodes", Some("build"))];
        let test = [("fresco-engine", "fresco-nodes", Some("dev"))];
        let members = ["fresco-engine", "fresco-nodes"];
        assert_eq!(check(&fake(&members, &build)).len(), 1);
        assert_eq!(check(&fake(&members, &test)).len(), 0);
    }

    #[test]
    fn nothing_depends_on_the_program() {
        for (room, may) in ALLOWED {
            assert!(!may.contains(&"fresco"), "{room}");
        }
    }

    #[test]
    fn a_room_that_is_not_in_the_table_fails() {
        assert_eq!(check(&fake(&["fresco-attic"], &[])).len(), 1);
    }
}
