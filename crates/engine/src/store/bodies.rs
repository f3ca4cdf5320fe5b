//! Jobs as rows: how prompts, numbers and lists of nodes become columns and come back.

use std::sync::Arc;

use fresco_graph::json::{self, Style, WIRE};
use fresco_graph::{Map, Value};
use fresco_placement::JobNeeds;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{OptionalExtension, Row, ToSql, params};

use super::error::StoreError;
use super::pending::Body;
use super::record::NewJob;
use super::summary;

/// JSON that keeps what strict JSON cannot say.
const EXACT: Style = Style {
    bare_nan: true,
    ..WIRE
};

/// Keys of `extra_data` that must not reach the disk, wherever the caller left them.
const SECRETS: [&str; 2] = ["auth_token_comfy_org", "api_key_comfy_org"];

/// A number column: integers and floats apart, not-a-number as null.
pub(super) struct Number<'a>(pub(super) &'a Value);

impl ToSql for Number<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Value::Int(i) => ToSqlOutput::from(*i as i64),
            other => ToSqlOutput::from(other.as_f64().unwrap_or(f64::NAN)),
        })
    }
}

pub(super) fn read_number(row: &Row, column: usize) -> rusqlite::Result<Value> {
    Ok(match row.get_ref(column)? {
        ValueRef::Integer(i) => Value::Int(i.into()),
        ValueRef::Real(f) => Value::Float(f),
        _ => Value::Float(f64::NAN),
    })
}

/// A new job as it will be written, made on the submitter's thread.
pub(super) struct EncodedJob {
    pub(super) prompt_id: Arc<str>,
    pub(super) number: Value,
    pub(super) body: Body,
    pub(super) sensitive: Map,
    pub(super) texts: Arc<JobTexts>,
    pub(super) needs: Option<Arc<JobNeeds>>,
}

/// What the rows of a job say that does not change while it waits.
pub(super) struct JobTexts {
    prompt: String,
    extra_data: String,
    outputs: String,
    exact: Option<String>,
    create_time: Option<i64>,
    workflow_id: Option<String>,
}

impl JobTexts {
    pub(super) fn bytes(&self) -> usize {
        let exact = self.exact.as_ref().map_or(0, String::len);
        self.prompt.len() + self.extra_data.len() + self.outputs.len() + exact
    }

    /// Writes the rows of a job that has not run yet.
    pub(super) fn insert(
        &self,
        db: &rusqlite::Connection,
        seq: i64,
        number: &Value,
        prompt_id: &str,
    ) -> Result<(), StoreError> {
        let fail = StoreError::sql("save a job");
        db.prepare_cached("INSERT INTO bodies (seq, prompt, extra_data, outputs, exact) VALUES (?1, ?2, ?3, ?4, ?5)")
            .and_then(|mut s| s.execute(params![seq, self.prompt, self.extra_data, self.outputs, self.exact]))
            .map_err(&fail)?;
        db.prepare_cached(
            "INSERT INTO jobs (seq, number, prompt_id, create_time, workflow_id) VALUES (?1, ?2, ?3, ?4, ?5)",
        )
        .and_then(|mut s| {
            s.execute(params![
                seq,
                Number(number),
                prompt_id,
                self.create_time,
                self.workflow_id
            ])
        })
        .map_err(&fail)?;
        Ok(())
    }

    /// Reads them back; nothing if they are not there or not what was written.
    pub(super) fn read(db: &rusqlite::Connection, seq: i64) -> Option<Self> {
        let read = |row: &Row| {
            Ok(Self {
                prompt: row.get(0)?,
                extra_data: row.get(1)?,
                outputs: row.get(2)?,
                exact: row.get(3)?,
                create_time: row.get(4)?,
                workflow_id: row.get(5)?,
            })
        };
        let texts = db
            .prepare_cached(
                "SELECT b.prompt, b.extra_data, b.outputs, b.exact, j.create_time, j.workflow_id
                 FROM bodies b JOIN jobs j ON j.seq = b.seq WHERE b.seq = ?1",
            )
            .and_then(|mut s| s.query_row([seq], read))
            .ok()?;
        let whole = parse(
            &texts.prompt,
            &texts.extra_data,
            &texts.outputs,
            texts.exact.as_deref(),
        );
        whole.is_some().then_some(texts)
    }
}

