//! `fresco convert`.

use std::io::Write as _;

use anyhow::Context as _;
use fresco_graph::json::{self, Style, WIRE};
use fresco_graph::ui::NodeDefs;

use crate::assembly::Assembly;
use crate::cli::ConvertArgs;
use crate::settings::FolderSettings;
use crate::workflow_file;

/// For people: two blanks a level.
pub(crate) const PRETTY: Style = Style {
    spaces: true,
    indent: Some(2),
    ..WIRE
};

pub(crate) fn convert(args: ConvertArgs) -> anyhow::Result<()> {
    let ConvertArgs {
        file,
        object_info,
        output,
        dirs,
        log: _,
    } = args;
    let defs = match object_info {
        Some(path) => {
            let bytes = workflow_file::read(&path)?;
            let value = json::parse_bytes(&bytes)
                .with_context(|| format!("{} is not JSON", path.display()))?;
            NodeDefs::new(&value)
        }
        None => Assembly::open(&FolderSettings::resolve(dirs))?.node_defs(),
    };
    let bytes = workflow_file::read(&file)?;
    let found = workflow_file::understand(&bytes, &defs, true)
        .with_context(|| file.display().to_string())?;
    for warning in &found.warnings {
        tracing::warn!("{warning}");
    }
    let mut text = String::new();
    json::write(&mut text, &found.prompt.into(), PRETTY);
    text.push('\n');
    match output {
        Some(path) => fresco_files::write::write_atomic(&path, text.as_bytes())
            .with_context(|| format!("cannot write {}", path.display())),
        None => std::io::stdout()
            .lock()
            .write_all(text.as_bytes())
            .context("cannot write to standard output"),
    }
}
