//! `dormouse store push` and `pull`, `snapshot export` and `import`: snapshots that travel between hosts.

use std::fmt::Write;
use std::path::Path;

use runtime::snapshot::{self, Came, Pushed, Store, printable};
use runtime::state::Id;
use vmm::checkpoint::Style;

use crate::codec_args::check_travelling_codec;
use crate::failure::{Failure, say};
use crate::snapshot_args::{ComingArgs, ExportArgs, ImportArgs};

/// `store push`.
pub fn push(store: &Store, dir: &Path, names: &[String], codec: Style) -> Result<u8, Failure> {
    check_travelling_codec(codec, || format!("push to {}", dir.display()))?;
    let ids: Vec<Id> = names.iter().map(|name| snapshot::name(name)).collect::<Result<_, _>>()?;
    for name in ids {
        let Pushed { bytes, added_bytes, was_there } = store.push(&name, dir, codec)?;
        let name = name.as_str();
        say(&if was_there {
            format!("{name}: is in {} already\n", dir.display())
        } else {
            format!("{name}: pushed {bytes} bytes, which took {added_bytes} more there\n")
        })?;
    }
    Ok(0)
}

/// `store pull`.
pub fn pull(store: &Store, dir: &Path, names: &[String], coming: ComingArgs) -> Result<u8, Failure> {
    let names: Vec<Id> = names.iter().map(|name| snapshot::name(name)).collect::<Result<_, _>>()?;
    let came = store.pull(dir, &names, coming.into())?;
    finish(store, &came, coming)
}

/// `snapshot export`.
pub fn export(store: &Store, args: &ExportArgs) -> Result<u8, Failure> {
    let ExportArgs { name, file, codec } = args;
    check_travelling_codec(*codec, || format!("export {name}"))?;
    let Pushed { bytes, added_bytes, .. } = store.export(&snapshot::name(name)?, file, *codec)?;
    say(&format!("{name}: exported {bytes} bytes to {added_bytes} of {}\n", file.display()))
}

/// `snapshot import`.
pub fn import(store: &Store, args: &ImportArgs) -> Result<u8, Failure> {
    let name = args.name.as_deref().map(snapshot::name).transpose()?;
    let came = store.import(&args.file, name.as_ref(), args.coming.into())?;
    finish(store, &[came], args.coming)
}

/// Puts snapshots that have come into the store of chunks, if they are to be there, and prints their names, and which files of this host those
/// see that came by trust.
fn finish(store: &Store, came: &[Came], coming: ComingArgs) -> Result<u8, Failure> {
    let mut text = String::new();
    for Came { name, host_paths } in came {
        if coming.store {
            store.put_away(name, None, Style::None)?;
        }
        writeln!(text, "{}", name.as_str())?;
        for (path, is_changed) in host_paths {
            let does = if *is_changed { "reads and changes" } else { "reads" };
            writeln!(text, "  {does} {} of this host", printable(path.display()))?;
        }
    }
    say(&text)
}
