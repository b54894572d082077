//! Arguments of the command line.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::hibernate::{Reap, Wishes};
use crate::jail::mitigations::Mitigations;
use crate::mounts::Volume;
use crate::state::{Root, StateError};

/// Runs programs in sandboxes that hibernate.
#[derive(Debug, Parser)]
#[command(name = "dormouse", version, about)]
pub struct Cli {
    /// Directory of the sandboxes' state [default: $DORMOUSE_ROOT, or /run/dormouse for root, or $XDG_RUNTIME_DIR/dormouse]
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,
    /// File that errors and remarks are appended to
    #[arg(long, global = true, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Format of that file
    #[arg(long, global = true, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Log more
    #[arg(long, global = true)]
    pub debug: bool,
    /// Not supported: let systemd manage control groups
    #[arg(long, global = true)]
    pub systemd_cgroup: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program on a copy-on-write view of the host; nothing on the host changes
    Do(Box<DoArgs>),
    /// Create a container from a bundle; it waits for its start
    Create(Box<CreateArgs>),
    /// Start the program of a created container
    Start { id: String },
    /// Create and start a container, wait for its end, and delete it
    Run {
        #[command(flatten)]
        create: Box<CreateArgs>,
        /// Come back once it has started
        #[arg(long, short)]
        detach: bool,
    },
    /// Delete a container that has ended
    Delete {
        id: String,
        /// End it first
        #[arg(long, short)]
        force: bool,
    },
    /// Write a default config.json
    Spec {
        /// Where to write it
        #[arg(long, short, value_name = "DIR", default_value = ".")]
        bundle: PathBuf,
    },
    /// List the sandboxes that run, and the containers
    List {
        /// As a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show a sandbox's state as the OCI runtime specification has it
    State { id: String },
    /// Run a further program in a running sandbox; wakes one that is hibernated
    Exec(Box<super::exec::ExecArgs>),
    /// Send a signal to a sandbox's first process
    Kill {
        id: String,
        /// Name or number
        #[arg(default_value = "TERM")]
        signal: String,
        /// To every process in it
        #[arg(long, short)]
        all: bool,
    },
    /// Put a sandbox's memory on disk until it is woken
    Hibernate {
        id: String,
        /// As a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Wake a hibernated sandbox
    Wake {
        id: String,
        /// As a JSON object
        #[arg(long)]
        json: bool,
        /// How the working set comes back [default: as the sandbox was started]
        #[arg(long, value_enum)]
        reap: Option<Reap>,
    },
    /// Show what a sandbox is, and then each time it hibernates or wakes, as lines of JSON
    Events { id: String },
    /// Show a sandbox's memory by class, and how often it hibernated; does not wake it
    Stats {
        id: String,
        /// As a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say what this host offers, and which platform is chosen
    Doctor {
        /// As a JSON object
        #[arg(long)]
        json: bool,
    },
}

/// How a log file is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    pub id: String,
    /// Directory with a config.json
    #[arg(long, short, value_name = "DIR", default_value = ".")]
    pub bundle: PathBuf,
    /// Write the process ID that stands for the container to a file
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Unix socket that gets the container's terminal
    #[arg(long, value_name = "SOCKET")]
    pub console_socket: Option<PathBuf>,
    /// What runs the kernel [default: the bundle's annotation dev.dormouse.platform, or auto]
    #[arg(long, value_enum, default_value_t)]
    pub platform: PlatformChoice,
    /// Who root in the container is on the host [default: the bundle's annotation dev.dormouse.userns, or auto]
    #[arg(long, value_enum, default_value_t)]
    pub userns: crate::jail::UserNamespace,
    /// Mitigations of speculative execution for the sandbox's processes
    #[arg(long, value_enum, default_value_t)]
    pub mitigations: Mitigations,
    /// Whether sandboxes may have pages of the same programs and libraries in common; one can then learn from another's use
    #[arg(long, value_enum, default_value = "off")]
    pub share_files: Switch,
    /// Log system calls to standard error
    #[arg(long)]
    pub strace: bool,
    #[command(flatten)]
    pub hibernation: HibernationArgs,
    /// Accepted; a sandbox has no keyring of the host's
    #[arg(long, hide = true)]
    pub no_new_keyring: bool,
}

/// How a sandbox hibernates. Annotations of a bundle stand in for what is not given, but for the directory.
#[derive(Debug, Args)]
pub struct HibernationArgs {
    /// Directory for the memory of the sandbox while it hibernates [default: /var/lib/dormouse/.swap]
    #[arg(long, value_name = "DIR")]
    pub swap_dir: Option<PathBuf>,
    /// Most bytes there, as 512M or 2G [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub swap_limit: Option<u64>,
    /// How the working set comes back when the sandbox wakes [default: on]
    #[arg(long, value_enum)]
    pub reap: Option<Reap>,
    /// Hibernate after this long without a request, as 30s or 5m [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub idle_timeout: Option<Duration>,
}

impl HibernationArgs {
    /// What is asked for.
    pub fn wishes(&self) -> std::io::Result<Wishes> {
        Ok(Wishes {
            dir: self.swap_dir.as_ref().map(std::path::absolute).transpose()?,
            limit_bytes: self.swap_limit,
            reap: self.reap,
            idle_timeout: self.idle_timeout,
        })
    }
}

/// Which platform a sandbox is to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PlatformChoice {
    /// kvm where it runs ring 0 natively, else systrap
    #[default]
    Auto,
    Kvm,
    Systrap,
}

/// Something that is on or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    #[default]
    On,
    Off,
}

