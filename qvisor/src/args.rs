//! Arguments of the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use runtime::settings::{Asked, Sharing};
use runtime::state::{Root, StateError};
use runtime::units::{parse_size, parse_time};
use vmm::mounts::Volume;

use crate::choices::{
    HostUdsChoice, ListFormat, LogFormat, MitigationsChoice, NetChoice, PlatformChoice, ReapChoice, Switch,
    UserNamespaceChoice,
};
use crate::codec_args::CodecCommand;
use crate::diff_args::DiffCommand;
use crate::exec_args::ExecArgs;
use crate::failure::{EXIT_DO, EXIT_EXEC, EXIT_FAILURE};
use crate::fork::ForkArgs;
use crate::hibernation_args::HibernationArgs;
use crate::home::HomeArgs;
use crate::metrics::MetricsArgs;
use crate::pool::PoolArgs;
use crate::snapshot_args::{
    CheckpointArgs, OriginArgs, RestoreArgs, SnapshotCommand, StoreCommand, parse_sharing,
};
use crate::top::TopArgs;
use crate::update::UpdateArgs;
use crate::values::{OsParser, env_word, volume};

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
    /// Have systemd make the control groups of containers; needs control groups of version 2
    #[arg(long, global = true)]
    pub systemd_cgroup: bool,
    /// Accepted, and without effect; runc's
    #[arg(long, global = true, hide = true, value_name = "CHOICE")]
    pub rootless: Option<String>,
    /// Accepted, and without effect; runc's
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub criu: Option<PathBuf>,
    /// Settings of this node's administrator for all containers, in TOML [default: /etc/dormouse/config.toml, if there]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
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
        /// Accepted; the container's pid becomes a child of whoever collects orphans
        #[arg(long, hide = true)]
        no_subreaper: bool,
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
        /// Print a JSON array
        #[arg(long)]
        json: bool,
        #[arg(long, short, value_enum, default_value_t)]
        format: ListFormat,
        /// The names alone
        #[arg(long, short)]
        quiet: bool,
    },
    /// Show a sandbox's state as the OCI runtime specification has it
    State { id: String },
    /// Run a further program in a running sandbox; wakes one that is hibernated
    Exec(Box<ExecArgs>),
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
    /// Have a sandbox rest until it is resumed, whatever comes for it
    Pause { id: String },
    /// End a pause
    Resume { id: String },
    /// List the processes of a sandbox; does not wake it
    Ps {
        /// `table`: the processes inside; `json`: the process IDs that stand for them on the host, as runc lists them
        #[arg(long, short, value_enum, default_value_t)]
        format: ListFormat,
        id: String,
        /// Accepted, and without effect
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Change limits of a running container
    Update(Box<UpdateArgs>),
    /// Put a sandbox to sleep until it is woken: its memory goes to the disk, or where --home says
    Hibernate {
        id: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Wake a hibernated sandbox
    Wake {
        id: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        /// How the working set comes back [default: as the sandbox was started]
        #[arg(long, value_enum)]
        reap: Option<ReapChoice>,
    },
    /// Make a snapshot of a container, which ends then unless it is left running
    Checkpoint(CheckpointArgs),
    /// Create a container from a snapshot, let it go on, wait for its end, and delete it
    Restore(Box<RestoreArgs>),
    /// Make clones of a running sandbox, at once, from an image of it in memory; they go on in the background, as do --from has them
    Fork(Box<ForkArgs>),
    /// Keep clones of a snapshot ready, asleep, that do --from takes, until this is ended; or show what is ready
    Pool(Box<PoolArgs>),
    /// Show, check and remove snapshots
    Snapshot {
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// The store of chunks that snapshots have in common (snapshot store)
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Show what a sandbox is, and then each time it hibernates or wakes, as lines of JSON
    Events {
        id: String,
        /// Statistics of now instead, in runc's form
        #[arg(long)]
        stats: bool,
        /// Such statistics again and again, this far apart, as 5s
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        interval: Option<Duration>,
    },
    /// Show a sandbox's memory by class, and how often it hibernated; does not wake it
    Stats {
        id: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Send a sandbox's memory to the disk or to packed memory while it sleeps, or show where it is; does not wake it
    Home(HomeArgs),
    /// Say what keeps a sandbox awake, and what woke it last; does not wake it
    Why {
        id: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show all sandboxes in the terminal, with keys that hibernate, wake, enter and kill them; looking wakes none
    Top(TopArgs),
    /// Show figures of all sandboxes in Prometheus' format, once or for those who scrape them; wakes none
    Metrics(MetricsArgs),
    /// Measure the codecs that pack the memory of sleeping sandboxes
    Codec {
        #[command(subcommand)]
        command: CodecCommand,
    },
    /// Measure pages as differences from those of a base
    Diff {
        #[command(subcommand)]
        command: DiffCommand,
    },
    /// Write what a shell completes command lines by: source it, or put it where the shell looks
    Completion { shell: Shell },
    /// Write manual pages into a directory, as packages have them
    #[command(hide = true)]
    Man { directory: PathBuf },
    /// Say what bundles may ask for, as the OCI runtime specification has it
    Features,
    /// Say what this host offers, and which platform is chosen
    Doctor {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
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
    /// The platform that runs the kernel [default: as the annotations or the node's configuration say, or auto]
    #[arg(long, value_enum, default_value_t)]
    pub platform: PlatformChoice,
    /// Who root in the container is on the host [default: as the annotations or the node's configuration say, or auto]
    #[arg(long, value_enum, default_value_t)]
    pub userns: UserNamespaceChoice,
    /// Mitigations of speculative execution for the sandbox's processes [default: auto]
    #[arg(long, value_enum)]
    pub mitigations: Option<MitigationsChoice>,
    /// Whether sandboxes may have pages of the same programs and libraries in common; one can then learn from another's use
    /// [default: off]
    #[arg(long, value_enum)]
    pub share_files: Option<Switch>,
    /// Whether calls that a program makes often are patched in its memory, which is faster; programs that read their own text
    /// see it [default: on]
    #[arg(long, value_enum)]
    pub patch_calls: Option<Switch>,
    /// The use that programs may make of Unix sockets of the host that volumes show [default: none]
    #[arg(long, value_enum)]
    pub host_uds: Option<HostUdsChoice>,
    /// With whom a container that begins with a snapshot (annotation dev.dormouse.snapshot) shares pages of it that it does not write: none,
    /// snapshot (all that share it so) or a domain's name; they can learn from each other's use [default: none]
    #[arg(long, value_name = "WHOM", value_parser = parse_sharing)]
    pub share: Option<Sharing>,
    /// Log system calls to standard error
    #[arg(long)]
    pub strace: bool,
    #[command(flatten)]
    pub hibernation: HibernationArgs,
    /// Accepted; a sandbox has no keyring of the host's
    #[arg(long, hide = true)]
    pub no_new_keyring: bool,
    /// Accepted; a sandbox does not change the root of anybody else
    #[arg(long, hide = true)]
    pub no_pivot: bool,
    /// Further descriptors of this command's that the first process gets, from 3 on
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub preserve_fds: usize,
}

impl CreateArgs {
    /// The settings that the options ask for.
    pub fn asked(&self) -> std::io::Result<Asked> {
        Ok(Asked {
            platform: self.platform.into(),
            userns: self.userns.into(),
            mitigations: self.mitigations.map(Into::into),
            share_files: self.share_files.map(|switch| switch == Switch::On),
            patch_calls: self.patch_calls.map(|switch| switch == Switch::On),
            host_uds: self.host_uds.map(Into::into),
            share: self.share.clone(),
            hibernation: self.hibernation.wishes()?,
            ..Asked::default()
        })
    }
}

#[derive(Debug, Args)]
pub struct DoArgs {
    /// Directory to use as the root file system
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub rootfs: PathBuf,
    /// The platform that runs the kernel
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
    /// The most that the sandbox may write to its copy-on-write view, as 512M or 2G
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_size)]
    pub disk: u64,
    /// Set an environment variable, or take the caller's own one [default: what programs need, no secrets]
    #[arg(long, value_name = "K[=V]", value_parser = OsParser(env_word))]
    pub env: Vec<OsString>,
    /// Hand over the caller's whole environment, secrets included
    #[arg(long)]
    pub env_all: bool,
    /// Working directory, made if missing [default: the current one if it exists inside]
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
    pub userns: UserNamespaceChoice,
    /// Write the ID of a process that stands for the sandbox to a file: SIGSTOP and SIGCONT to it hibernate and wake the
    /// sandbox, other signals go to the program
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Drive the terminal [default: when standard input and output are one]
    #[arg(long)]
    pub tty: bool,
    #[command(flatten)]
    pub hibernation: HibernationArgs,
    /// Mitigations of speculative execution for the sandbox's processes
    #[arg(long, value_enum, default_value_t)]
    pub mitigations: MitigationsChoice,
    /// Whether sandboxes may have pages of the same programs and libraries in common; one can then learn from another's use
    #[arg(long, value_enum, default_value = "off")]
    pub share_files: Switch,
    /// Whether calls that a program makes often are patched in its memory, which is faster; programs that read their own text
    /// see it
    #[arg(long, value_enum, default_value = "on")]
    pub patch_calls: Switch,
    /// The use that programs may make of Unix sockets of the host that volumes show
    #[arg(long, value_enum, default_value_t)]
    pub host_uds: HostUdsChoice,
    /// Log system calls to standard error
    #[arg(long)]
    pub strace: bool,
    /// Name of the sandbox [default: a random one]
    #[arg(long)]
    pub id: Option<String>,
    #[command(flatten)]
    pub origin: OriginArgs,
    /// The program and its arguments
    #[arg(value_name = "CMD", required_unless_present = "from", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

impl Command {
    /// How many descriptors of the caller's, from 3 on, are to be passed on.
    pub fn preserved_fds(&self) -> usize {
        match self {
            Self::Create(create) | Self::Run { create, .. } => create.preserve_fds,
            Self::Exec(exec) => exec.preserve_fds,
            _ => 0,
        }
    }

    /// Whether a sandbox comes of it.
    pub fn makes_a_sandbox(&self) -> bool {
        matches!(
            self,
            Self::Do(_)
                | Self::Create(_)
                | Self::Run { .. }
                | Self::Restore(_)
                | Self::Fork(_)
                | Self::Pool(_)
                | Self::Snapshot { command: SnapshotCommand::Record(_) }
        )
    }

    /// Whether processes that it forks go on without it.
    pub fn goes_on(&self) -> bool {
        matches!(
            self,
            Self::Fork(_) | Self::Pool(_) | Self::Snapshot { command: SnapshotCommand::Hold { .. } }
        ) || matches!(self, Self::Do(args) if args.origin.detach)
    }

    /// The exit code if it fails by itself.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Do(_) => EXIT_DO,
            Self::Exec(_) => EXIT_EXEC,
            _ => EXIT_FAILURE,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn the_programs_own_options_are_its_own() {
        let cli = Cli::try_parse_from(["dormouse", "do", "--cpus", "2", "--", "ls", "--json", "-l"]).unwrap();
        let Command::Do(args) = cli.command else { panic!("do") };
        assert_eq!(args.command, ["ls", "--json", "-l"]);
        let cli = Cli::try_parse_from(["dormouse", "do", "ls", "--cpus", "99"]).unwrap();
        let Command::Do(args) = cli.command else { panic!("do") };
        assert_eq!((args.command.len(), args.cpus), (3, None));
        let cli = Cli::try_parse_from(["dormouse", "do", "--", "--odd", "-x"]).unwrap();
        let Command::Do(args) = cli.command else { panic!("do") };
        assert_eq!(args.command, ["--odd", "-x"]);
        for line in [
            "checkpoint a --name b --leave-running",
            "checkpoint a --image-path /b --json",
            "restore a --snapshot b --bundle c -d",
            "snapshot inspect a --json",
            "snapshot verify --image-path /b",
        ] {
            let words = std::iter::once("dormouse").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
        for line in
            ["checkpoint a --name b --image-path c", "snapshot inspect", "snapshot verify a --image-path b"]
        {
            let words = std::iter::once("dormouse").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
        // A word that is misspelt is no program.
        assert!(Cli::try_parse_from(["dormouse", "do", "--memroy", "1G", "ls"]).is_err());
    }
}
