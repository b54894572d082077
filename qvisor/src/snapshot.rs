//! `dormouse checkpoint`, `restore` and `snapshot`.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use runtime::container::{self, CheckpointOptions, CreateOptions, Surroundings, Taken};
use runtime::front::{Attended, DoError};
use runtime::preserved::Preserved;
use runtime::settings::NodeConfig;
use runtime::snapshot::{self, Manifest, SnapshotError, Store, Unfit, printable};
use runtime::state::{Id, Root};
use serde_json::json;
use vmm::checkpoint::{ImageTerms, Style};
use vmm::hibernate::{Wishes, micros};

use crate::args::DoArgs;
use crate::background::{Background, Ports, Source};
use crate::bases;
use crate::bundle::coded;
use crate::chunks;
use crate::clones::{CloneOptions, keep_sealed, run_clone_of};
use crate::codec_args::check_chunk_codec;
use crate::exec;
use crate::exec_args::ExecArgs;
use crate::failure::{Failure, remark, say, warn};
use crate::log;
use crate::moved;
use crate::pool;
use crate::show::millis;
use crate::snapshot_args::{CheckpointArgs, Established, RestoreArgs, SnapshotCommand, named_place, place};
use crate::snapshot_record;

pub fn checkpoint(root: &Root, config: Option<&Path>, args: CheckpointArgs) -> Result<u8, Failure> {
    let since = Instant::now();
    let id = Id::new(&args.id)?;
    let store = Store::of_user(&NodeConfig::load(config)?)?;
    let place = place(args.image_path, args.name.as_deref().unwrap_or(id.as_str()))?;
    let shown = place.to_string();
    let name = args.name.clone().unwrap_or_else(|| args.id.clone());
    if args.store {
        check_chunk_codec(args.codec, || format!("store {name}"))?;
    }
    let options = CheckpointOptions {
        store: &store,
        place,
        terms: ImageTerms {
            leave_running: args.leave_running,
            refuses_connections: args.established == Established::Refuse,
            ..ImageTerms::default()
        },
        parent: args.parent.as_deref().map(named_place).transpose()?,
        codec: if args.store { Style::None } else { args.codec },
        key_file: args.key_file,
        in_memory: false,
        progress: std::io::stderr().is_terminal().then_some(&show_progress),
    };
    let Taken { manifest, image, layer_us, packed_us } = container::checkpoint(root, &id, &options)?;
    let total_us = micros(since.elapsed());
    let put = || chunks::put(&store, &name, args.codec, args.share_domain.as_deref());
    let stored = args.store.then(put).transpose();
    let stored = stored.map_err(|why| format!("{shown} is made, and is not in the store: {why}"))?;
    if args.json {
        let object = json!({
            "snapshot": shown, "total_us": total_us, "layer_us": layer_us, "packed_us": packed_us, "image": image, "manifest": manifest,
            "stored": stored.as_ref().map(|stored| chunks::figures(&name, stored)),
        });
        return say(&(serde_json::to_string_pretty(&object)? + "\n"));
    }
    let [total, pause, kernel, pages] =
        [total_us, image.pause_us, image.kernel_us, image.pages_us].map(millis);
    let mut text = format!("{}: snapshot {shown} made in {total} ms\n", args.id);
    let left = image.left_pages;
    let written = image.head.pages.saturating_sub(left);
    writeln!(text, "written  {written} pages, {} bytes of the kernel's", image.head.taken_bytes)?;
    if let Some(parent) = args.parent {
        writeln!(text, "left     {left} pages that {parent} has")?;
    }
    writeln!(text, "times    pause {pause} ms, kernel {kernel} ms, pages {pages} ms")?;
    if let (Some(packed), Some(packed_us)) = (&manifest.files.packed, packed_us) {
        let (bytes, took) = (manifest.files.pages_bytes, millis(packed_us));
        let how = if manifest.files.sealed.is_some() { "sealed" } else { "packed" };
        writeln!(text, "{how}   to {bytes} bytes by {} in {took} ms", packed.codec)?;
    }
    if let (Some(layer), Some(layer_us)) = (&manifest.files.layer, layer_us) {
        let copied = millis(layer_us);
        writeln!(text, "files    {} changed, {} bytes, copied in {copied} ms", layer.files, layer.bytes)?;
    }
    say(&(text + &stored.map_or_else(String::new, |stored| chunks::words(&stored))))
}

