//! `fresco memory`: what a running server has in memory, why, and a few ways to change it.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use fresco_cluster::protocol::memory::{FreePlanState, ModelState, Removal, RemovalState};
use fresco_graph::{Value, json, map, typed};
use fresco_server::encode_segment;
use serde::de::DeserializeOwned;

use crate::cli::{MemoryAction, MemoryViewArgs};
use crate::http_client::Server;
use crate::logging::chain;
use crate::memory_table::{overview, report, steps};
use crate::settings::token;

pub(crate) fn memory(args: &MemoryViewArgs) -> anyhow::Result<ExitCode> {
    let token = token(args.token.clone(), args.token_file.as_deref())?;
    let server = Server::new(&args.url, token, args.tls_cafile.as_deref())?;
    match (&args.action, args.watch) {
        (Some(action), _) => write(&act(&server, action, args.json)?)?,
        (None, Some(every)) => watch(&server, every, args.json)?,
        (None, None) => write(&look(&server, args.json)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// The server's answer as it is, or as text for people.
fn shown<T: DeserializeOwned>(
    value: &Value,
    as_json: bool,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<String> {
    if as_json {
        return Ok(json::to_string(value) + "\n");
    }
    let answer = typed::from_value(value).context("cannot read the server's answer")?;
    Ok(table(&answer))
}

fn look(server: &Server, as_json: bool) -> anyhow::Result<String> {
    let state = server.json("GET", "/api/memory", "", false)?;
    let now = fresco_engine::now_ms();
    shown(&state, as_json, |state| overview(state, now))
}

/// Draws over what is there, line by line, so that nothing flickers. Where there is no terminal one table follows the
/// other.
fn watch(server: &Server, every: Duration, as_json: bool) -> anyhow::Result<()> {
    let terminal = std::io::stdout().is_terminal() && !as_json;
    // The first look says whether anybody is there.
    let mut text = look(server, as_json)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot wait")?;
    runtime.block_on(async {
        let ended = tokio::signal::ctrl_c();
        tokio::pin!(ended);
        if terminal {
            write("\x1b[2J")?;
        }
        loop {
            write(&if terminal { redrawn(&text) } else { text })?;
            tokio::select! {
                _ = &mut ended => return Ok(()),
                () = tokio::time::sleep(every) => {}
            }
            // A server that is started again is watched on.
            text = look(server, as_json).unwrap_or_else(|error| chain(error.as_ref()) + "\n");
            if !terminal && !as_json {
                text.insert(0, '\n');
            }
        }
    })
}

/// From the first place of the screen, each line erased behind its end, and everything below.
fn redrawn(text: &str) -> String {
    format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))
}

fn act(server: &Server, action: &MemoryAction, as_json: bool) -> anyhow::Result<String> {
    let set = |id: &str, policy: &str| -> anyhow::Result<String> {
        let id = resolve(server, id)?;
        let body = json::to_string(&map! {"policy" => policy}.into());
        let path = format!("/api/memory/models/{}", encode_segment(&id));
        let model = server.json("PATCH", &path, &body, false)?;
        shown(&model, as_json, |model: &ModelState| {
            format!("{id}: {}\n", model.effective_policy)
        })
    };
    match action {
        MemoryAction::Keep { id } => set(id, "keep"),
        MemoryAction::Pin { id } => set(id, "pin"),
        MemoryAction::Auto { id } => set(id, "auto"),
        MemoryAction::Eject { id, force } => {
            let id = resolve(server, id)?;
            let force = if *force { "?force=1" } else { "" };
            let path = format!("/api/memory/models/{}{force}", encode_segment(&id));
            let gone = server.json("DELETE", &path, "", false)?;
            shown(&gone, as_json, |gone: &RemovalState| {
                let text = match gone.removal {
                    Removal::Deferred => "is in use, and leaves after the prompt that uses it",
                    Removal::Released => "released",
                };
                format!("{id}: {text}\n")
            })
        }
        MemoryAction::Free {
            all,
            force,
            respect,
            dry_run,
        } => {
            let body = map! {
                "unload_models" => true,
                "free_memory" => *all,
                "force" => *force,
                "retention" => if *respect { "respect" } else { "override" },
                "wait" => true,
                "dry_run" => *dry_run,
            };
            let body = json::to_string(&body.into());
            let done = server.json("POST", "/api/free", &body, true)?;
            if *dry_run {
                let plan = |state: &FreePlanState| steps(&state.plan);
                shown(&done, as_json, plan)
            } else {
                shown(&done, as_json, report)
            }
        }
    }
}

/// The model a person means: its id, or a part of it that only one has.
fn resolve(server: &Server, text: &str) -> anyhow::Result<String> {
    let models = server.json("GET", "/api/memory/models", "", false)?;
    let ids: Vec<&str> = models
        .as_list()
        .unwrap_or_default()
        .iter()
        .filter_map(|m| m.get("weights_id")?.as_str())
        .collect();
    choose(&ids, text)
}

fn choose(ids: &[&str], text: &str) -> anyhow::Result<String> {
    if ids.contains(&text) {
        return Ok(text.to_owned());
    }
    let found: Vec<&str> = ids.iter().copied().filter(|id| id.contains(text)).collect();
    match found[..] {
        [one] if !text.is_empty() => Ok(one.to_owned()),
        [] if ids.is_empty() => bail!("unknown model {text:?}: nothing is in memory"),
        [] => bail!("unknown model {text:?}; there are {}", ids.join(", ")),
        _ => bail!("{text:?} is in the names of several: {}", found.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_is_enough_if_it_is_the_only_one() {
        let ids = ["a.safetensors#vae", "a.safetensors#clip", "b#vae"];
        assert_eq!(choose(&ids, "b#vae").unwrap(), "b#vae");
        assert_eq!(choose(&ids, "clip").unwrap(), "a.safetensors#clip");
        let several = choose(&ids, "vae").unwrap_err().to_string();
        assert!(
            several.contains("several: a.safetensors#vae, b#vae"),
            "{several}"
        );
        assert!(
            choose(&ids, "x")
                .unwrap_err()
                .to_string()
                .contains("there are")
        );
        assert!(
            choose(&[], "x")
                .unwrap_err()
                .to_string()
                .contains("nothing")
        );
        assert!(choose(&["only"], "").is_err());
    }

    #[test]
    fn every_line_is_erased_behind_its_end() {
        assert_eq!(redrawn("a\nb\n"), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
    }
}
