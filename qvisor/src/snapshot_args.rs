//! Arguments of `checkpoint`, `restore` and `snapshot`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use runtime::container::Surroundings;
use runtime::settings::{Asked, Sharing};
use runtime::snapshot::{Coming, Place, Prefetch, SnapshotError};
use runtime::units::parse_time;
use vmm::checkpoint::Style;

use crate::choices::UserNamespaceChoice;
use crate::chunks_analysis::AnalyseArgs;
use crate::hibernation_args::HibernationArgs;

#[derive(Debug, Args)]
pub struct CheckpointArgs {
    pub id: String,
    /// Directory to become the snapshot; made if missing, or empty
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    pub image_path: Option<PathBuf>,
    /// Name of the snapshot [default: the ID]
    #[arg(long)]
    pub name: Option<String>,
    /// Let the container go on afterwards
    #[arg(long)]
    pub leave_running: bool,
    /// Write only pages that differ from those of this snapshot, named or at an absolute path, which has the others
    #[arg(long, value_name = "NAME")]
    pub parent: Option<String>,
    /// Pack its pages: none, lz4, zstd[:LEVEL], deflate-fixed, deflate-dynamic or deflate-canned
    #[arg(long, default_value_t = Style::None)]
    pub codec: Style,
    /// Seal its content by the key in this file, of 32 bytes; it is in memory until then
    #[arg(long, value_name = "FILE", conflicts_with = "parent")]
    pub key_file: Option<PathBuf>,
    /// Put it into the store of chunks once it is made, where --codec packs chunk by chunk
    #[arg(long, conflicts_with_all = ["image_path", "parent", "key_file"])]
    pub store: bool,
    /// With --store: with whose snapshots it may have chunks in common [default: all that have no domain]
    #[arg(long, value_name = "NAME", requires = "store")]
    pub share_domain: Option<String>,
    /// Whether it may have connections to others, over TCP or to Unix sockets of the host, which end in what begins with the snapshot
    #[arg(long, value_enum, default_value_t)]
    pub established: Established,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    pub id: String,
    /// Directory that is the snapshot
    #[arg(long, value_name = "DIR", conflicts_with = "snapshot")]
    pub image_path: Option<PathBuf>,
    /// Name of the snapshot [default: the ID]
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
    /// File of the key that the snapshot's content is sealed by
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Directory with a config.json, with the mounts that the snapshot was made with [default: the snapshot's own]
    #[arg(long, short, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// Go on as this further container of the pod that the snapshot is of [default: the one that the annotation
    /// io.kubernetes.cri.container-name names, or that had the ID]
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// Come back once it goes on; in a pod, once it will go on with the others
    #[arg(long, short)]
    pub detach: bool,
    /// Run a command in it by /bin/sh -c before its programs go on; if it fails, the container is removed
    #[arg(long, value_name = "CMD")]
    pub after: Option<OsString>,
    /// Write the process ID that stands for the container to a file
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Unix socket that gets the container's terminal
    #[arg(long, value_name = "SOCKET")]
    pub console_socket: Option<PathBuf>,
    /// Give sockets that had the first port the second one
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_ports)]
    pub port: Vec<(u16, u16)>,
    /// Whether files that it has open may have changed since
    #[arg(long, value_enum, default_value_t)]
    pub changed_files: ChangedFiles,
    /// Who root in the container is on the host [default: as the annotations or the node's configuration say, or auto]
    #[arg(long, value_enum, default_value_t)]
    pub userns: UserNamespaceChoice,
    /// With whom it shares pages of the snapshot that it does not write: none, snapshot (all that share it so) or a domain's name; they can
    /// learn from each other's use [default: as the annotations or the node's configuration say, or none]
    #[arg(long, value_name = "WHOM", value_parser = parse_sharing)]
    pub share: Option<Sharing>,
    /// Which pages the host reads ahead [default: bpf if there are any, else list]
    #[arg(long, value_enum)]
    pub prefetch: Option<PrefetchChoice>,
    #[command(flatten)]
    pub hibernation: HibernationArgs,
}

/// The course of a checkpoint while there are connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Established {
    /// A container that begins with the snapshot finds them reset
    #[default]
    Reset,
    /// There is no snapshot, and the container goes on
    Refuse,
}

/// The course of a container whose files have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ChangedFiles {
    /// It is not restored
    #[default]
    Refuse,
    /// It finds them as they are
    Accept,
}

/// Reads with whom pages are shared.
pub fn parse_sharing(text: &str) -> Result<Sharing, String> {
    text.parse().map_err(|why| format!("it is {why}"))
}

/// Reads `OLD=NEW`.
pub fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let port = |text: &str| text.parse().ok().filter(|port: &u16| *port != 0);
    let ports = text.split_once('=').and_then(|(old, new)| Some((port(old)?, port(new)?)));
    ports.ok_or_else(|| "give two ports, as in 80=8080".into())
}

