//! Command line over variables over file over defaults.
//!
//! Variables and the file are turned into arguments and put before the ones that were typed, so one parser with one set of
//! checks sees them all. An option that was typed, or whose group has a member that was typed, hides the lower layers.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use saphyr::{LoadableYamlNode as _, Yaml};

use crate::env_vars;

/// The file in the base directory.
const FILE_NAME: &str = "fresco.yaml";

/// Where settings come from besides the command line.
pub(crate) struct Layers<'a> {
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Option name to values, from the file.
    pub(crate) file: Vec<(String, Vec<String>)>,
}

/// Parses `argv` with the lower layers beneath it. The result is for `Cli::from_arg_matches`.
pub(crate) fn parse(
    command: Command,
    argv: &[OsString],
    layers: &Layers,
) -> Result<ArgMatches, clap::Error> {
    let typed = command.clone().try_get_matches_from(argv)?;
    let (position, definition, matches) = match typed.subcommand() {
        None => (1, command.clone(), typed.clone()),
        Some((name, matches)) => {
            let definition = command
                .find_subcommand(name)
                .expect("it was just parsed")
                .clone();
            // Options before a command are refused, so the command is the first word.
            (2, definition, matches.clone())
        }
    };
    let beneath = arguments(definition, &matches, layers).map_err(|text| {
        command
            .clone()
            .error(clap::error::ErrorKind::InvalidValue, text)
    })?;
    if beneath.is_empty() {
        return Ok(typed);
    }
    let mut all = argv.to_vec();
    let position = position.min(all.len());
    all.splice(position..position, beneath);
    command.try_get_matches_from(all)
}

fn arguments(
    mut command: Command,
    typed: &ArgMatches,
    layers: &Layers,
) -> Result<Vec<OsString>, String> {
    command.build();
    let was_typed = |id: &str| typed.value_source(id) == Some(ValueSource::CommandLine);
    let mut hidden = BTreeSet::new();
    for mut group in command.get_groups().cloned() {
        let members: Vec<String> = group.get_args().map(|id| id.as_str().to_owned()).collect();
        if !group.is_multiple() && members.iter().any(|id| was_typed(id)) {
            hidden.extend(members);
        }
    }
    let mut arguments = Vec::new();
    for arg in command.get_arguments() {
        let (Some(long), id) = (arg.get_long(), arg.get_id().as_str()) else {
            continue;
        };
        if was_typed(id) || hidden.contains(id) {
            continue;
        }
        let name = env_vars::of_option(long);
        if let Some(value) = (layers.variable)(&name) {
            push(&mut arguments, arg, long, &[value], &name)?;
        } else if let Some((_, values)) = layers.file.iter().find(|(key, _)| key == long) {
            let values: Vec<OsString> = values.iter().map(OsString::from).collect();
            push(&mut arguments, arg, long, &values, long)?;
        }
    }
    Ok(arguments)
}

fn push(
    arguments: &mut Vec<OsString>,
    arg: &Arg,
    long: &str,
    values: &[OsString],
    source: &str,
) -> Result<(), String> {
    let flag = OsString::from(format!("--{long}"));
    // Typed twice the last one counts; a list in the file is a mistake, unless the option takes several.
    if values.len() > 1 && !matches!(arg.get_action(), ArgAction::Append) {
        return Err(format!("{source}: --{long} takes one value\n"));
    }
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        for value in values {
            match value.to_string_lossy().to_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => arguments.push(flag.clone()),
                "0" | "false" | "no" | "off" => {}
                other => return Err(format!("{source} must be true or false, not '{other}'\n")),
            }
        }
        return Ok(());
    }
    let optional = arg.get_num_args().is_some_and(|n| n.min_values() == 0);
    for value in values {
        let text = value.to_string_lossy();
        match text.as_ref() {
            // Options that may stand bare: `true` is bare, `false` is absent.
            "true" if optional => arguments.push(flag.clone()),
            "false" if optional => {}
            _ => {
                let mut argument = flag.clone();
                argument.push("=");
                argument.push(value);
                arguments.push(argument);
            }
        }
    }
    Ok(())
}