/// Shows on the terminal how far it is; at its end the line is free again.
fn show_progress(written_bytes: Option<u64>) {
    use std::io::Write;
    let mut stderr = std::io::stderr();
    let _ = match written_bytes {
        Some(bytes) => write!(stderr, "\r{} MiB written", bytes >> 20),
        None => write!(stderr, "\r\x1b[K"),
    };
}

pub fn restore(
    root: &Root,
    config: Option<&Path>,
    systemd_cgroup: bool,
    args: RestoreArgs,
    preserved: Preserved,
) -> Result<u8, Failure> {
    let (mut asked, surroundings) = (args.asked()?, args.surroundings());
    let node = NodeConfig::load(config)?;
    let place = place(args.image_path, args.snapshot.as_deref().unwrap_or(&args.id))?;
    let mut opened = Store::of_user(&node)?.open(&place, args.key_file.as_deref())?;
    opened.take_held(root, warn);
    if let Some(by) = args.prefetch {
        opened.prefetch(by.into())?;
    }
    if args.after.is_some() {
        // The command would be in it, and most of the programs would not.
        opened.leave_unrecorded();
    }
    if opened.manifest.container.command.is_some() {
        return Err(SnapshotError::Unfit { place, why: Unfit::OfCommand }.into());
    }
    keep_sealed(&opened, &mut asked.hibernation)?;
    if opened.manifest.container.pod.is_some() && args.after.is_some() {
        return Err(
            "cannot use --after with the snapshot of a pod: leave it out, and use exec once it goes on"
                .into(),
        );
    }
    let named = args.container.as_deref().or_else(|| opened.has_further(&args.id).then_some(&*args.id));
    let bundle = args.bundle.map_or_else(|| opened.bundle(named).map(Path::to_owned), Ok)?;
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let options = CreateOptions {
        asked,
        root: root.clone(),
        id: Id::new(&args.id)?,
        bundle,
        pid_file: args.pid_file.map(absolute),
        console_socket: args.console_socket.map(absolute),
        systemd_cgroup,
        node,
        snapshot: Some(Arc::new(opened)),
        snapshot_container: args.container,
        surroundings,
        clone: None,
        strace: false,
        log_level: log::level_of_sandboxes(),
        remark,
        warn,
    };
    let after = |root: &Root, id: &Id| {
        let exec = ExecArgs {
            id: id.as_str().to_owned(),
            command: vec!["/bin/sh".into(), "-c".into(), args.after.clone().unwrap_or_default()],
            no_input: true,
            ..ExecArgs::default()
        };
        exec::run_in(root, exec, Preserved::default()).map_err(|error| error.to_string())
    };
    let after = args.after.is_some().then_some(&after as _);
    container::run(&options, preserved, args.detach, after, warn).or_else(coded)
}

/// `do --from`.
pub fn run_clone(
    root: &Root,
    config: Option<&Path>,
    systemd_cgroup: bool,
    name: &str,
    args: DoArgs,
) -> Result<u8, Failure> {
    check_command(&args)?;
    let node = NodeConfig::load(config)?;
    let store = Store::of_user(&node)?;
    if let Some((clone, ports)) = from_pool(root, &store, name, &args)? {
        if args.origin.detach {
            return leave(clone, &ports);
        }
        let code = exec::run_in(root, exec_of(&args, &clone.id), Preserved::default());
        clone.end();
        return code;
    }
    let mut opened = store.open(&named_place(name)?, args.origin.key_file.as_deref())?;
    opened.take_held(root, warn);
    if let Some(by) = args.origin.prefetch {
        opened.prefetch(by.into())?;
    }
    let id = args.id.as_deref().map_or_else(|| Ok(Id::random()), Id::new)?;
    let (userns, share) = (args.userns.into(), args.origin.share.clone());
    let (hibernation, surroundings) = (args.hibernation.wishes()?, args.origin.surroundings());
    let opened = Arc::new(opened);
    if args.origin.detach {
        let Surroundings { accepts_changed, ports } = surroundings;
        let source = Source {
            root,
            node,
            systemd_cgroup,
            store: &store,
            opened,
            share,
            disk_bytes: args.disk,
            userns,
            hibernation,
            accepts_changed,
            ports: ports.clone(),
            is_asleep: false,
            all_go: None,
        };
        source.check()?;
        let failed = |error| format!("cannot begin clone {}: {error}", id.as_str());
        let mut clone = source.begin(id.clone(), 0, || {}).map_err(failed)?;
        clone.news()?;
        return leave(clone, &ports);
    }
    let command = |root: &Root, id: &Id| exec::run_in(root, exec_of(&args, id), Preserved::default());
    let clone = CloneOptions { id, disk_bytes: args.disk, userns, share, hibernation, surroundings };
    let attended = if args.command.is_empty() { Attended::First } else { Attended::Further(&command) };
    run_clone_of(root, (node, systemd_cgroup), &store, opened, clone, &attended)
}