/// The snapshot that a command's sandbox begins with.
#[derive(Debug, Args)]
pub struct OriginArgs {
    /// Begin with the snapshot of this name, in a copy-on-write view of its bundle's root: its programs go on, or CMD runs beside them and
    /// ends them with it
    #[arg(long, value_name = "NAME", conflicts_with_all = [
        "rootfs", "platform", "memory", "cpus", "pids", "env_all", "volume", "net", "pid_file", "mitigations", "share_files",
        "patch_calls", "host_uds", "strace",
    ])]
    pub from: Option<String>,
    /// File of the key that the snapshot's content is sealed by
    #[arg(long, value_name = "FILE", requires = "from")]
    pub key_file: Option<PathBuf>,
    /// Give sockets of the snapshot that had the first port the second one
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_ports, requires = "from")]
    pub port: Vec<(u16, u16)>,
    /// Whether files that the snapshot has open may have changed since [default: refuse]
    #[arg(long, value_enum, requires = "from")]
    pub changed_files: Option<ChangedFiles>,
    /// With whom it shares pages of the snapshot that it does not write: none, snapshot (all that share it so) or a domain's name; they can
    /// learn from each other's use [default: none]
    #[arg(long, value_name = "WHOM", value_parser = parse_sharing, requires = "from")]
    pub share: Option<Sharing>,
    /// Which pages the host reads ahead [default: bpf if there are any, else list]
    #[arg(long, value_enum, requires = "from")]
    pub prefetch: Option<PrefetchChoice>,
    /// Let it go on in the background, and print its ID and ports that were given; one is taken from the snapshot's pool if it can be
    #[arg(long, short, requires = "from", conflicts_with_all = ["command", "tty"])]
    pub detach: bool,
}

impl OriginArgs {
    /// Whether nothing is asked for by which clones of a pool could differ.
    pub fn is_plain(&self) -> bool {
        let Self { from: _, key_file, port, changed_files, share, prefetch, detach: _ } = self;
        key_file.is_none()
            && port.is_empty()
            && changed_files.is_none()
            && share.is_none()
            && prefetch.is_none()
    }

    /// Things that the clone may find other than they were.
    pub fn surroundings(&self) -> Surroundings {
        let accepts_changed = self.changed_files == Some(ChangedFiles::Accept);
        Surroundings { accepts_changed, ports: self.port.clone() }
    }
}

impl RestoreArgs {
    /// Things that it may find other than they were.
    pub fn surroundings(&self) -> Surroundings {
        Surroundings { accepts_changed: self.changed_files == ChangedFiles::Accept, ports: self.port.clone() }
    }

