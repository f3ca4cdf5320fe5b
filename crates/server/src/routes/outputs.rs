//! `POST /fresco/outputs/delete`: pictures a person does not want any more.

use std::path::Path;

use fresco_files::{DirType, PathError, contain, contain_file};
use fresco_graph::Value;
use serde::Serialize;

use crate::App;
use crate::http::blocking::blocking;
use crate::http::error::{ApiError, Code};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;

/// Files in one request.
const MAX_FILES: usize = 10_000;

pub(crate) async fn delete(mut request: Request) -> Answer {
    let refused = |text: String| ApiError::coded(Code::BadDeletion, text);
    let body = request
        .try_json()
        .await?
        .map_err(|e| refused(format!("the request body is not JSON: {e}")))?;
    let files = body.get("files").and_then(Value::as_list);
    let files = files.ok_or_else(|| refused("'files' is not an array".to_owned()))?;
    if files.len() > MAX_FILES {
        return Err(refused(format!("more than {MAX_FILES} files")));
    }
    // All are understood before the first goes.
    let files: Vec<Wanted> = files
        .iter()
        .map(Wanted::read)
        .collect::<Result<_, String>>()
        .map_err(refused)?;
    let app = request.app.clone();
    let answer = blocking(move || remove_all(&app, files)).await?;
    Ok(response::typed(&answer))
}

/// A file as the client named it.
#[derive(Serialize)]
struct Wanted {
    filename: String,
    subfolder: String,
    #[serde(rename = "type", serialize_with = "type_name")]
    kind: DirType,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands over references"
)]
fn type_name<S: serde::Serializer>(kind: &DirType, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(kind.as_str())
}

impl Wanted {
    fn read(value: &Value) -> Result<Self, String> {
        let text = |key: &str| match value.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Str(text)) => Ok(Some(text.to_string())),
            Some(_) => Err(format!("'{key}' of a file is not a text")),
        };
        let kind = text("type")?.ok_or("a file has no 'type'")?;
        Ok(Self {
            filename: text("filename")?.ok_or("a file has no 'filename'")?,
            subfolder: text("subfolder")?.unwrap_or_default(),
            kind: DirType::parse(&kind)
                .ok_or("the 'type' of a file is not output, input or temp")?,
        })
    }
}

/// What became of files that a client wants to be deleted.
#[derive(Serialize)]
struct DeletionAnswer {
    deleted: Vec<Wanted>,
    failed: Vec<FailedDeletion>,
}

#[derive(Serialize)]
struct FailedDeletion {
    file: Wanted,
    reason: String,
}

fn remove_all(app: &App, files: Vec<Wanted>) -> DeletionAnswer {
    let (mut deleted, mut failed) = (Vec::new(), Vec::new());
    for file in files {
        match remove(app.dirs.get(file.kind), &file) {
            Ok(()) => deleted.push(file),
            Err(reason) => failed.push(FailedDeletion { file, reason }),
        }
    }
    DeletionAnswer { deleted, failed }
}

fn remove(root: &Path, file: &Wanted) -> Result<(), String> {
    contain::check_name(&file.filename).map_err(|e| e.to_string())?;
    let name = if file.subfolder.is_empty() {
        file.filename.clone()
    } else {
        format!("{}/{}", file.subfolder, file.filename)
    };
    // A link inside the folder that leads to a file outside is refused here, not followed.
    let path = contain_file(root, &name).map_err(|e| match e {
        PathError::Missing { .. } => "there is no such file".to_owned(),
        PathError::NotAFile { .. } => "this is not a file".to_owned(),
        PathError::Io { .. } => "the file cannot be reached".to_owned(),
        other => other.to_string(),
    })?;
    std::fs::remove_file(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => e.to_string(),
    })
}
