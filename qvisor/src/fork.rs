//! `dormouse fork`: clones of a running sandbox, at once, from an image of it in memory.
//!
//! Each clone has a front end of its own in the background, which is this program, forked. They begin side by side, and go on without this
//! process once all of them have begun: if one fails, or this process is ended, none stays.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use clap::Args;
use runtime::container::{self, CheckpointOptions, Surroundings};
use runtime::front::Attended;
use runtime::settings::{NodeConfig, Sharing};
use runtime::snapshot::{Opened, Store, WorkingSet};
use runtime::state::{Id, Root};
use runtime::units::parse_size;
use serde_json::json;
use vmm::checkpoint::{ImageTerms, Style};
use vmm::hibernate::{Wishes, micros};
use vmm::jail::UserNamespace;
use vmm::process;

use crate::choices::UserNamespaceChoice;
use crate::clones::{CloneOptions, run_clone_of};
use crate::failure::{Failure, say};
use crate::hibernation_args::HibernationArgs;
use crate::snapshot_args::{Established, parse_ports, parse_sharing};

/// So many clones begin side by side for each of the host's processors.
const AT_ONCE: usize = 2;
/// The first letter of what a clone's front end says: that it has begun, or why it has not.
const BEGUN: u8 = b'+';
const FAILED: u8 = b'-';

#[derive(Debug, Args)]
pub struct ForkArgs {
    pub id: String,
    /// How many clones
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: u32,
    /// The clones are NAME-1, NAME-2 and so on, from the first number that is free [default: the ID]
    #[arg(long)]
    pub name: Option<String>,
    /// Give sockets that had the first port the second one in the first clone, the next one in the next clone, and so on
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_ports)]
    pub port: Vec<(u16, u16)>,
    /// With whom a clone shares pages that it does not write: none, snapshot (the clones made with it) or a domain's name
    #[arg(long, value_name = "WHOM", value_parser = parse_sharing, default_value = "snapshot")]
    pub share: Sharing,
    /// Whether it may have connections to others, over TCP or to Unix sockets of the host, which end in the clones
    #[arg(long, value_enum, default_value_t)]
    pub established: Established,
    /// Most bytes of the host's disk that the changes of a clone to its files may take up
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub disk: u64,
    /// Who root in a clone is on the host [default: auto]
    #[arg(long, value_enum, default_value_t)]
    pub userns: UserNamespaceChoice,
    #[command(flatten)]
    pub hibernation: HibernationArgs,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// The image, and how clones of it are run.
struct Source<'s> {
    root: &'s Root,
    node: NodeConfig,
    systemd_cgroup: bool,
    store: &'s Store,
    opened: Arc<Opened>,
    share: Sharing,
    disk_bytes: u64,
    userns: UserNamespace,
    hibernation: Wishes,
    /// Ports that sockets had, and get in the first clone.
    ports: Vec<(u16, u16)>,
}

pub fn fork(
    root: &Root,
    config: Option<&Path>,
    systemd_cgroup: bool,
    args: &ForkArgs,
) -> Result<u8, Failure> {
    let since = Instant::now();
    let id = Id::new(&args.id)?;
    let node = NodeConfig::load(config)?;
    let store = Store::of_user(&node)?;
    let names = free_names(root, args.name.as_deref().unwrap_or(id.as_str()), args.count)?;
    check_ports(&args.port, args.count)?;
    let hibernation = args.hibernation.wishes()?;
    let place = store.place_in_memory()?;
    let options = CheckpointOptions {
        store: &store,
        place: place.clone(),
        terms: ImageTerms {
            leave_running: true,
            refuses_connections: args.established == Established::Refuse,
            ..ImageTerms::default()
        },
        parent: None,
        codec: Style::None,
        key_file: None,
        in_memory: true,
        progress: None,
    };
    let taken = container::checkpoint(root, &id, &options)?;
    let mut opened = store.open(&place, None)?;
    // It is in memory already.
    opened.working_set = WorkingSet::Missing(None, None);
    let described = &opened.manifest.container;
    if described.terminal && described.command.is_none() {
        return Err(
            format!("cannot fork {}: its first process has a terminal, and no clone would", args.id).into()
        );
    }
    let source = Source {
        root,
        node,
        systemd_cgroup,
        store: &store,
        opened: Arc::new(opened),
        share: args.share.clone(),
        disk_bytes: args.disk,
        userns: args.userns.into(),
        hibernation,
        ports: args.port.clone(),
    };
    source.begin_all(&names)?;
    if args.json {
        let clones: Vec<_> = names.iter().map(Id::as_str).collect();
        let object = json!({ "clones": clones, "total_us": micros(since.elapsed()), "image": taken.image });
        return say(&(serde_json::to_string_pretty(&object)? + "\n"));
    }
    say(&names.iter().map(|name| format!("{}\n", name.as_str())).collect::<String>())
}