    /// The settings that the options ask for.
    pub fn asked(&self) -> std::io::Result<Asked> {
        let hibernation = self.hibernation.wishes()?;
        Ok(Asked { userns: self.userns.into(), share: self.share.clone(), hibernation, ..Asked::default() })
    }
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// List the snapshots that have names
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show what a snapshot is
    Inspect {
        #[command(flatten)]
        which: Which,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Check that a snapshot is as it was made, page by page
    Verify {
        #[command(flatten)]
        which: Which,
        /// File of the key that its content is sealed by
        #[arg(long, value_name = "FILE")]
        key_file: Option<PathBuf>,
    },
    /// Record which pages a request needs: a clone begins with the snapshot, CMD runs here meanwhile, and the clone goes
    Record(RecordArgs),
    /// Hold a snapshot's pages in memory, where all that begin with it from now on have them, until it is released
    Hold {
        /// Name of the snapshot, or its directory's absolute path
        name: String,
    },
    /// Hold a snapshot's pages no longer; sandboxes that use them keep them until they end
    Release {
        /// Name of the snapshot, its directory's absolute path, or the beginning of the digest that bases shows
        name: String,
    },
    /// List the snapshots that are held in memory, and how many sandboxes use each
    Bases {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Put a snapshot into the store of chunks, where content that others there have is kept once; it stays in the list, and is used as before
    Store {
        name: String,
        /// Pack its chunks: none, lz4 or zstd[:LEVEL]
        #[arg(long, default_value_t = Style::None)]
        codec: Style,
        /// With whose snapshots it may have chunks in common [default: those for which no domain is named]
        #[arg(long, value_name = "NAME")]
        share_domain: Option<String>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write a snapshot to a new file for another host: an OCI archive, the same for the same snapshot
    Export(ExportArgs),
    /// Take a snapshot from a file that export has written
    Import(ImportArgs),
    /// Remove a snapshot; sandboxes that began with it go on
    Remove { name: String },
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    pub name: String,
    pub file: PathBuf,
    /// Pack its chunks: none or lz4
    #[arg(long, default_value_t = Style::Lz4)]
    pub codec: Style,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    pub file: PathBuf,
    /// Name of the snapshot here [default: the one that it had]
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub coming: ComingArgs,
}

/// How snapshots come from elsewhere.
#[derive(Clone, Copy, Debug, Args)]
pub struct ComingArgs {
    /// Take it though another host's key has sealed it, and seal it by this host's: whoever made it decides what runs, and
    /// which of this host's files it reads and changes
    #[arg(long)]
    pub trust: bool,
    /// Put it into the store of chunks
    #[arg(long)]
    pub store: bool,
}

impl From<ComingArgs> for Coming {
    fn from(ComingArgs { trust, store }: ComingArgs) -> Self {
        Self { is_trusted: trust, is_stored: store }
    }
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Show how many snapshots are in the store of chunks, and what they take
    Stats {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write snapshots to a directory for other hosts, an OCI image layout, which gets only the chunks that it lacks
    Push {
        /// Directory of the layout; made if missing
        dir: PathBuf,
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Pack chunks: none or lz4
        #[arg(long, default_value_t = Style::Lz4)]
        codec: Style,
    },
    /// Take snapshots from a directory that push has written, or a copy of it
    Pull {
        /// Directory of the layout
        dir: PathBuf,
        /// Names of the snapshots [default: all that it has]
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        coming: ComingArgs,
    },
    /// Write a snapshot to a new file for another host, as snapshot export does
    Export(ExportArgs),
    /// Take a snapshot from a file, as snapshot import does
    Import(ImportArgs),
    /// Show what snapshots consist of, how much of it is there more than once, and which chunks would keep it in the fewest bytes
    Analyse(AnalyseArgs),
    /// Bring a stored snapshot's kernel and pages into memory, which is given back at once, and show what was read and how long that took
    Retrieve {
        name: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Read all chunks, and compare what snapshots need with what there is
    Verify,
    /// Remove chunks that no snapshot needs
    Gc {
        /// Keep them so long after that was found out, for those who are reading them
        #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
        grace: Duration,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Store snapshots in a store that goes afterwards, and retrieve them, to compare ways to do so
    Bench(StoreBenchArgs),
}

#[derive(Debug, Args)]
pub struct StoreBenchArgs {
    /// Snapshots, in the order in which they are stored [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Directory of the store, which must be missing
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Pack chunks: none, lz4 or zstd[:LEVEL]
    #[arg(long, default_value_t = Style::None)]
    pub codec: Style,
    /// Cut all memory into chunks of so many bytes, a power of two from 64 to 4096
    #[arg(long, value_name = "BYTES")]
    pub chunk_bytes: Option<u32>,
    /// Keep chunks whole that are like others
    #[arg(long)]
    pub no_differences: bool,
    /// Count all pages as programs' own
    #[arg(long)]
    pub no_regions: bool,
    /// Compare programs' own pages with none, as the paper does with what is writable
    #[arg(long)]
    pub skip_own: bool,
    /// Keep chunks once more if a snapshot needs fewer bytes of a dblock
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10)]
    pub sparse_bytes: u32,
    /// Retrieve in the order of the recipes, not of dblocks
    #[arg(long)]
    pub in_order: bool,
    /// Keep in memory what so many dblocks have
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub kept_dblocks: usize,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Name of the snapshot, or its directory's absolute path
    pub name: String,
    /// How often CMD is run
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub requests: u32,
    /// Give sockets of the snapshot that had the first port the second one
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_ports)]
    pub port: Vec<(u16, u16)>,
    /// Whether files that the snapshot has open may have changed since
    #[arg(long, value_enum, default_value_t)]
    pub changed_files: ChangedFiles,
    /// Write the pages that were touched to a file in which they lie together as well, for --prefetch reap
    #[arg(long)]
    pub together: bool,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Command that makes the request, with the clone's ID in DORMOUSE_ID; if it fails, nothing is recorded
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// The list by which the host reads pages ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrefetchChoice {
    /// Those that were seen to come into the page cache (snapshot record)
    Bpf,
    /// Those that the kernel has seen touched
    List,
    /// Those, copied from a file in which they lie together (snapshot record --together), as REAP does
    Reap,
    /// Those that the host guesses: what was recorded is not used
    Host,
    /// None at all
    None,
}

impl From<PrefetchChoice> for Prefetch {
    fn from(choice: PrefetchChoice) -> Self {
        match choice {
            PrefetchChoice::Bpf => Self::Bpf,
            PrefetchChoice::List => Self::List,
            PrefetchChoice::Reap => Self::Reap,
            PrefetchChoice::Host => Self::Host,
            PrefetchChoice::None => Self::None,
        }
    }
}

/// A snapshot by its name or by its directory.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// Name of the snapshot
    name: Option<String>,
    /// Directory that is the snapshot
    #[arg(long, value_name = "DIR")]
    image_path: Option<PathBuf>,
}

impl Which {
    /// Where it is.
    pub fn place(self) -> Result<Place, SnapshotError> {
        place(self.image_path, &self.name.unwrap_or_default())
    }
}

/// The place of a snapshot by its name, or by the absolute path of its directory.
pub fn named_place(name: &str) -> Result<Place, SnapshotError> {
    // No name begins with a slash.
    place(name.starts_with('/').then(|| PathBuf::from(name)), name)
}

/// The place of a snapshot: a directory that is named, or the store.
pub fn place(image_path: Option<PathBuf>, name: &str) -> Result<Place, SnapshotError> {
    match image_path {
        // Absolute, since the working directory may change.
        Some(path) => Ok(Place::Directory(std::path::absolute(&path).unwrap_or(path))),
        None => Place::named(name),
    }
}