/// A clone of the snapshot's pool, and its ports, if one is ready that is as it would be made now.
fn from_pool(
    root: &Root,
    store: &Store,
    name: &str,
    args: &DoArgs,
) -> Result<Option<(Background, Ports)>, Failure> {
    let has_purpose = args.origin.detach || !args.command.is_empty();
    let is_plain = args.origin.is_plain() && args.hibernation.wishes()? == Wishes::default();
    if !has_purpose || !is_plain || args.id.is_some() {
        return Ok(None);
    }
    let has_command = !args.command.is_empty();
    let taken = pool::take(root, store, name, pool::Terms::of(args.disk, args.userns.into(), has_command));
    // One that ends just now is none.
    Ok(taken.and_then(|(mut clone, ports)| clone.is_there().then_some((clone, ports))))
}

/// Lets go of a clone, and prints its ID and ports.
fn leave(clone: Background, ports: &[(u16, u16)]) -> Result<u8, Failure> {
    let mut text = clone.id.as_str().to_owned();
    for (old, new) in ports {
        write!(text, " {old}={new}")?;
    }
    clone.release();
    say(&(text + "\n"))
}

/// The command as `exec` runs it.
fn exec_of(args: &DoArgs, id: &Id) -> ExecArgs {
    let terminal = args.tty || std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    ExecArgs {
        id: id.as_str().to_owned(),
        command: args.command.clone(),
        env: args.env.clone(),
        cwd: args.cwd.clone(),
        tty: terminal,
        ..ExecArgs::default()
    }
}

/// Refuses options about a command where there is none, and such as no command can have.
fn check_command(args: &DoArgs) -> Result<(), Failure> {
    if args.command.is_empty() && (args.tty || args.cwd.is_some() || !args.env.is_empty()) {
        return Err(
            "cannot use --tty, --cwd or --env with --from alone: they are about a command; add one".into()
        );
    }
    if args.tty && !std::io::stdin().is_terminal() {
        return Err(DoError::NoTerminal.into());
    }
    if let Some(path) = args.cwd.as_ref().filter(|path| !path.is_absolute()) {
        return Err(DoError::RelativeCwd { path: path.clone() }.into());
    }
    Ok(())
}

pub fn run(
    root: Result<Root, Failure>,
    config: Option<&Path>,
    systemd_cgroup: bool,
    command: SnapshotCommand,
) -> Result<u8, Failure> {
    let node = NodeConfig::load(config)?;
    let store = Store::of_user(&node)?;
    match command {
        SnapshotCommand::List { json } => list(&store, json),
        SnapshotCommand::Inspect { which, json } => {
            let place = which.place()?;
            let manifest = store.inspect(&place)?;
            let pages = store.working_set_pages(&place)?;
            if json {
                let mut object = serde_json::to_value(&manifest)?;
                object["working_set_pages"] = json!(pages);
                return say(&(serde_json::to_string_pretty(&object)? + "\n"));
            }
            inspect(&place.to_string(), &manifest, pages)
        }
        SnapshotCommand::Verify { which, key_file } => {
            let place = which.place()?;
            let manifest = store.verify(&place, key_file.as_deref())?;
            say(&format!("{place}: all {} pages are as they were made\n", manifest.head.pages))
        }
        SnapshotCommand::Record(args) => {
            snapshot_record::record(&root?, (node, systemd_cgroup), &store, &args)
        }
        SnapshotCommand::Hold { name } => bases::hold(&root?, &store, &name),
        SnapshotCommand::Release { name } => bases::release(&root?, &store, &name),
        SnapshotCommand::Bases { json } => bases::list(&root?, &store, json),
        SnapshotCommand::Store { name, codec, share_domain, json } => {
            chunks::store(&store, &name, codec, share_domain.as_deref(), json)
        }
        SnapshotCommand::Export(args) => moved::export(&store, &args),
        SnapshotCommand::Import(args) => moved::import(&store, &args),
        SnapshotCommand::Remove { name } => {
            store.remove(&snapshot::name(&name)?)?;
            Ok(0)
        }
    }
}

