//! `/settings`: one JSON file per user.

use std::path::Path;
use std::sync::Mutex;

use axum::http::StatusCode;
use fresco_files::write::write_atomic;
use fresco_graph::{Map, Value, json, lock};

use crate::http::error::{ApiError, disk_error, raised};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::services::users::User;

const FILE: &str = "comfy.settings.json";

/// The form other programs expect the file in.
const STYLE: json::Style = json::Style {
    indent: Some(4),
    ..json::PYTHON
};

/// One change at a time: read, merge, write.
static CHANGES: Mutex<()> = Mutex::new(());

fn user(request: &Request) -> Result<User, ApiError> {
    User::of(request).ok_or_else(|| raised(StatusCode::UNAUTHORIZED))
}

async fn load_all(request: &Request) -> Result<Map, ApiError> {
    let user = user(request)?;
    user.in_folder(|folder| Ok(load(&folder.join(FILE)).settings))
        .await
}

/// What is in the file; `damaged` if it cannot be understood.
struct Loaded {
    settings: Map,
    damaged: bool,
}

fn load(file: &Path) -> Loaded {
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::error!(path = %file.display(), %error, "cannot read the settings");
            }
            return Loaded {
                settings: Map::new(),
                damaged: false,
            };
        }
    };
    match json::parse_bytes(&bytes) {
        Ok(Value::Map(map)) => Loaded {
            settings: std::sync::Arc::unwrap_or_clone(map),
            damaged: false,
        },
        other => {
            let reason = other
                .err()
                .map_or_else(|| "not an object".to_owned(), |e| e.to_string());
            tracing::error!(path = %file.display(), %reason, "the settings are damaged and taken as empty");
            Loaded {
                settings: Map::new(),
                damaged: true,
            }
        }
    }
}

fn change(root: &Path, edit: impl FnOnce(&mut Map)) -> Result<(), ApiError> {
    let _one = lock(&CHANGES);
    let file = root.join(FILE);
    let failed = |e: std::io::Error| disk_error("save the settings", &e);
    let Loaded {
        mut settings,
        damaged,
    } = load(&file);
    if damaged {
        // The user may want to rescue something from it.
        std::fs::copy(&file, root.join(format!("{FILE}.bak"))).map_err(failed)?;
    }
    edit(&mut settings);
    let mut text = String::new();
    json::write(&mut text, &settings.into(), STYLE);
    write_atomic(&file, text.as_bytes()).map_err(failed)
}

/// `GET /settings`.
pub(crate) async fn get(request: Request) -> Answer {
    Ok(response::json(&load_all(&request).await?.into()))
}

/// `GET /settings/{id}`.
pub(crate) async fn get_one(request: Request) -> Answer {
    let settings = load_all(&request).await?;
    Ok(response::json(
        settings.get(request.param(0)).unwrap_or(&Value::Null),
    ))
}

/// `POST /settings`.
pub(crate) async fn post(mut request: Request) -> Answer {
    let user = user(&request)?;
    let new = request.json_map().await?;
    user.in_folder(|folder| change(folder, |settings| settings.extend(new)))
        .await?;
    Ok(response::empty())
}

/// `POST /settings/{id}`.
pub(crate) async fn post_one(mut request: Request) -> Answer {
    let user = user(&request)?;
    let value = request.json().await?;
    let id = request.param(0).to_owned();
    user.in_folder(|folder| {
        change(folder, |settings| {
            settings.insert(id.into(), value);
        })
    })
    .await?;
    Ok(response::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        std::fs::write(&file, "{\"precious\": ").unwrap();
        assert!(load(&file).settings.is_empty());
        change(dir.path(), |s| {
            s.insert("a".into(), 1.into());
        })
        .unwrap();
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "{\n    \"a\": 1\n}"
        );
        assert_eq!(
            std::fs::read_to_string(dir.path().join("comfy.settings.json.bak")).unwrap(),
            "{\"precious\": "
        );
    }
}
