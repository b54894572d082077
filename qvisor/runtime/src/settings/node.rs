//! The node's configuration: a file in TOML that its administrator writes.
//!
//! ```toml
//! swap-dir = "/var/lib/dormouse/.swap"
//! idle-timeout = "5m"
//! allow = ["userns"]
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use vmm::process;

use super::widening::NAMES;
use super::{Asked, SetError};

/// Where it lies if no option names another file.
const USUAL: &str = "/etc/dormouse/config.toml";
/// Longest file in bytes.
const LENGTH_MAX: u64 = 1 << 20;
/// Others than the owner may write it.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The settings of a node's administrator for all containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConfig {
    /// The settings of a container that asks for nothing.
    pub default: Asked,
    /// The settings that annotations may widen.
    allow: Vec<&'static str>,
    /// The file of a fleet's key, by which snapshots are known in place of this host's own.
    pub snapshot_key_file: Option<PathBuf>,
}

/// Why a node's configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use configuration {path}: {why}; correct it")]
pub struct NodeConfigError {
    path: PathBuf,
    why: String,
}

impl NodeConfig {
    /// Reads the file that an option names, or else the usual one, which may be missing.
    pub fn load(named: Option<&Path>) -> Result<Self, NodeConfigError> {
        let path = named.unwrap_or(Path::new(USUAL));
        match read(path) {
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Ok(text) => Self::parse(&text),
            Err(error) => Err(error.to_string()),
        }
        .map_err(|why| NodeConfigError { path: path.to_owned(), why })
    }

    /// The configuration that a text is, or a reason why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            format!("line {line}: {}", error.message())
        })?;
        let mut config = Self::default();
        for (name, value) in &table {
            match (name.as_str(), value) {
                ("allow", toml::Value::Array(names)) => {
                    config.allow = names.iter().map(allowed).collect::<Result<_, _>>()?;
                }
                ("allow", _) => return Err("allow is no list of names".into()),
                ("snapshot-key-file", toml::Value::String(path)) if path.starts_with('/') => {
                    config.snapshot_key_file = Some(path.into());
                }
                ("snapshot-key-file", _) => return Err("snapshot-key-file is no absolute path".into()),
                ("snapshot", toml::Value::String(value)) if value != "none" => {
                    return Err("snapshot is no name for all containers; only none can be said of all".into());
                }
                (name, toml::Value::String(value)) => {
                    config.default.set(name, value).map_err(|error| match error {
                        SetError::Unknown => format!("there is no setting {name:?}"),
                        SetError::Value(why) => format!("{name} is {value:?}, which is {why}"),
                    })?;
                }
                (name, _) => return Err(format!("{name} is no text in quotation marks")),
            }
        }
        Ok(config)
    }

    /// Whether annotations may widen this setting.
    pub(super) fn allows(&self, name: &str) -> bool {
        self.allow.contains(&name)
    }
}

fn allowed(value: &toml::Value) -> Result<&'static str, String> {
    let name = value.as_str().ok_or("allow holds something that is no name")?;
    let known = NAMES.iter().find(|known| **known == name);
    known.copied().ok_or_else(|| format!("allow holds {name:?}, which is none of {}", NAMES.join(", ")))
}

/// Reads a file that nobody but root and the caller can have written.
fn read(path: &Path) -> io::Result<String> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    let why = if !found.is_file() {
        "it is no regular file"
    } else if found.uid() != 0 && found.uid() != process::effective_user() {
        "it is neither root's nor yours"
    } else if found.mode() & WRITABLE_BY_OTHERS != 0 {
        "others than its owner may write it"
    } else {
        let mut text = String::new();
        file.take(LENGTH_MAX).read_to_string(&mut text)?;
        return Ok(text);
    };
    Err(io::Error::other(why))
}
