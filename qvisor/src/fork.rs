//! `dormouse fork`: clones of a running sandbox, at once, from an image of it in memory.
//!
//! They begin side by side, and go on by themselves once all of them have begun: if one fails, or this process is ended, none stays.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use clap::Args;
use runtime::container::{self, CheckpointOptions, Taken};
use runtime::front::CommandRecord;
use runtime::settings::{NodeConfig, Sharing};
use runtime::snapshot::{InMemory, Opened, SnapshotError, Store};
use runtime::state::{Id, Root};
use runtime::units::parse_size;
use serde_json::json;
use vmm::checkpoint::{ImageTerms, Style};
use vmm::hibernate::micros;
use vmm::process;

use crate::background::{Background, Source, check_ports, check_terminal};
use crate::choices::UserNamespaceChoice;
use crate::failure::{Failure, say};
use crate::hibernation_args::HibernationArgs;
use crate::snapshot_args::{Established, parse_ports, parse_sharing};

/// So many clones begin side by side for each of the host's processors.
const AT_ONCE: usize = 2;

#[derive(Debug, Args)]
pub struct ForkArgs {
    pub id: String,
    /// How many clones
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub count: u16,
    /// The clones are NAME-1, NAME-2 and so on, after the highest number that is in use [default: the ID]
    #[arg(long)]
    pub name: Option<String>,
    /// Give sockets that had the first port the second one in the first clone, the next one in the next clone, and so on
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_ports)]
    pub port: Vec<(u16, u16)>,
    /// With whom a clone shares pages that it does not write: none, or snapshot (the clones made with it)
    #[arg(long, value_name = "WHOM", value_parser = parse_sharing, default_value = "snapshot")]
    pub share: Sharing,
    /// Whether it may have connections to others, over TCP or to Unix sockets of the host, which end in the clones
    #[arg(long, value_enum, default_value_t)]
    pub established: Established,
    /// Most bytes of the host's disk that the changes of a clone to its files may take up
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_size)]
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
    let hibernation = args.hibernation.wishes()?;
    check_ports(&args.port, args.count)?;
    if let Sharing::Domain(name) = &args.share {
        return Err(format!(
            "cannot share the pages of clones in domain {}: nobody else has them; choose none or snapshot",
            name.as_str()
        )
        .into());
    }
    let (taken, opened) = image_of(root, &store, &id, args)?;
    let source = Source {
        root,
        node,
        systemd_cgroup,
        store: &store,
        opened: Arc::new(opened),
        share: Some(args.share.clone()),
        disk_bytes: args.disk,
        userns: args.userns.into(),
        hibernation,
        // The sandbox goes on, and may write meanwhile.
        accepts_changed: true,
        ports: args.port.clone(),
        is_asleep: false,
        all_go: None,
    };
    begin_all(source, &names)?;
    if args.json {
        let clones: Vec<_> = names.iter().map(Id::as_str).collect();
        let object = json!({ "clones": clones, "total_us": micros(since.elapsed()), "image": taken.image });
        return say(&(serde_json::to_string_pretty(&object)? + "\n"));
    }
    say(&names.iter().map(|name| format!("{}\n", name.as_str())).collect::<String>())
}

/// Takes an image of the sandbox in memory. It stays as long as somebody has its files.
fn image_of(root: &Root, store: &Store, id: &Id, args: &ForkArgs) -> Result<(Taken, Opened), Failure> {
    let has_layer = root.command::<CommandRecord>(id).is_some();
    if !has_layer && let Some(described) = container::described(root, id, &root.state(id)?) {
        check_terminal(&described)?;
        if described.pod.is_some() {
            return Err(format!(
                "cannot fork {}: it is a pod's first container, and no clone of a pod goes on by itself",
                args.id
            )
            .into());
        }
    }
    let InMemory { place, .. } = &store.place_in_memory(has_layer)?;
    let options = CheckpointOptions {
        store,
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
    let taken = container::checkpoint(root, id, &options).map_err(|error| words_of(id, error))?;
    let mut opened = store.open(place, None)?;
    // It is in memory already.
    opened.leave_unrecorded();
    Ok((taken, opened))
}

/// Why a sandbox cannot be forked, without advice about places on a disk.
fn words_of(id: &Id, error: SnapshotError) -> Failure {
    match error {
        SnapshotError::Make { what, source, .. } => {
            format!("cannot fork {}: {what}, in memory, failed: {source}; free some memory", id.as_str())
                .into()
        }
        error => error.into(),
    }
}

/// Names that no sandbox has, in one row.
fn free_names(root: &Root, name: &str, count: u16) -> Result<Vec<Id>, Failure> {
    let number = |id: &Id| id.as_str().strip_prefix(name)?.strip_prefix('-')?.parse::<u32>().ok();
    let taken = root.ids()?.iter().filter_map(number).max().unwrap_or(0);
    let named = |number: u32| Id::new(&format!("{name}-{}", taken.saturating_add(number)));
    Ok((1..=count).map(|number| named(number.into())).collect::<Result<_, _>>()?)
}

/// Begins all clones, and lets go of them; or none, and says why the first did not begin that failed.
fn begin_all(mut source: Source<'_>, names: &[Id]) -> Result<(), Failure> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (waits, mut goes) = io::pipe()?;
    source.all_go = Some(waits);
    let mut names = (0..).zip(names);
    let (mut coming, mut begun) = (Vec::new(), Vec::new());
    let result = loop {
        for (number, name) in names.by_ref().take(cores * AT_ONCE - coming.len()) {
            let failed = |error| format!("cannot begin clone {}: {error}", name.as_str());
            let forget = || [&mut coming, &mut begun].into_iter().for_each(Vec::clear);
            let clone = source.begin(name.clone(), number, forget).map_err(failed)?;
            coming.push(clone);
        }
        if coming.is_empty() {
            break Ok(());
        }
        let channels: Vec<_> = coming.iter().map(Background::as_raw_fd).collect();
        let Some(first) = process::wait_any(&channels, -1).into_iter().next() else { continue };
        let mut clone = coming.swap_remove(first);
        match clone.news() {
            Ok(()) => begun.push(clone),
            Err(why) => break Err(why),
        }
    };
    match result {
        Ok(()) => Ok(goes.write_all(b".")?),
        Err(why) => {
            // When this command comes back nothing of them is left.
            begun.extend(coming);
            begun.iter().for_each(Background::dismiss);
            begun.into_iter().for_each(Background::end);
            Err(why)
        }
    }
}
