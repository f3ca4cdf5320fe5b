//! `extra_model_paths.yaml`: more roots for model folder types.

use std::io;
use std::path::{Path, PathBuf};

use saphyr::{MarkedYaml, Scalar, YamlData, YamlLoader};
use saphyr_parser::Parser;

use crate::contain::absolute;
use crate::dirs::home;
use crate::folders::{Folders, canonical_type};

/// Larger files are not path lists.
const MAX_BYTES: u64 = 1 << 20;

/// The file could not be used; nothing of it was applied.
#[derive(Debug, thiserror::Error)]
pub enum ExtraPathsError {
    #[error("cannot read {file}")]
    Read { file: PathBuf, source: io::Error },
    #[error("{file} is larger than {MAX_BYTES} bytes")]
    TooLarge { file: PathBuf },
    #[error("{file}, line {line}: {what}")]
    Syntax {
        file: PathBuf,
        line: usize,
        what: String,
    },
}

/// A root from the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraPath {
    pub folder: String,
    pub path: PathBuf,
    pub is_default: bool,
}

impl Folders {
    /// Reads the file and adds its roots in order. `env` looks up environment variables.
    pub fn add_extra_paths(
        &self,
        file: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<ExtraPath>, ExtraPathsError> {
        let paths = read(file, env)?;
        for p in &paths {
            tracing::info!("Adding extra search path {} {}", p.folder, p.path.display());
            self.add(&p.folder, &p.path, p.is_default);
        }
        Ok(paths)
    }
}

/// Reads the roots named in a file.
pub fn read(
    file: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<ExtraPath>, ExtraPathsError> {
    let failed = |source| ExtraPathsError::Read {
        file: file.to_path_buf(),
        source,
    };
    if file.metadata().map_err(failed)?.len() > MAX_BYTES {
        return Err(ExtraPathsError::TooLarge {
            file: file.to_path_buf(),
        });
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    parse(&text, file, env)
}

/// Parses the text of a file at `file`, whose directory relative paths start from.
fn parse(
    text: &str,
    file: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<ExtraPath>, ExtraPathsError> {
    let bad = |line: usize, what: String| ExtraPathsError::Syntax {
        file: file.to_path_buf(),
        line,
        what,
    };
    let wrong = |node: &MarkedYaml, what: &str| bad(node.span.start.line(), what.to_owned());
    let mut loader = YamlLoader::<MarkedYaml>::default();
    // People copy a line and forget the old one; the last wins, as they are used to.
    loader.allow_duplicate_keys(true);
    let parsed = Parser::new_from_str(text).load(&mut loader, false);
    if let Some(e) = parsed.err().or_else(|| loader.error().cloned()) {
        return Err(bad(e.marker().line(), e.info().to_owned()));
    }
    let docs = loader.into_documents();
    let Some(root) = docs.first() else {
        return Ok(Vec::new());
    };
    if is_null(root) {
        return Ok(Vec::new());
    }
    let YamlData::Mapping(sections) = &root.data else {
        return Err(wrong(root, "expected sections (name: ...)"));
    };
    let yaml_dir = absolute(file)
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default();
    let mut out = Vec::new();
    for (name, section) in sections {
        if is_null(section) {
            continue;
        }
        let YamlData::Mapping(entries) = &section.data else {
            let name = text_of(name).unwrap_or_default();
            return Err(wrong(
                section,
                &format!("section {name:?} is not a list of folder types"),
            ));
        };
        let mut base = None;
        let mut is_default = false;
        for (key, value) in entries {
            match text_of(key).as_deref() {
                Some("base_path") if !is_null(value) => {
                    let text =
                        text_of(value).ok_or_else(|| wrong(value, "base_path is not text"))?;
                    base = Some(absolute(&yaml_dir.join(expand(&text, env))));
                }
                Some("is_default") => is_default = truthy(value),
                _ => {}
            }
        }
        for (key, value) in entries {
            let folder = text_of(key).ok_or_else(|| wrong(key, "a folder type must be text"))?;
            if folder == "base_path" || folder == "is_default" || is_null(value) {
                continue;
            }
            let lines = lines_of(value).ok_or_else(|| {
                wrong(
                    value,
                    &format!("the value of {folder} is neither a path nor several"),
                )
            })?;
            for line in lines {
                out.push(ExtraPath {
                    folder: canonical_type(&folder).to_owned(),
                    path: absolute(&base.as_deref().unwrap_or(&yaml_dir).join(line)),
                    is_default,
                });
            }
        }
    }
    Ok(out)
}

fn is_null(node: &MarkedYaml) -> bool {
    matches!(node.data, YamlData::Value(Scalar::Null))
}

/// Scalars as text: a directory may well be called `2024` or `true`.
fn text_of(node: &MarkedYaml) -> Option<String> {
    match &node.data {
        YamlData::Value(Scalar::String(s)) => Some(s.to_string()),
        YamlData::Value(Scalar::Integer(i)) => Some(i.to_string()),
        YamlData::Value(Scalar::FloatingPoint(f)) => Some(f.to_string()),
        YamlData::Value(Scalar::Boolean(b)) => Some(b.to_string()),
        _ => None,
    }
}

fn truthy(node: &MarkedYaml) -> bool {
    match &node.data {
        YamlData::Value(Scalar::Boolean(b)) => *b,
        // Spellings of the older YAML that people still use.
        YamlData::Value(Scalar::String(s)) => {
            matches!(s.to_lowercase().as_str(), "yes" | "on" | "true")
        }
        YamlData::Value(Scalar::Integer(i)) => *i != 0,
        _ => false,
    }
}

/// One path a line; a YAML sequence is accepted too.
fn lines_of(node: &MarkedYaml) -> Option<Vec<String>> {
    if let YamlData::Sequence(items) = &node.data {
        return items.iter().map(text_of).collect();
    }
    let text = text_of(node)?;
    Some(
        text.lines()
            .map(str::trim_end)
            .filter(|l| !l.is_empty())
            .map(str::to_owned)
            .collect(),
    )
}

/// Expands `~`, `$NAME` and `${NAME}` (and `%NAME%` on Windows); unknown variables stay as written.
fn expand(path: &str, env: &dyn Fn(&str) -> Option<String>) -> String {
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with(['/', '\\']) => {
            home().map_or_else(|| path.to_owned(), |h| format!("{}{rest}", h.display()))
        }
        _ => path.to_owned(),
    };
    let mut out = String::new();
    let mut rest = path.as_str();
    while let Some(at) = rest.find(['$', '%']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (name, len) = variable(rest);
        match env(name).filter(|_| !name.is_empty()) {
            Some(value) => out.push_str(&value),
            None => out.push_str(&rest[..len]),
        }
        rest = &rest[len..];
    }
    out + rest
}

/// The variable name at the start of the text and the length of its whole spelling; an empty name if it is none.
fn variable(text: &str) -> (&str, usize) {
    if let Some(inner) = text.strip_prefix("${") {
        return inner
            .find('}')
            .map_or(("", 2), |end| (&inner[..end], end + 3));
    }
    if let Some(inner) = text.strip_prefix('$') {
        let end = inner
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(inner.len());
        return (&inner[..end], end + 1);
    }
    match text[1..].find('%') {
        Some(end) if cfg!(windows) => (&text[1..=end], end + 2),
        _ => ("", 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirs::Dirs;

    fn env(name: &str) -> Option<String> {
        (name == "MODELS").then(|| "/env/models".to_owned())
    }

    fn check(text: &str, want: &[(&str, &str)]) {
        let got = parse(text, Path::new("/etc/fresco/extra.yaml"), &env).unwrap();
        let got: Vec<_> = got
            .iter()
            .map(|p| (p.folder.as_str(), p.path.to_str().unwrap()))
            .collect();
        assert_eq!(got, want);
    }

    #[test]
    fn with_and_without_base() {
        check(
            "a111:\n    base_path: /sd\n    checkpoints: models/ckpt\n    loras: |\n        models/Lora\n        # not a comment\n    unet: /abs/unet\nempty:\nother:\n    vae: my/vae\n    custom: ../x\n",
            &[
                ("checkpoints", "/sd/models/ckpt"),
                ("loras", "/sd/models/Lora"),
                ("loras", "/sd/# not a comment"),
                ("diffusion_models", "/abs/unet"),
                ("vae", "/etc/fresco/my/vae"),
                ("custom", "/etc/x"),
            ],
        );
    }

    #[test]
    fn base_path_is_expanded_and_nothing_else() {
        check(
            "a:\n  base_path: ${MODELS}/$MODELS$NONE\n  vae: $MODELS/v\n",
            &[("vae", "/env/models/env/models$NONE/$MODELS/v")],
        );
        check(
            "a:\n  base_path: rel\n  vae: v\n",
            &[("vae", "/etc/fresco/rel/v")],
        );
        let home = home().unwrap();
        check(
            "a:\n  vae: v\n  base_path: ~/m\n",
            &[("vae", home.join("m/v").to_str().unwrap())],
        );
        assert_eq!(expand("a%b$", &env), "a%b$");
        assert_eq!(expand("${x", &env), "${x");
    }

    #[test]
    fn odd_but_fine() {
        check("", &[]);
        check("# nothing\n", &[]);
        check("a:\n  vae:\n", &[]);
        check(
            "a:\n  vae: one\n  vae: two\n",
            &[("vae", "/etc/fresco/two")],
        );
        check("a:\n  vae: 2024\n", &[("vae", "/etc/fresco/2024")]);
        check(
            "a:\n  vae: [x, y]\n",
            &[("vae", "/etc/fresco/x"), ("vae", "/etc/fresco/y")],
        );
    }

    #[test]
    fn errors_name_file_and_line() {
        for (text, line) in [
            ("a:\n  vae: x\n bad indent: [\n", 3),
            ("- x\n", 1),
            ("a:\n  vae: v\nb: text\n", 3),
            ("a:\n  vae:\n    deeper: x\n", 3),
        ] {
            let e = parse(text, Path::new("/x/extra.yaml"), &env).unwrap_err();
            let ExtraPathsError::Syntax { line: got, .. } = &e else {
                panic!("{e}")
            };
            assert_eq!(*got, line, "{text:?}: {e}");
            assert!(
                e.to_string()
                    .starts_with(&format!("/x/extra.yaml, line {line}: "))
            );
        }
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]\n";
        assert!(parse(bomb, Path::new("/x"), &env).is_err());
    }

    #[test]
    fn applied_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders::new(&Dirs::under(dir.path()));
        let file = dir.path().join("extra.yaml");
        std::fs::write(
            &file,
            "a:\n  is_default: true\n  vae: |\n    one\n    two\n  clip: c\n",
        )
        .unwrap();
        folders.add_extra_paths(&file, &env).unwrap();
        let vae = folders.roots("vae").unwrap();
        // Each line goes to the front, so the last ends up first.
        assert_eq!(vae[0], dir.path().join("two"));
        assert_eq!(vae[1], dir.path().join("one"));
        assert_eq!(
            folders.roots("text_encoders").unwrap()[0],
            dir.path().join("c")
        );
        let e = folders
            .add_extra_paths(&dir.path().join("none.yaml"), &env)
            .unwrap_err();
        assert!(matches!(e, ExtraPathsError::Read { .. }));
    }
}