impl EncodedJob {
    pub(super) fn new(job: NewJob, number: Value, needs: Option<JobNeeds>) -> Self {
        let NewJob {
            prompt_id,
            priority: _,
            prompt,
            mut extra_data,
            outputs,
            mut sensitive,
        } = job;
        for key in SECRETS {
            if let Some(value) = extra_data.shift_remove(key) {
                sensitive.entry(key.into()).or_insert(value);
            }
        }
        let prompt_value = Value::Map(prompt.clone());
        let extra_value = Value::from(extra_data);
        let (prompt_text, prompt_exact) = write(&prompt_value);
        let (extra_text, extra_exact) = write(&extra_value);
        let exact = (prompt_exact.is_some() || extra_exact.is_some()).then(|| {
            let prompt = prompt_exact.as_ref().unwrap_or(&prompt_text);
            format!("[{prompt},{}]", extra_exact.as_ref().unwrap_or(&extra_text))
        });
        let Value::Map(extra_data) = extra_value else {
            unreachable!("made from a map above")
        };
        let extra_data = Arc::try_unwrap(extra_data).unwrap_or_else(|shared| (*shared).clone());
        Self {
            prompt_id,
            number,
            texts: Arc::new(JobTexts {
                prompt: prompt_text,
                extra_data: extra_text,
                outputs: json::to_string(&Value::from(outputs.clone())),
                exact,
                create_time: summary::create_time(&extra_data),
                workflow_id: summary::workflow_id(&extra_data),
            }),
            body: Body {
                prompt,
                extra_data,
                outputs,
            },
            sensitive,
            needs: needs.map(Arc::new),
        }
    }
}

/// Strict JSON, and the exact form where that differs.
fn write(value: &Value) -> (String, Option<String>) {
    let mut exact = String::new();
    json::write(&mut exact, value, EXACT);
    // The words may also stand in a text, hence the comparison.
    if exact.contains("NaN") || exact.contains("Infinity") {
        let strict = json::to_string(value);
        if strict != exact {
            return (strict, Some(exact));
        }
    }
    (exact, None)
}

/// Reads a body back for a run.
pub(super) fn load(db: &rusqlite::Connection, seq: i64) -> Result<Body, StoreError> {
    let row = db
        .prepare_cached("SELECT prompt, extra_data, outputs, exact FROM bodies WHERE seq = ?1")
        .and_then(|mut s| {
            s.query_row([seq], |row| {
                let text = |i| row.get::<_, String>(i);
                Ok((
                    text(0)?,
                    text(1)?,
                    text(2)?,
                    row.get::<_, Option<String>>(3)?,
                ))
            })
            .optional()
        })
        .map_err(StoreError::sql("read a job"))?;
    row.and_then(|(prompt, extra, outputs, exact)| {
        parse(&prompt, &extra, &outputs, exact.as_deref())
    })
    .ok_or(StoreError::Unreadable { row: seq })
}

fn parse(prompt: &str, extra_data: &str, outputs: &str, exact: Option<&str>) -> Option<Body> {
    let (prompt, extra_data) = if let Some(exact) = exact {
        let pair = json::parse(exact).ok()?;
        let [prompt, extra_data] = pair.as_list()? else {
            return None;
        };
        (prompt.clone(), extra_data.clone())
    } else {
        (json::parse(prompt).ok()?, json::parse(extra_data).ok()?)
    };
    let Value::Map(prompt) = prompt else {
        return None;
    };
    let outputs = json::parse(outputs).ok()?;
    let outputs = outputs
        .as_list()?
        .iter()
        .map(|id| {
            if let Value::Str(id) = id {
                Some(id.clone())
            } else {
                None
            }
        })
        .collect::<Option<Vec<_>>>()?;
    Some(Body {
        prompt,
        extra_data: extra_data.as_map()?.clone(),
        outputs,
    })
}

/// Bytes of a body's texts.
pub(super) fn length(db: &rusqlite::Connection, seq: i64) -> rusqlite::Result<u64> {
    db.prepare_cached(
        "SELECT octet_length(prompt) + octet_length(extra_data) + octet_length(outputs)
            + coalesce(octet_length(exact), 0) FROM bodies WHERE seq = ?1",
    )?
    .query_row([seq], |row| row.get::<_, Option<i64>>(0))
    .optional()
    .map(|bytes| bytes.flatten().unwrap_or(0) as u64)
}

/// Removes a body and what was stored with it.
pub(super) fn delete(db: &rusqlite::Connection, seq: i64) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM bodies WHERE seq = ?1")?
        .execute([seq])?;
    db.prepare_cached("DELETE FROM results WHERE seq = ?1")?
        .execute([seq])?;
    Ok(())
}

/// One shared text column.
pub(super) fn text(row: &Row, column: usize) -> rusqlite::Result<Arc<str>> {
    row.get(column)
}