/// Which network a sandbox is to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum NetChoice {
    /// the caller's, loopback included
    #[default]
    Host,
    /// one of its own with nothing but a loopback interface
    None,
}

#[derive(Debug, Args)]
pub struct DoArgs {
    /// Directory to use as the root file system
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub rootfs: PathBuf,
    /// What runs the kernel
    #[arg(long, value_enum, default_value_t)]
    pub platform: PlatformChoice,
    /// Memory limit, as 512M or 2G; the kernel's own share is at most 48M more [default: 2G, or the host's memory if less]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Number of processors [default: the host's, at most 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(abi::layout::MAX_CPUS)))]
    pub cpus: Option<u32>,
    /// Most processes and threads
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub pids: u32,
    /// What the sandbox may write to its copy-on-write view, as 512M or 2G
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_size)]
    pub disk: u64,
    /// Set an environment variable, or take the caller's own one [default: what programs need, no secrets]
    #[arg(long, value_name = "K[=V]", value_parser = OsParser(env_word))]
    pub env: Vec<OsString>,
    /// Hand over the caller's whole environment, secrets included
    #[arg(long)]
    pub env_all: bool,
    /// Working directory [default: the current one if it exists inside]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Mount a host file or directory
    #[arg(long, value_name = "SRC:DST[:ro]", value_parser = OsParser(volume))]
    pub volume: Vec<Volume>,
    /// Network the sandbox sees. With `host` its programs reach all that the caller reaches, services that listen on the
    /// host's loopback alone included
    #[arg(long, value_enum, default_value_t)]
    pub net: NetChoice,
    /// Who root in the sandbox is on the host
    #[arg(long, value_enum, default_value_t)]
    pub userns: crate::jail::UserNamespace,
    /// Drive the terminal [default: when standard input and output are one]
    #[arg(long)]
    pub tty: bool,
    #[command(flatten)]
    pub hibernation: HibernationArgs,
    /// Mitigations of speculative execution for the sandbox's processes
    #[arg(long, value_enum, default_value_t)]
    pub mitigations: Mitigations,
    /// Whether sandboxes may have pages of the same programs and libraries in common; one can then learn from another's use
    #[arg(long, value_enum, default_value = "off")]
    pub share_files: Switch,
    /// Log system calls to standard error
    #[arg(long)]
    pub strace: bool,
    /// Name of the sandbox [default: a random one]
    #[arg(long)]
    pub id: Option<String>,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

impl Cli {
    /// Where state lives: `--root`, `DORMOUSE_ROOT`, or the default.
    pub fn state_root(&self) -> Result<Root, StateError> {
        let from_env = || std::env::var_os("DORMOUSE_ROOT").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let given = self.root.clone().or_else(from_env);
        // Absolute, since the working directory may change.
        let absolute = |dir: PathBuf| Ok(Root::new(std::path::absolute(&dir).unwrap_or(dir)));
        given.map_or_else(Root::default_state, absolute)
    }
}

