//! One request to free memory: the engine merges and hands it out, the memory room of a worker carries it out.

use serde::{Deserialize, Serialize};

/// What is to leave the memory of the workers: `POST /free`, and what nodes ask for.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FreeRequest {
    /// The models leave the devices.
    pub unload_models: bool,
    /// Also forget the results of all nodes. Implies unloading.
    pub free_memory: bool,
    /// Spare models that are to be kept.
    pub respect: bool,
    /// Pinned models too, and do not wait for the end of the prompt with what it does not use.
    pub force: bool,
    /// Only these devices; none: all.
    pub devices: Option<Vec<String>>,
    /// Only these models, by weights id or handle id; none: all.
    pub models: Option<Vec<String>>,
}

impl FreeRequest {
    pub fn is_noop(&self) -> bool {
        !self.unload_models && !self.free_memory
    }

    /// Whether it is about this device.
    pub fn names_device(&self, device: &str) -> bool {
        let names = self.devices.as_ref();
        names.is_none_or(|names| names.iter().any(|name| name == device))
    }

    /// Two requests that wait, as one: the flags add up, limits widen.
    pub fn merge(&mut self, other: Self) {
        fn widen(a: &mut Option<Vec<String>>, b: Option<Vec<String>>) {
            match (a.as_mut(), b) {
                (Some(a), Some(b)) => {
                    for name in b {
                        if !a.contains(&name) {
                            a.push(name);
                        }
                    }
                }
                _ => *a = None,
            }
        }
        self.unload_models |= other.unload_models;
        self.free_memory |= other.free_memory;
        self.respect &= other.respect;
        self.force |= other.force;
        widen(&mut self.devices, other.devices);
        widen(&mut self.models, other.models);
    }
}

/// A request that is not carried out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeNote<'a> {
    /// It asks for nothing.
    Noop,
    /// It waits for the end of this prompt.
    Deferred { prompt_id: &'a str },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Option<Vec<String>> {
        Some(list.iter().map(|s| (*s).to_owned()).collect())
    }

    #[test]
    fn requests_that_wait_become_one() {
        let mut sum = FreeRequest {
            unload_models: true,
            respect: true,
            devices: names(&["sim:0"]),
            models: names(&["a"]),
            ..FreeRequest::default()
        };
        sum.merge(FreeRequest {
            unload_models: true,
            respect: true,
            devices: names(&["sim:1", "sim:0"]),
            ..FreeRequest::default()
        });
        assert_eq!(sum.devices, names(&["sim:0", "sim:1"]));
        assert_eq!(sum.models, None, "all beats some");
        assert!(sum.respect && !sum.free_memory && !sum.force);
        sum.merge(FreeRequest {
            free_memory: true,
            force: true,
            ..FreeRequest::default()
        });
        assert!(!sum.respect && sum.free_memory && sum.force);
        assert_eq!(sum.devices, None);
    }
}
