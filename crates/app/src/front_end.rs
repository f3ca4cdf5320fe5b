//! Which page `/` shows, and what comes with it: templates and node documentation.

use std::path::PathBuf;

use fresco_files::Dirs;
use fresco_server::FrontEnd as Shown;

use crate::python::{Sites, TemplateFiles};
use crate::settings::FrontEnd;

/// What `/` shows, and folders that go with it.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) shown: Shown,
    pub(crate) version: Option<String>,
    pub(crate) templates: Option<TemplateFiles>,
    pub(crate) templates_version: Option<String>,
    pub(crate) docs: Option<PathBuf>,
}

impl Pages {
    /// Resolves the choice. A front-end that is asked for and missing is a warning with what to do, not an end: the API
    /// works without it.
    pub(crate) fn find(choice: &FrontEnd, python: Option<&std::path::Path>, dirs: &Dirs) -> Self {
        if matches!(choice, FrontEnd::Page | FrontEnd::Status) {
            let shown = match choice {
                FrontEnd::Status => Shown::Status,
                _ => Shown::Page,
            };
            return Self {
                shown,
                ..Self::default()
            };
        }
        let sites = Sites::find(python, &dirs.base);
        let mut pages = Self {
            docs: sites.docs().map(|d| d.folder),
            shown: Shown::Status,
            ..Self::default()
        };
        if let Some(templates) = sites.templates() {
            pages.templates_version = templates.version;
            pages.templates = Some(templates.files);
        }
        match choice {
            FrontEnd::Directory(root) => pages.shown = Shown::Folder(root.clone()),
            FrontEnd::Downloaded { folder, version } => {
                let root = dirs.web_versions.join(folder).join(version);
                if root.join("index.html").is_file() {
                    pages.shown = Shown::Folder(root);
                    pages.version = Some(version.clone());
                } else {
                    tracing::warn!(
                        "the front-end is not in {}; Fresco downloads nothing: unpack it there",
                        root.display()
                    );
                }
            }
            FrontEnd::Installed | FrontEnd::Page | FrontEnd::Status => {}
        }
        if pages.shown == Shown::Status {
            if let Some(found) = sites.front_end() {
                pages.shown = Shown::Folder(found.folder);
                pages.version = found.version;
            } else {
                tracing::warn!(
                    "the editor is not installed, / shows a status page: pip install comfyui-frontend-package, or name \
                     its place with --python or --front-end-root"
                );
            }
        }
        if let Some(version) = &pages.version {
            tracing::info!("ComfyUI frontend version: {version}");
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn choices_lead_to_folders() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(&dir.path().join("base"));
        let site = dir.path().join("site");
        let packaged = site.join("comfyui_frontend_package/static");
        fs::create_dir_all(&packaged).unwrap();
        fs::write(packaged.join("index.html"), "x").unwrap();
        fs::create_dir_all(site.join("comfyui_frontend_package-1.2.3.dist-info")).unwrap();
        let find = |choice: &FrontEnd| Pages::find(choice, Some(&site), &dirs);

        assert_eq!(find(&FrontEnd::Page).shown, Shown::Page);
        assert_eq!(find(&FrontEnd::Status).shown, Shown::Status);
        let installed = find(&FrontEnd::Installed);
        assert_eq!(
            (installed.shown, installed.version.as_deref()),
            (Shown::Folder(packaged.clone()), Some("1.2.3"))
        );
        let own = dir.path().join("own");
        assert_eq!(
            find(&FrontEnd::Directory(own.clone())).shown,
            Shown::Folder(own)
        );

        let choice = FrontEnd::Downloaded {
            folder: "a_b".into(),
            version: "1.0.0".into(),
        };
        assert_eq!(find(&choice).shown, Shown::Folder(packaged));
        let downloaded = dirs.web_versions.join("a_b/1.0.0");
        fs::create_dir_all(&downloaded).unwrap();
        fs::write(downloaded.join("index.html"), "x").unwrap();
        assert_eq!(find(&choice).shown, Shown::Folder(downloaded));
    }

    #[test]
    fn a_missing_editor_is_the_status_page() {
        let dir = tempfile::tempdir().unwrap();
        let pages = Pages::find(
            &FrontEnd::Installed,
            Some(dir.path()),
            &Dirs::under(dir.path()),
        );
        assert_eq!(pages.shown, Shown::Status);
        assert!(pages.templates.is_none() && pages.docs.is_none());
    }
}
