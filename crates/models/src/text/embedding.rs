//! What textual-inversion files hold.

use std::sync::Arc;

use fresco_tensor::{Tensor, WeightFile};

use crate::error::{ModelError, Result};

/// Rows that one embedding may have; far more than a prompt can use.
const MAX_ROWS: usize = 10_000;

/// The rows of an embedding for the encoder `key` whose tokens have `width` numbers.
///
/// In order: the parameters of `string_to_param`, a list of tensors of the right width, the tensor named as the encoder,
/// embeddings bundled with a LoRA, else the first tensor.
pub fn read_embedding(file: &dyn WeightFile, key: &str, width: usize) -> Result<Vec<Arc<[f32]>>> {
    let names = file.names();
    let chosen = choose(file, &names, key, width);
    if chosen.is_empty() {
        let reason = "it holds no embedding";
        return Err(ModelError::unsupported(
            file.path().display().to_string(),
            reason,
        ));
    }
    let mut rows = Vec::new();
    for name in chosen {
        let tensor = file.read(name)?.to_f32()?;
        rows.extend(split(&tensor));
        if rows.len() > MAX_ROWS {
            let reason = format!("an embedding of more than {MAX_ROWS} tokens");
            return Err(ModelError::unsupported(
                file.path().display().to_string(),
                reason,
            ));
        }
    }
    Ok(rows)
}

fn choose<'a>(
    file: &dyn WeightFile,
    names: &'a [String],
    key: &str,
    width: usize,
) -> Vec<&'a String> {
    let all = |holds: &dyn Fn(&str) -> bool| -> Vec<&'a String> {
        names.iter().filter(|name| holds(name)).collect()
    };
    if let Some(first) = names.iter().find(|n| n.starts_with("string_to_param.")) {
        return vec![first];
    }
    // A list of dictionaries: `0.name`, `1.name`.
    let is_item = |name: &str| {
        let number = name.split_once('.').map(|(number, _)| number);
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    if !names.is_empty() && names.iter().all(|name| is_item(name)) {
        return all(&|name| {
            file.info(name)
                .is_some_and(|info| info.shape.last() == Some(&width))
        });
    }
    if let Some(name) = names.iter().find(|name| *name == key) {
        return vec![name];
    }
    let bundled = |end: &str| {
        all(&|name| {
            name.strip_prefix("bundle_emb.")
                .is_some_and(|rest| rest.ends_with(end))
        })
    };
    for end in [".string_to_param.*".to_owned(), format!(".{key}")] {
        let found = bundled(&end);
        if !found.is_empty() {
            return found;
        }
    }
    names.iter().take(1).collect()
}

/// One row for each token; a tensor of one dimension is one token.
fn split(tensor: &Tensor) -> Vec<Arc<[f32]>> {
    match tensor.shape().last() {
        None | Some(0) => Vec::new(),
        Some(&width) => tensor.data().chunks_exact(width).map(Arc::from).collect(),
    }
}