/// The settings file: the one `FRESCO_CONFIG` names, else `fresco.yaml` in the base directory, if there is one.
pub(crate) fn file(base: &Path) -> anyhow::Result<Vec<(String, Vec<String>)>> {
    use anyhow::Context as _;
    let (path, required) = match env_vars::path(env_vars::CONFIG) {
        Some(path) => (path, true),
        None => (base.join(FILE_NAME), false),
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            read(&text).map_err(|why| anyhow::anyhow!("settings file {}: {why}", path.display()))
        }
        // A base that is a file has no settings file; what is wrong with it is said by whoever needs the folder.
        Err(e)
            if !required
                && matches!(
                    e.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
        {
            Ok(Vec::new())
        }
        Err(e) => {
            Err(e).with_context(|| format!("cannot read the settings file {}", path.display()))
        }
    }
}

/// One option a key, a value or a list of values each.
fn read(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    let documents = Yaml::load_from_str(text).map_err(|e| e.to_string())?;
    let options = match documents.first() {
        None => return Ok(Vec::new()),
        Some(document) if document.is_null() => return Ok(Vec::new()),
        Some(Yaml::Mapping(options)) => options,
        Some(_) => return Err("options must stand as `name: value`".into()),
    };
    options
        .iter()
        .map(|(key, value)| {
            let key = key.as_str().ok_or("the name of an option must be text")?;
            let values = match value {
                Yaml::Sequence(list) => list
                    .iter()
                    .map(|v| scalar(key, v))
                    .collect::<Result<_, _>>()?,
                other if other.is_null() => Vec::new(),
                other => vec![scalar(key, other)?],
            };
            Ok((key.replace('_', "-"), values))
        })
        .collect()
}

fn scalar(key: &str, value: &Yaml) -> Result<String, String> {
    let number = || {
        value
            .as_integer()
            .map(|i| i.to_string())
            .or_else(|| value.as_floating_point().map(|f| f.to_string()))
    };
    let text = || value.as_str().map(str::to_owned);
    let truth = || value.as_bool().map(|b| b.to_string());
    text()
        .or_else(truth)
        .or_else(number)
        .ok_or_else(|| format!("{key} must be a value or a list of values"))
}

/// Options of the file that no command knows: a misspelling should not pass in silence.
pub(crate) fn unknown(command: &Command, file: &[(String, Vec<String>)]) -> Vec<String> {
    let commands = || std::iter::once(command).chain(command.get_subcommands());
    let known =
        |name: &str| commands().any(|c| c.get_arguments().any(|a| a.get_long() == Some(name)));
    file.iter()
        .map(|(key, _)| key.clone())
        .filter(|key| !known(key))
        .collect()
}

/// The folder that holds everything unless the command line says otherwise: where the program or the shell is, if that has
/// a `models` folder (a ComfyUI folder, a portable one), else the user's data folder. Never just any current folder: its
/// `temp` would be emptied.
pub(crate) fn default_base() -> PathBuf {
    let program = std::env::current_exe()
        .ok()
        .and_then(|p| p.parent().map(Path::to_path_buf));
    let here = std::env::current_dir().ok();
    program
        .into_iter()
        .chain(here)
        .find(|folder| folder.join("models").is_dir())
        .or_else(data_folder)
        .unwrap_or_else(|| PathBuf::from("fresco"))
}