/// A number of bytes, with a suffix K, M, G or T (powers of 1024; `KiB` and the like are taken as well).
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || "expected a number of bytes, as 512M or 2G".to_owned();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// A time, with a suffix ms, s, m or h; at least a millisecond.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let bad = || "expected a time of at least 1ms, as 30s or 5m".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    match number.checked_mul(unit_ms) {
        Some(ms @ 1..) => Ok(Duration::from_millis(ms)),
        _ => Err(bad()),
    }
}

#[derive(Clone)]
pub(super) struct OsParser<T>(pub(super) fn(&std::ffi::OsStr) -> Result<T, String>);

impl<T: Clone + Send + Sync + 'static> clap::builder::TypedValueParser for OsParser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<T, clap::Error> {
        (self.0)(value).map_err(|message| {
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{message}\n"))
                .with_cmd(command)
        })
    }
}

pub(super) fn env_pair(text: &std::ffi::OsStr) -> Result<OsString, String> {
    match text.as_bytes().iter().position(|b| *b == b'=') {
        Some(1..) => Ok(text.to_owned()),
        _ => Err(format!("--env {}: expected NAME=value", text.display())),
    }
}

/// `NAME=value`, or a name alone.
fn env_word(text: &std::ffi::OsStr) -> Result<OsString, String> {
    match text.as_bytes().first() {
        None | Some(b'=') => Err(format!("--env {}: expected NAME=value, or a NAME", text.display())),
        Some(_) => Ok(text.to_owned()),
    }
}

fn volume(text: &std::ffi::OsStr) -> Result<Volume, String> {
    let bad = |why| format!("--volume {}: {why}; expected SRC:/DST or SRC:/DST:ro", text.display());
    let mut parts = text.as_bytes().split(|b| *b == b':');
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    let (source, target) = (path(parts.next().unwrap_or_default()), path(parts.next().unwrap_or_default()));
    let read_only = match parts.next() {
        None | Some(b"rw") => false,
        Some(b"ro") => true,
        Some(_) => return Err(bad("an unknown option")),
    };
    let walks_up = target.components().any(|part| part == std::path::Component::ParentDir);
    if parts.next().is_some() || source.as_os_str().is_empty() {
        return Err(bad("not a source and a target"));
    }
    if !target.is_absolute() || walks_up || target.parent().is_none() {
        return Err(bad("the target is not an absolute path below /"));
    }
    let source = std::path::absolute(&source).map_err(|_| bad("the source has no absolute path"))?;
    // Without doubled or trailing slashes.
    let target = target.components().collect();
    Ok(Volume { source, target, read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn sizes() {
        for (text, size) in [("1K", 1024), ("2g", 2 << 30), ("512MiB", 512 << 20), ("4096", 4096)] {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for text in ["", "K", "-1", "1.5G", "2 G", "99999999999999999999", "999999999T", "1X"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, ms) in [("30s", 30_000), ("500ms", 500), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "30", "0s", "-1s", "1.5s", "1d", "99999999999999999h", "s", "1 s"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn volumes() {
        let good = volume("/src:/dst//deep/:ro".as_ref()).unwrap();
        let expected = Volume { source: "/src".into(), target: "/dst/deep".into(), read_only: true };
        assert_eq!(good, expected);
        assert!(!volume("/a:/b".as_ref()).unwrap().read_only);
        for text in ["", "/a", "/a:", ":/b", "/a:b", "/a:/b:rx", "/a:/b:ro:x", "/a:/b/../c", "/a:/"] {
            assert!(volume(text.as_ref()).is_err(), "{text}");
        }
    }

    #[test]
    fn environment_words() {
        for good in ["A=", "A=b=c", "A"] {
            assert_eq!(env_word(good.as_ref()).unwrap(), good);
        }
        for bad in ["", "=", "=x"] {
            assert!(env_word(bad.as_ref()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_programs_own_options_are_its_own() {
        let cli = Cli::try_parse_from(["dormouse", "do", "--cpus", "2", "--", "ls", "--json", "-l"]).unwrap();
        let Command::Do(args) = cli.command else { panic!("do") };
        assert_eq!(args.command, ["ls", "--json", "-l"]);
        let cli = Cli::try_parse_from(["dormouse", "do", "ls", "--cpus", "99"]).unwrap();
        let Command::Do(args) = cli.command else { panic!("do") };
        assert_eq!((args.command.len(), args.cpus), (3, None));
    }
}
