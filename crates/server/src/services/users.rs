//! Who a request is for. Without `--multi-user` everyone is `default`.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use axum::http::StatusCode;
use fresco_files::write::write_atomic;
use fresco_files::{PathError, contain};
use fresco_graph::{Map, Value, json, lock};
use indexmap::IndexMap;
use serde::Serialize;
use uuid::Uuid;

use crate::App;
use crate::http::blocking::blocking;
use crate::http::error::{ApiError, disk_error, raised};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::http::uri_text::decode;

/// Longest user name; ids become directory names.
const MAX_NAME: usize = 120;

/// The table of users and their directories.
pub(crate) struct Users {
    dir: PathBuf,
    multi: bool,
    table: Mutex<IndexMap<String, String>>,
}

impl Users {
    pub(crate) fn load(dir: &Path, multi: bool) -> Self {
        let mut table = IndexMap::new();
        if multi {
            let file = dir.join("users.json");
            match std::fs::read(&file).map(|b| json::parse_bytes(&b)) {
                Ok(Ok(Value::Map(map))) => {
                    let entries = map
                        .iter()
                        .filter_map(|(id, name)| Some((id.to_string(), name.as_str()?.to_owned())));
                    table.extend(entries);
                }
                Ok(_) => {
                    tracing::error!(path = %file.display(), "the user table is damaged; nobody can log in");
                }
                Err(_) => {}
            }
        } else {
            table.insert("default".to_owned(), "default".to_owned());
        }
        Self {
            dir: dir.to_path_buf(),
            multi,
            table: Mutex::new(table),
        }
    }

    fn lock(&self) -> MutexGuard<'_, IndexMap<String, String>> {
        lock(&self.table)
    }

    /// Whose request it is; none for unknown and system users.
    fn id<'a>(&self, request: &'a Request) -> Option<&'a str> {
        let id = match request.header("comfy-user") {
            Some(id) if self.multi => id,
            _ => "default",
        };
        let known = !id.is_empty() && !id.starts_with("__") && self.lock().contains_key(id);
        known.then_some(id)
    }

    /// A user's directory. Asks the disk.
    fn folder(&self, id: &str) -> Option<PathBuf> {
        contain(&self.dir, id).ok().filter(|p| *p != self.dir)
    }

    fn add(&self, name: &str) -> Result<String, ApiError> {
        let bad = |text: &str| ApiError::plain(StatusCode::BAD_REQUEST, text);
        let name = name.trim();
        if name.is_empty() {
            return Err(bad("username not provided"));
        }
        if name.starts_with("__") {
            return Err(bad("System User prefix not allowed"));
        }
        if name.len() > MAX_NAME {
            return Err(bad("username is too long"));
        }
        let mut table = self.lock();
        if table.values().any(|n| n == name) {
            return Err(bad("Duplicate username."));
        }
        let id = format!("{}_{}", id_part(name), Uuid::new_v4());
        table.insert(id.clone(), name.to_owned());
        let all: Map = table
            .iter()
            .map(|(id, name)| (id.as_str().into(), name.into()))
            .collect();
        let text = json::to_python(&all.into());
        if let Err(error) = write_atomic(&self.dir.join("users.json"), text.as_bytes()) {
            table.shift_remove(&id);
            return Err(disk_error("save the user table", &error));
        }
        Ok(id)
    }
}

/// Runs of characters that do not belong into an id become one dash.
fn id_part(name: &str) -> String {
    let mut out = String::new();
    let mut gap = false;
    for c in name.chars() {
        let fits = c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if fits {
            out.push(c);
        } else if !gap {
            out.push('-');
        }
        gap = !fits;
    }
    out
}

/// The user whose request it is.
pub(crate) struct User {
    app: App,
    id: String,
}

impl User {
    /// None for unknown and system users.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        let app = request.app.clone();
        let id = app.users.id(request)?.to_owned();
        Some(Self { app, id })
    }

    /// Does something in the user's directory, off the network threads.
    pub(crate) async fn in_folder<T: Send + 'static>(
        self,
        work: impl FnOnce(&Path) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        blocking(move || match self.app.users.folder(&self.id) {
            Some(folder) => work(&folder),
            None => Err(raised(StatusCode::UNAUTHORIZED)),
        })
        .await?
    }
}

/// A user's file: the name is decoded once more if it still looks encoded.
pub(crate) fn file_path(root: &Path, name: &str) -> Result<PathBuf, PathError> {
    let name = if name.contains('%') {
        decode(name, false)
    } else {
        name.to_owned()
    };
    contain(root, &name)
}

/// Who uses this server: many by their ids, or one, whose folder is there or not.
#[derive(Serialize)]
#[serde(untagged)]
enum UsersAnswer {
    Many {
        storage: &'static str,
        users: IndexMap<String, String>,
    },
    One {
        storage: &'static str,
        migrated: bool,
    },
}

/// `GET /users`.
pub(crate) async fn get(request: Request) -> Answer {
    let app = request.app.clone();
    let users = &app.users;
    let storage = "server";
    let answer = if users.multi {
        let users = users.lock().clone();
        UsersAnswer::Many { storage, users }
    } else {
        let own = users.dir.join("default");
        let migrated = blocking(move || own.is_dir()).await?;
        UsersAnswer::One { storage, migrated }
    };
    Ok(response::typed(&answer))
}

/// `POST /users`.
pub(crate) async fn post(mut request: Request) -> Answer {
    let body = request.json_map().await?;
    let Some(name) = body.get("username").and_then(Value::as_str) else {
        return Err(ApiError::trouble("'username' is missing"));
    };
    let (app, name) = (request.app.clone(), name.to_owned());
    let id = blocking(move || app.users.add(&name)).await??;
    Ok(response::json(&id.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_safe_directory_names() {
        assert_eq!(id_part("Ann  Lee/../x"), "Ann-Lee-x");
        assert_eq!(id_part("a_b-c9"), "a_b-c9");
    }

    #[test]
    fn names_are_checked_and_saved() {
        let dir = tempfile::tempdir().unwrap();
        let users = Users::load(dir.path(), true);
        let id = users.add("Ann").unwrap();
        assert!(id.starts_with("Ann_"));
        for (name, why) in [
            ("Ann", "Duplicate username."),
            ("  ", "username not provided"),
            ("__x", "System User prefix not allowed"),
        ] {
            assert!(
                matches!(users.add(name), Err(ApiError::Plain(StatusCode::BAD_REQUEST, t)) if t == why),
                "{name}"
            );
        }
        let again = Users::load(dir.path(), true);
        assert_eq!(again.lock().get(&id).map(String::as_str), Some("Ann"));
    }
}
