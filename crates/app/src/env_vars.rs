//! Every variable of the environment that Fresco reads.

use std::ffi::OsString;
use std::path::PathBuf;

/// `FRESCO_PORT` is `--port`, and so on for every option.
pub(crate) const PREFIX: &str = "FRESCO_";
/// Settings file to use instead of the one in the base directory.
pub(crate) const CONFIG: &str = "FRESCO_CONFIG";
/// The active virtual environment, where the editor's packages are looked for.
pub(crate) const VIRTUAL_ENV: &str = "VIRTUAL_ENV";
/// The active conda environment, likewise.
pub(crate) const CONDA_PREFIX: &str = "CONDA_PREFIX";
/// Any value: no colours in the log (no-color.org).
pub(crate) const NO_COLOR: &str = "NO_COLOR";
/// Where programs are, ffmpeg among them.
pub(crate) const PATH: &str = "PATH";
/// Where a user's data goes on Linux.
pub(crate) const XDG_DATA_HOME: &str = "XDG_DATA_HOME";
/// Where a user's data goes on Windows.
pub(crate) const LOCALAPPDATA: &str = "LOCALAPPDATA";

/// The variable of an option: `max-upload-size` is `FRESCO_MAX_UPLOAD_SIZE`.
pub(crate) fn of_option(long: &str) -> String {
    format!("{PREFIX}{}", long.replace('-', "_").to_uppercase())
}

/// A variable that is set and not empty.
pub(crate) fn get(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

pub(crate) fn path(name: &str) -> Option<PathBuf> {
    get(name).map(PathBuf::from)
}

/// A variable as text, for the paths in `extra_model_paths.yaml` that name some.
pub(crate) fn text(name: &str) -> Option<String> {
    get(name)?.into_string().ok()
}

/// All variables that are text, for the process of the packs.
pub(crate) fn all() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
