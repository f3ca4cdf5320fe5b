//! Networks that turn what a vision encoder saw into tokens of a prompt. Which ones there are is said in
//! [`STYLE_NETS`](crate::detect::STYLE_NETS).

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use crate::error::{ModelError, Result};
use crate::store::WeightStore;

/// A network that makes tokens of a picture.
pub trait StyleNetwork: Send + Sync {
    /// Tokens (b, n, c) of what a vision encoder saw last, (b, n, c).
    fn tokens(&self, seen: &Tensor) -> Result<Tensor>;
}

/// Builds a network from its weights.
pub type BuildStyle = fn(&WeightStore) -> Result<Box<dyn StyleNetwork>>;

/// A kind of such networks.
pub struct StyleKind {
    /// A weight that no other kind has.
    pub key: &'static str,
    pub build: BuildStyle,
}

/// The network in a file; reads nothing yet.
pub fn find(
    file: &Arc<dyn WeightFile>,
    kinds: &'static [StyleKind],
    device: Device,
) -> Result<(Arc<WeightStore>, BuildStyle)> {
    let found = kinds.iter().find(|kind| file.info(kind.key).is_some());
    let Some(kind) = found else {
        let names = file.names();
        let what = crate::detect::what_it_is(&names);
        let what = what.map_or_else(|| "no known model".to_owned(), ToOwned::to_owned);
        let keys: Vec<&str> = kinds.iter().map(|kind| kind.key).collect();
        return Err(ModelError::unsupported(
            file.path().display().to_string(),
            format!(
                "this is {what}, not a style model, which would have {}",
                keys.join(" or ")
            ),
        ));
    };
    Ok((WeightStore::open(Arc::clone(file), "", device), kind.build))
}
