//! `dormouse store push` and `pull`, `snapshot export` and `import`: snapshots that travel between hosts.

use std::fmt::Write;
use std::path::Path;

use runtime::snapshot::{self, Pushed, Store};
use runtime::state::Id;
use vmm::checkpoint::Style;

use crate::codec_args::check_chunk_codec;
use crate::failure::{Failure, say};
use crate::snapshot_args::{ComingArgs, ExportArgs, ImportArgs};

/// `store push`.
pub fn push(store: &Store, dir: &Path, names: &[String], codec: Style) -> Result<u8, Failure> {
    check_chunk_codec(codec, || format!("push to {}", dir.display()))?;
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
    let names = store.pull(dir, &names, coming.into())?;
    finish(store, &names, coming)
}

/// `snapshot export`.
pub fn export(store: &Store, args: &ExportArgs) -> Result<u8, Failure> {
    let ExportArgs { name, file, codec } = args;
    check_chunk_codec(*codec, || format!("export {name}"))?;
    let Pushed { bytes, added_bytes, .. } = store.export(&snapshot::name(name)?, file, *codec)?;
    say(&format!("{name}: exported {bytes} bytes to {added_bytes} of {}\n", file.display()))
}

/// `snapshot import`.
pub fn import(store: &Store, args: &ImportArgs) -> Result<u8, Failure> {
    let name = args.name.as_deref().map(snapshot::name).transpose()?;
    let name = store.import(&args.file, name.as_ref(), args.coming.into())?;
    finish(store, &[name], args.coming)
}

/// Puts snapshots that have come into the store of chunks, if they are to be there, and prints their names.
fn finish(store: &Store, names: &[Id], coming: ComingArgs) -> Result<u8, Failure> {
    let mut text = String::new();
    for name in names {
        if coming.store {
            store.put_away(name, None, Style::None)?;
        }
        writeln!(text, "{}", name.as_str())?;
    }
    say(&text)
}
