//! The configuration file, in TOML.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// The error in a configuration, as a sentence.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given, and of what")]
pub enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Syntax { path: PathBuf, source: toml::de::Error },
    #[error("the function {name} {why}")]
    Function { name: String, why: &'static str },
    #[error("{0}")]
    Whole(String),
}

/// How functions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// In sandboxes that hibernate.
    Dormouse,
    /// In containers of runc's, which are stopped.
    Runc,
    /// In containers of runc's, which are frozen, and whose memory is reclaimed.
    RuncFreeze,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    listen: SocketAddr,
    backend: BackendKind,
    runtime: Option<PathBuf>,
    #[serde(default)]
    runtime_args: Vec<String>,
    directory: PathBuf,
    budget: String,
    ports: Option<(u16, u16)>,
    #[serde(default = "concurrency")]
    concurrency: usize,
    #[serde(default = "requests_each")]
    requests_each: usize,
    #[serde(default = "start_seconds")]
    start_seconds: u64,
    #[serde(default = "request_seconds")]
    request_seconds: u64,
    #[serde(default = "root")]
    root: PathBuf,
    #[serde(default)]
    show: Vec<PathBuf>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    function: Vec<FileFunction>,
}

fn concurrency() -> usize {
    4
}

fn requests_each() -> usize {
    100
}

fn start_seconds() -> u64 {
    30
}

fn request_seconds() -> u64 {
    60
}

fn root() -> PathBuf {
    PathBuf::from("/")
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FileFunction {
    name: String,
    command: Vec<String>,
    port: Option<u16>,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionConfig {
    /// The first part of its requests' paths.
    pub name: String,
    /// With its port in the place of `{port}`.
    pub command: Vec<String>,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
}

/// A gateway's configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address at which the gateway takes requests.
    pub listen: SocketAddr,
    /// The runtime that runs functions, and how it keeps those that get no requests.
    pub backend: BackendKind,
    /// The program that runs bundles.
    pub runtime: PathBuf,
    /// Before each of its commands.
    pub runtime_args: Vec<String>,
    /// For bundles, logs, and the runtime's state.
    pub directory: PathBuf,
    /// Of all functions that are awake, together.
    pub budget_bytes: u64,
    /// Requests that a function is given at the same time.
    pub concurrency: usize,
    /// Requests at a function, those that wait included.
    pub requests_each: usize,
    /// From the start of a function until it listens.
    pub start_timeout: Duration,
    /// From the time a function is ready until its whole answer is there.
    pub request_timeout: Duration,
    /// The root file system of all functions, read only.
    pub root: PathBuf,
    /// Files and directories of this host that all functions see at their own paths, read only, whatever else is there: the
    /// functions' `/tmp` is one of their own.
    pub show: Vec<PathBuf>,
    /// Of every bundle.
    pub annotations: BTreeMap<String, String>,
    /// All functions; the index of one is its number everywhere else.
    pub functions: Vec<FunctionConfig>,
}

impl Config {
    /// # Errors
    /// When the file cannot be read, or says something that cannot be done.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let file =
            toml::from_str(&text).map_err(|source| ConfigError::Syntax { path: path.to_owned(), source })?;
        Self::check(file)
    }

    fn check(file: File) -> Result<Self, ConfigError> {
        let budget_bytes = parse_size(&file.budget).ok_or_else(|| {
            ConfigError::Whole(format!("the budget {} is no size, as 512M is", file.budget))
        })?;
        if file.concurrency == 0 || file.requests_each == 0 {
            return Err(ConfigError::Whole("concurrency and requests-each are at least 1".to_owned()));
        }
        if let Some(path) = file.show.iter().find(|path| !path.is_absolute()) {
            return Err(ConfigError::Whole(format!("{} in `show` does not begin at /", path.display())));
        }
        let default_runtime = match file.backend {
            BackendKind::Dormouse => "dormouse",
            BackendKind::Runc | BackendKind::RuncFreeze => "runc",
        };
        Ok(Self {
            listen: file.listen,
            backend: file.backend,
            runtime: file.runtime.unwrap_or_else(|| PathBuf::from(default_runtime)),
            runtime_args: file.runtime_args,
            directory: file.directory,
            budget_bytes,
            concurrency: file.concurrency,
            requests_each: file.requests_each,
            start_timeout: Duration::from_secs(file.start_seconds),
            request_timeout: Duration::from_secs(file.request_seconds),
            root: file.root,
            show: file.show,
            annotations: file.annotations,
            functions: functions(file.function, file.ports)?,
        })
    }
}