/// Names that no sandbox has, in one row.
fn free_names(root: &Root, name: &str, count: u32) -> Result<Vec<Id>, Failure> {
    let number = |id: &Id| id.as_str().strip_prefix(name)?.strip_prefix('-')?.parse::<u32>().ok();
    let taken = root.ids()?.iter().filter_map(number).max().unwrap_or(0);
    let named = |number: u32| Id::new(&format!("{name}-{}", taken.saturating_add(number)));
    Ok((1..=count).map(named).collect::<Result<_, _>>()?)
}

/// Refuses ports of which not every clone would get one.
fn check_ports(ports: &[(u16, u16)], count: u32) -> Result<(), Failure> {
    match ports.iter().find(|(_, new)| u32::from(*new) + count - 1 > u32::from(u16::MAX)) {
        Some((old, new)) => {
            Err(format!("cannot give {count} clones ports from {new} on for {old}: choose a lower one")
                .into())
        }
        None => Ok(()),
    }
}

/// A clone that is being made by a process of its own.
struct Coming<'n> {
    name: &'n Id,
    channel: BufReader<UnixStream>,
}

impl Source<'_> {
    /// Begins all clones; or none, and says why the first did not begin that failed.
    fn begin_all(&self, names: &[Id]) -> Result<(), Failure> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut names = names.iter().enumerate();
        let (mut coming, mut begun) = (Vec::new(), Vec::new());
        let result = loop {
            for (number, name) in names.by_ref().take(cores * AT_ONCE - coming.len()) {
                let failed = |error| format!("cannot begin clone {}: {error}", name.as_str());
                coming.push(self.begin(name, number).map_err(failed)?);
            }
            if coming.is_empty() {
                break Ok(());
            }
            let channels: Vec<_> = coming.iter().map(|clone| clone.channel.get_ref().as_raw_fd()).collect();
            let Some(first) = process::wait_any(&channels, -1).into_iter().next() else { continue };
            let mut clone = coming.swap_remove(first);
            let news = clone.news();
            begun.push(clone);
            if let Err(why) = news {
                break Err(why);
            }
        };
        begun.extend(coming);
        if result.is_ok() {
            begun.iter_mut().for_each(|clone| drop(clone.channel.get_mut().write_all(&[BEGUN])));
            // Until then they end with this process.
            begun.iter_mut().for_each(|clone| drop(clone.channel.read(&mut [0])));
        } else {
            // Their watchers remove what is left of them.
            process::end_children();
        }
        result
    }

    /// Forks the front end of a clone.
    fn begin<'n>(&self, name: &'n Id, number: usize) -> io::Result<Coming<'n>> {
        let (ours, theirs) = UnixStream::pair()?;
        let parent = process::id();
        if process::fork()?.is_none() {
            drop(ours);
            if !process::die_with_parent(parent) {
                process::exit_now(1);
            }
            process::leave_session();
            process::close_streams();
            let _ = std::env::set_current_dir("/");
            process::exit_now(self.attend(name, number, &theirs, parent).into());
        }
        Ok(Coming { name, channel: BufReader::new(ours) })
    }

    /// The front end of a clone, to the end of that.
    fn attend(&self, name: &Id, number: usize, channel: &UnixStream, parent: i32) -> u8 {
        let started = || {
            let mut channel = channel;
            let _ = channel.write_all(&[BEGUN, b'\n']);
            // Until all others have begun as well.
            if !matches!(channel.read(&mut [0]), Ok(1)) || !process::go_on_without_parent(parent) {
                process::exit_now(1);
            }
            // It may end from here on.
            let _ = channel.shutdown(Shutdown::Both);
        };
        let with_number = |port: u16| port.saturating_add(u16::try_from(number).unwrap_or(u16::MAX));
        let clone = CloneOptions {
            id: name.clone(),
            disk_bytes: self.disk_bytes,
            userns: self.userns,
            share: Some(self.share.clone()),
            hibernation: self.hibernation.clone(),
            // The sandbox goes on, and may write meanwhile.
            surroundings: Surroundings {
                accepts_changed: true,
                ports: self.ports.iter().map(|(old, new)| (*old, with_number(*new))).collect(),
            },
        };
        let (node, opened) = ((self.node.clone(), self.systemd_cgroup), Arc::clone(&self.opened));
        let attended = Attended::Apart(&started);
        match run_clone_of(self.root, node, self.store, opened, clone, &attended) {
            Ok(code) => code,
            Err(error) => {
                let mut channel = channel;
                let words = error.to_string().replace('\n', " ");
                let _ = channel.write_all(&[&[FAILED], words.as_bytes(), b"\n"].concat());
                1
            }
        }
    }
}

impl Coming<'_> {
    /// Hears whether it has begun, or why not.
    fn news(&mut self) -> Result<(), Failure> {
        let mut line = Vec::new();
        let heard = self.channel.read_until(b'\n', &mut line);
        match (heard, line.split_first()) {
            (Ok(_), Some((&BEGUN, _))) => Ok(()),
            (Ok(_), Some((&FAILED, words))) => Err(String::from_utf8_lossy(words).trim_end().into()),
            _ => Err(format!("cannot begin clone {}: it ended before it began", self.name.as_str()).into()),
        }
    }
}
