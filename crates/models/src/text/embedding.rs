//! What textual-inversion files hold.

use std::path::Path;
use std::sync::Arc;

use fresco_tensor::weights::pickle::{Pickle, PickleKind, PickleValue};
use fresco_tensor::{Stored, WeightFile};

use crate::error::{ModelError, Result};

/// Rows that one embedding may have; far more than a prompt can use.
const MAX_ROWS: usize = 10_000;

/// The rows of an embedding for the encoder `key`, from a file of named tensors: the tensor named as the encoder, those
/// bundled with a LoRA, else the first.
pub fn read_embedding(file: &dyn WeightFile, key: &str) -> Result<Vec<Arc<[f32]>>> {
    let names = file.names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut chosen = Vec::new();
    for at in choose(&names, key) {
        chosen.push(file.read(names[at])?);
    }
    rows(file.path(), chosen)
}

/// The same from a file of torch, which may also be the parameters a trainer kept (`string_to_param`), or a list of
/// embeddings for several encoders, told apart by the `width` of their tokens.
pub fn unpickle_embedding(file: &Pickle, key: &str, width: usize) -> Result<Vec<Arc<[f32]>>> {
    let root = file.root();
    let chosen: Vec<PickleValue<'_>> = if let Some(parameters) = root.get("string_to_param") {
        tensors(parameters)
            .into_iter()
            .take(1)
            .map(|(_, t)| t)
            .collect()
    } else if root.kind() == PickleKind::List {
        let fits = |t: &PickleValue<'_>| {
            t.tensor_info()
                .is_some_and(|info| info.shape.last() == Some(&width))
        };
        let all = root.elements().flat_map(tensors).map(|(_, t)| t);
        all.filter(fits).collect()
    } else {
        let named = tensors(root);
        let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
        choose(&names, key)
            .into_iter()
            .map(|at| named[at].1)
            .collect()
    };
    let mut read = Vec::new();
    for tensor in chosen {
        read.push(tensor.read("embedding")?);
    }
    rows(file.path(), read)
}

/// The named tensors of a dictionary, or of an object that stands for one.
fn tensors(value: PickleValue<'_>) -> Vec<(&str, PickleValue<'_>)> {
    let parameters = value.state().and_then(|state| state.get("_parameters"));
    parameters
        .unwrap_or(value)
        .entries()
        .filter(|(_, tensor)| tensor.tensor_info().is_some())
        .map(|(name, tensor)| (name.text().unwrap_or_default(), tensor))
        .collect()
}

/// Which of the names to take.
fn choose(names: &[&str], key: &str) -> Vec<usize> {
    let all = |holds: &dyn Fn(&str) -> bool| -> Vec<usize> {
        (0..names.len()).filter(|at| holds(names[*at])).collect()
    };
    let bundled = |end: &str| {
        all(&|name| {
            name.strip_prefix("bundle_emb.")
                .is_some_and(|rest| rest.ends_with(end))
        })
    };
    let found = [
        all(&|name| name == key),
        bundled(".string_to_param.*"),
        bundled(&format!(".{key}")),
        (0..names.len().min(1)).collect(),
    ];
    let mut found = found.into_iter().filter(|list| !list.is_empty());
    found.next().unwrap_or_default()
}

/// One row for each token; a tensor of one dimension is one token.
fn rows(path: &Path, tensors: Vec<Stored>) -> Result<Vec<Arc<[f32]>>> {
    let wrong = |reason: String| Err(ModelError::unsupported(path.display().to_string(), reason));
    let mut rows: Vec<Arc<[f32]>> = Vec::new();
    for tensor in tensors {
        let tensor = tensor.to_f32()?;
        if let Some(&width) = tensor.shape().last().filter(|width| **width > 0) {
            if rows.len() + tensor.len() / width > MAX_ROWS {
                return wrong(format!("an embedding of more than {MAX_ROWS} tokens"));
            }
            rows.extend(tensor.data().chunks_exact(width).map(Arc::from));
        }
    }
    if rows.is_empty() {
        return wrong("it holds no embedding".to_owned());
    }
    Ok(rows)
}