fn data_folder() -> Option<PathBuf> {
    let home = std::env::home_dir();
    let folder = if cfg!(windows) {
        env_vars::path(env_vars::LOCALAPPDATA)
    } else if cfg!(target_os = "macos") {
        home.map(|h| h.join("Library/Application Support"))
    } else {
        env_vars::path(env_vars::XDG_DATA_HOME)
            .filter(|p| p.is_absolute())
            .or_else(|| home.map(|h| h.join(".local/share")))
    };
    Some(folder?.join("fresco"))
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;
    use crate::cli::{Cli, command};

    #[track_caller]
    fn parsed(
        line: &str,
        variables: &[(&str, &str)],
        file: &str,
    ) -> Result<(Cli, ArgMatches), String> {
        let argv: Vec<OsString> = std::iter::once("fresco")
            .chain(line.split_whitespace())
            .map(OsString::from)
            .collect();
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        let layers = Layers {
            variable: &variable,
            file: read(file)?,
        };
        let matches = parse(command(), &argv, &layers).map_err(|e| e.to_string())?;
        Ok((
            Cli::from_arg_matches(&matches).map_err(|e| e.to_string())?,
            matches,
        ))
    }

    #[test]
    fn the_command_line_wins_over_variables_over_the_file() {
        let port = |line: &str, variables: &[(&str, &str)], file: &str| {
            parsed(line, variables, file).unwrap().0.serve.network.port
        };
        assert_eq!(port("", &[], ""), 8188);
        assert_eq!(port("", &[], "port: 1\n"), 1);
        assert_eq!(port("", &[("FRESCO_PORT", "2")], "port: 1\n"), 2);
        assert_eq!(port("--port 3", &[("FRESCO_PORT", "2")], "port: 1\n"), 3);
        assert_eq!(port("--port=3", &[("FRESCO_PORT", "x")], "port: y\n"), 3);
    }

    #[test]
    fn flags_lists_and_bare_options_come_through() {
        let file = "multi-user: true\ndisable_metadata: yes\nlisten: true\nextra-model-paths-config: [a, b]\n\
                    enable-cors-header: false\nmax-upload-size: 12.5\nfast: true\n";
        let (cli, matches) = parsed("--auto-launch", &[("FRESCO_LOG_STDOUT", "0")], file).unwrap();
        assert!(
            cli.serve.network.multi_user
                && cli.serve.exec.disable_metadata
                && cli.serve.page.auto_launch
        );
        assert!(!cli.serve.log.log_stdout);
        assert_eq!(cli.serve.network.listen, "0.0.0.0,::");
        assert_eq!(
            cli.serve.dirs.extra_model_paths_config,
            [PathBuf::from("a"), PathBuf::from("b")]
        );
        assert_eq!(cli.serve.network.enable_cors_header, None);
        assert_eq!(cli.serve.network.max_upload_size, Some(12.5));
        assert!(matches.contains_id("fast"));
    }

    #[test]
    fn a_typed_flag_hides_its_group() {
        let (cli, matches) = parsed(
            "--cache-none --highvram",
            &[("FRESCO_LOWVRAM", "1")],
            "cache-lru: 5\ncpu: true\n",
        )
        .unwrap();
        assert!(cli.serve.exec.cache_none && cli.serve.exec.cache_lru.is_none());
        assert!(
            matches.get_flag("highvram")
                && !matches.get_flag("lowvram")
                && !matches.get_flag("cpu")
        );
    }

    #[test]
    fn commands_take_the_layers_they_know() {
        let (cli, _) = parsed(
            "run a.json --set 1.x=2",
            &[("FRESCO_PORT", "1")],
            "cache-none: true\nport: 2\n",
        )
        .unwrap();
        let Some(crate::cli::Task::Run(run)) = cli.command else {
            panic!("not run")
        };
        assert!(run.exec.cache_none);
        assert_eq!(run.set, ["1.x=2"]);
    }

    #[test]
    fn bad_values_say_where_they_came_from() {
        let error = parsed("", &[("FRESCO_MULTI_USER", "maybe")], "").unwrap_err();
        assert!(
            error.contains("FRESCO_MULTI_USER must be true or false"),
            "{error}"
        );
        let error = parsed("", &[], "port: [1, 2]\n").unwrap_err();
        assert!(error.contains("--port"), "{error}");
        assert!(parsed("", &[], "- a\n").is_err());
        assert!(parsed("", &[], "a: {b: 1}\n").is_err());
        assert!(parsed("", &[], ": : :\n\t").is_err());
        assert_eq!(
            unknown(&command(), &read("prot: 1\nport: 2\nset: x\n").unwrap()),
            ["prot"]
        );
    }
}
