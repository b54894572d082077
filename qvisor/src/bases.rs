//! `dormouse snapshot hold`, `release` and `bases`: snapshots whose pages are held in memory.

use std::fmt::Write;

use runtime::container;
use runtime::front::CommandRecord;
use runtime::snapshot::Store;
use runtime::snapshot::bases::{self, Held, Holding};
use runtime::state::{Id, Root};
use serde_json::json;

use crate::failure::{Failure, say};
use crate::snapshot_args::named_place;

/// So many letters of a digest are shown, and so many at least are to be said.
const SHOWN_LETTERS: usize = 16;
const SAID_LETTERS: usize = 8;

/// `snapshot hold`.
pub fn hold(root: &Root, store: &Store, name: &str) -> Result<u8, Failure> {
    let Holding { held, was_held } = store.hold_base(root, &named_place(name)?)?;
    let how = if was_held { "is held already" } else { "is held" };
    say(&format!("{name} {how}: {} bytes of pages in memory\n", held.pages_bytes()?))
}

/// `snapshot release`.
pub fn release(root: &Root, store: &Store, name: &str) -> Result<u8, Failure> {
    let failed = |why: &str| Failure::from(format!("cannot release {name}: {why}"));
    let all = all(root)?;
    let present = named_place(name).and_then(|place| store.digest(&place)).ok();
    let by_name = |held: &&Held| held.name() == name;
    let by_digest = |held: &&Held| name.len() >= SAID_LETTERS && held.digest().starts_with(name);
    let is_present = |held: &&Held| present.as_deref() == Some(held.digest());
    // The one that has the name now comes before those that had it.
    let ways: [&dyn Fn(&&Held) -> bool; 3] = [&is_present, &by_name, &by_digest];
    let found =
        ways.iter().map(|way| all.iter().filter(way).collect::<Vec<_>>()).find(|found| !found.is_empty());
    match found.as_deref() {
        Some([held]) => bases::release(root, held).map_err(|error| failed(&error.to_string()))?,
        Some(_) => {
            return Err(failed(
                "several are held that had this name; give a digest of dormouse snapshot bases",
            ));
        }
        None => return Err(failed("it is not held; see dormouse snapshot bases")),
    }
    Ok(0)
}

/// `snapshot bases`.
pub fn list(root: &Root, store: &Store, as_json: bool) -> Result<u8, Failure> {
    let all = all(root)?;
    let used = used(root)?;
    let users = |held: &Held| used.iter().filter(|digest| *digest == held.digest()).count();
    if as_json {
        let object = |held: &Held| -> Result<_, Failure> {
            Ok(json!({
                "name": held.name(), "digest": held.digest(), "is_former": bases::is_former(store, held),
                "pages_bytes": held.pages_bytes()?, "index_bytes": held.index_bytes()?, "sandboxes": users(held),
            }))
        };
        let objects = all.iter().map(object).collect::<Result<Vec<_>, _>>()?;
        return say(&(serde_json::to_string_pretty(&objects)? + "\n"));
    }
    let width = all.iter().map(|held| held.name().len()).max().unwrap_or(0).max(12);
    let mut text = format!(
        "{:width$}  {:SHOWN_LETTERS$}  {:>14}  {:>14}  {:>9}\n",
        "NAME", "DIGEST", "PAGES", "INDEX", "SANDBOXES"
    );
    for held in &all {
        let digest = held.digest().get(..SHOWN_LETTERS).unwrap_or_default();
        let (pages, index) = (held.pages_bytes()?, held.index_bytes()?);
        let remark =
            if bases::is_former(store, held) { "  (another snapshot has the name, or none)" } else { "" };
        writeln!(
            text,
            "{:width$}  {digest}  {pages:>14}  {index:>14}  {:>9}{remark}",
            held.name(),
            users(held)
        )?;
    }
    say(&text)
}

fn all(root: &Root) -> Result<Vec<Held>, Failure> {
    Ok(bases::all(root).map_err(|error| format!("cannot look for snapshots that are held: {error}"))?)
}

/// The digests of the snapshots whose held pages live sandboxes use, one for each sandbox.
fn used(root: &Root) -> Result<Vec<String>, Failure> {
    let of_command = |id: &Id| Some(root.command::<CommandRecord>(id)?.base()?.to_owned());
    let of = |id: &Id| container::base_of(root, id).or_else(|| of_command(id));
    Ok(root.ids()?.iter().filter_map(of).collect())
}