fn list(store: &Store, json: bool) -> Result<u8, Failure> {
    let all = store.list()?;
    if json {
        return say(&(serde_json::to_string_pretty(&all)? + "\n"));
    }
    let width = all.iter().map(|one| one.name.len()).max().unwrap_or(0).max(12);
    let mut text = format!(
        "{:width$}  {:20}  {:8}  {:>14}  {:>14}  CONTAINER\n",
        "NAME", "CREATED", "PLATFORM", "BYTES", "SHARED"
    );
    for one in &all {
        let manifest = one.manifest.as_ref();
        // It may have come from elsewhere.
        let created = manifest.map_or("-".into(), |manifest| printable(&manifest.created));
        let platform = manifest.map_or("-", Manifest::platform);
        let container = manifest
            .map_or("not this host's, or damaged".into(), |manifest| printable(&manifest.container.id));
        writeln!(
            text,
            "{:width$}  {created:20}  {platform:8}  {:>14}  {:>14}  {container}",
            one.name, one.disk_bytes, one.below_bytes
        )?;
    }
    say(&text)
}

fn or_none(words: &[&str]) -> String {
    if words.is_empty() { "none".into() } else { words.join(" ") }
}

fn inspect(shown: &str, manifest: &Manifest, working_set_pages: Option<usize>) -> Result<u8, Failure> {
    let Manifest { head, container, .. } = manifest;
    let mounts: Vec<_> = container.mounts.iter().map(|mount| mount.path.as_str()).collect();
    let further: Vec<_> = container.pod.iter().flatten().map(|further| further.container.name()).collect();
    let all = [container].into_iter().chain(container.pod.iter().flatten().map(|further| &further.container));
    let written = all.flat_map(|container| &container.written);
    let bundle = container.bundle.display().to_string();
    let lines = [
        ("snapshot", shown.to_owned()),
        ("created", manifest.created.clone()),
        ("container", container.id.clone()),
        ("bundle", if bundle.is_empty() { "on another host".into() } else { bundle }),
        ("host name", container.hostname.clone()),
        ("mounts", mounts.join(" ")),
        ("pod", if container.pod.is_some() { format!("with {}", or_none(&further)) } else { "no".into() }),
        ("platform", manifest.platform().to_owned()),
        ("kernel", head.kernel.clone()),
        ("vCPUs", head.cpus.to_string()),
        ("memory", format!("{} bytes", head.memory_bytes)),
        ("pages", format!("{} of {} bytes", head.pages, abi::PAGE_SIZE)),
        ("packed by", manifest.files.packed.as_ref().map_or("nothing", |packed| &packed.codec).into()),
        ("others' files", format!("{} of snapshots below it", manifest.files.below.len())),
        ("sealed", if manifest.files.sealed.is_some() { "by a key" } else { "no" }.into()),
        ("kernel memory", format!("{} bytes", head.taken_bytes)),
        ("working set", working_set_pages.map_or("not recorded".into(), |pages| format!("{pages} pages"))),
    ];
    let mut text = String::new();
    let written = written.map(|path| ("written to", path.to_owned()));
    for (what, value) in lines.into_iter().chain(written) {
        // It may have come from elsewhere.
        writeln!(text, "{what:14} {}", printable(value))?;
    }
    say(&text)
}
