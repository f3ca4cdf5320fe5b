//! Where the starter model is: a folder that comes with the program and is searched after the user's own.

use std::path::{Path, PathBuf};

/// Beside the program, or in the working directory.
const NAME: &str = "starter";

/// The starter folder of this process, if there is one.
pub(crate) fn find() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let here = std::env::current_dir().ok();
    find_for(program.as_deref(), here.as_deref())
}

/// The first that has models: beside the program, where packages install it, up the tree from the program (a program built
/// in a checkout is in `target`), in the working directory.
fn find_for(program: Option<&Path>, here: Option<&Path>) -> Option<PathBuf> {
    let folder = program.and_then(Path::parent);
    let beside = folder.map(|folder| folder.join(NAME));
    let shared = folder
        .and_then(Path::parent)
        .map(|prefix| prefix.join("share/fresco").join(NAME));
    let above = folder
        .into_iter()
        .flat_map(|folder| folder.ancestors().skip(1));
    beside
        .into_iter()
        .chain(shared)
        .chain(above.map(|folder| folder.join(NAME)))
        .chain(here.map(|here| here.join(NAME)))
        .find(|starter| models(starter).is_dir())
}

/// Its model folders.
pub(crate) fn models(starter: &Path) -> PathBuf {
    starter.join("models")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_folder_with_models_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let program = root.join("tree/target/release/fresco");
        let here = root.join("here");
        let found = || find_for(Some(&program), Some(&here));
        let make =
            |folder: &str| std::fs::create_dir_all(root.join(folder).join("models")).unwrap();
        // A folder without models is none.
        std::fs::create_dir_all(root.join("tree/target/release/starter")).unwrap();
        assert_eq!(found(), None);
        assert_eq!(find_for(None, None), None);
        // From the last place that is looked at to the first.
        for place in [
            "here/starter",
            "starter",
            "tree/starter",
            "tree/target/share/fresco/starter",
            "tree/target/release/starter",
        ] {
            make(place);
            assert_eq!(found(), Some(root.join(place)));
        }
        assert_eq!(find_for(None, Some(&here)), Some(root.join("here/starter")));
    }
}