/// Gives each function its port: its own, or the next of the range that nobody has.
fn functions(
    found: Vec<FileFunction>,
    ports: Option<(u16, u16)>,
) -> Result<Vec<FunctionConfig>, ConfigError> {
    let mut names = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for function in &found {
        let fault = |why| Err(ConfigError::Function { name: function.name.clone(), why });
        if !is_name(&function.name) {
            return fault(
                "needs a name of 1 to 40 characters of a-z, 0-9, - and _ that begins with a letter",
            );
        }
        if !names.insert(function.name.clone()) {
            return fault("is named twice");
        }
        if function.command.is_empty() {
            return fault("has no command");
        }
        if function.port.is_some_and(|port| !taken.insert(port)) {
            return fault("has the port of another one");
        }
    }
    let mut free =
        ports.into_iter().flat_map(|(first, last)| first..=last).filter(|port| !taken.contains(port));
    found
        .into_iter()
        .map(|function| {
            let Some(port) = function.port.or_else(|| free.next()) else {
                return Err(ConfigError::Function {
                    name: function.name,
                    why: "has no port, and none of `ports` is left",
                });
            };
            let command =
                function.command.iter().map(|word| word.replace("{port}", &port.to_string())).collect();
            Ok(FunctionConfig { name: function.name, command, port })
        })
        .collect()
}

/// Names are part of paths, of containers' names and of URLs.
fn is_name(name: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    name.len() <= 40
        && name.bytes().all(is_plain)
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
}

/// Bytes, or with K, M or G behind them so many times 1024.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let head = "listen = '127.0.0.1:0'\nbackend = 'runc-freeze'\ndirectory = '/tmp'\n";
        let file = toml::from_str(&format!("{head}{text}")).map_err(|error| error.to_string())?;
        Config::check(file).map_err(|error| error.to_string())
    }

    #[test]
    fn functions_get_their_ports_in_the_command() {
        let config = parse(
            "budget = '3M'\nports = [7000, 7002]\n\
             [[function]]\nname = 'a'\ncommand = ['x', '{port}']\n\
             [[function]]\nname = 'b'\ncommand = ['x']\nport = 7000\n\
             [[function]]\nname = 'c'\ncommand = ['--port={port}']\n",
        )
        .unwrap();
        assert_eq!(config.budget_bytes, 3 << 20);
        assert_eq!(config.runtime, Path::new("runc"));
        let found: Vec<_> = config.functions.iter().map(|one| (one.port, one.command.join(" "))).collect();
        assert_eq!(
            found,
            [(7001, "x 7001".to_owned()), (7000, "x".to_owned()), (7002, "--port=7002".to_owned())]
        );
    }

    #[test]
    fn what_cannot_be_done_is_a_sentence() {
        let one = "[[function]]\ncommand = ['x']\nname = ";
        for (text, expected) in [
            (format!("budget = '1'\n{one}'a'\n"), "the function a has no port, and none of `ports` is left"),
            (
                format!("budget = '1'\n{one}'a'\nport = 1\n{one}'a'\nport = 2\n"),
                "the function a is named twice",
            ),
            (
                format!("budget = '1'\n{one}'a'\nport = 1\n{one}'b'\nport = 1\n"),
                "the function b has the port of another one",
            ),
            (format!("budget = '1'\n{one}'../a'\nport = 1\n"), "the function ../a needs a name"),
            (format!("budget = '1'\n{one}''\nport = 1\n"), "the function  needs a name"),
            (format!("budget = '1T'\n{one}'a'\nport = 1\n"), "the budget 1T is no size, as 512M is"),
            (
                format!("budget = '99999999999999G'\n{one}'a'\nport = 1\n"),
                "the budget 99999999999999G is no size",
            ),
            (format!("budget = '1'\nconcurrency = 0\n{one}'a'\nport = 1\n"), "concurrency and requests-each"),
            (
                format!("budget = '1'\nshow = ['/a', 'b']\n{one}'a'\nport = 1\n"),
                "b in `show` does not begin at /",
            ),
            (format!("budget = '1'\nspeed = 1\n{one}'a'\nport = 1\n"), "unknown field"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(expected), "{error}, but not {expected}");
        }
    }
}
