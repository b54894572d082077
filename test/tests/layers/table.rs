//! The tables of layers in `docs/architecture.md`, and the faults of a crate by its table.

use std::collections::BTreeMap;

use crate::graph::Graph;
use crate::names;

/// The entry of a crate's root file.
pub const ROOT: &str = "(root)";

/// The layers of one crate.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// The crate's source folder, from the repository's root.
    pub folder: String,
    /// The modules on each line, from low to high.
    pub lines: Vec<Vec<String>>,
}

/// Reads the tables of a document: in its section "Layers" each fenced block is one. Its first line is the source
/// folder, the others are layers; text after a `#` is a comment.
pub fn tables(document: &str) -> Vec<Table> {
    let mut tables = Vec::new();
    let mut open: Option<Vec<Vec<String>>> = None;
    let mut is_in_section = false;
    for line in document.lines() {
        let is_fence = line.starts_with("```");
        match &mut open {
            None if line.starts_with("## ") => is_in_section = line.trim_end() == "## Layers",
            None if is_fence && is_in_section => open = Some(Vec::new()),
            Some(lines) if is_fence => {
                let mut lines = std::mem::take(lines).into_iter();
                if let Some(folder) = lines.next() {
                    tables.push(Table { folder: folder.join(", "), lines: lines.collect() });
                }
                open = None;
            }
            Some(lines) => {
                let line = line.split('#').next().unwrap_or_default();
                let entries: Vec<_> = line
                    .split(',')
                    .map(str::trim)
                    .filter(|entry| !entry.is_empty())
                    .map(String::from)
                    .collect();
                if !entries.is_empty() {
                    lines.push(entries);
                }
            }
            None => {}
        }
    }
    tables
}

impl Table {
    /// The faults of the crate by this table, and of the table by the crate: a sentence each.
    pub fn faults(&self, graph: &Graph) -> Vec<String> {
        let mut faults = Vec::new();
        let mut levels = BTreeMap::new();
        for (level, entry) in
            self.lines.iter().enumerate().flat_map(|(level, line)| line.iter().map(move |e| (level, e)))
        {
            if levels.insert(entry.as_str(), level).is_some() {
                faults.push(format!("{}: {entry} is listed twice", self.folder));
            }
        }
        let modules: Vec<String> = graph.files.iter().map(|file| entry_name(&file.module)).collect();
        for entry in levels.keys() {
            if !modules.iter().any(|module| module == entry) {
                faults.push(format!("{}: {entry} is listed, but no file is that module", self.folder));
            } else if *entry == ROOT && graph.root_only_declares {
                faults.push(format!("{}: {ROOT} is listed, but only declares modules", self.folder));
            }
        }
        let entries: Vec<Option<&str>> = modules.iter().map(|module| entry_of(module, &levels)).collect();
        for (module, entry) in modules.iter().zip(&entries) {
            if entry.is_none() && !(module == ROOT && graph.root_only_declares) {
                faults.push(format!("{}: {module} is not listed", self.folder));
            }
        }
        let mut upwards = Vec::new();
        for (&(from, to), imported) in &graph.arrows {
            let (Some(above), Some(below)) = (entries[from], entries[to]) else { continue };
            if above != below && levels[above] <= levels[below] {
                let (from, to) = (&graph.files[from].path, &graph.files[to].path);
                let (from, to) = (from.display(), to.display());
                upwards.push(format!("{above} is not above {below}: {from} -> {to}: {}", names(imported)));
            }
        }
        upwards.sort();
        faults.extend(upwards);
        faults
    }
}

fn entry_name(module: &[String]) -> String {
    if module.is_empty() { ROOT.into() } else { module.join("::") }
}

/// The longest of the entries that is `module` or lies above it.
fn entry_of<'a>(module: &str, levels: &BTreeMap<&'a str, usize>) -> Option<&'a str> {
    let mut prefix = module;
    loop {
        if let Some((entry, _)) = levels.get_key_value(prefix) {
            return Some(entry);
        }
        prefix = prefix.rsplit_once("::")?.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MadeCrate;

    const FILES: &[(&str, &str)] = &[
        ("lib.rs", "mod low; mod left; mod right; mod fs; pub use fs::X;"),
        ("low.rs", "pub struct L;"),
        ("left.rs", "use crate::low::L;"),
        ("right.rs", "use crate::low::L;"),
        ("fs/mod.rs", "mod proc; use crate::left::A; use crate::right::B;"),
        ("fs/proc.rs", "use super::X; use crate::low::L;"),
    ];

    /// The faults of a crate of `files` by the layers `lines`.
    fn faults(name: &str, files: &[(&str, &str)], lines: &str) -> Vec<String> {
        let made = MadeCrate::new(name, files);
        let table = tables(&format!("## Layers\n```\nmade/src\n{lines}\n```\n")).remove(0);
        let graph = Graph::read(&made.source).unwrap();
        let base = format!("{}/", made.source.display());
        table.faults(&graph).into_iter().map(|fault| fault.replace(&base, "")).collect()
    }

    /// [`FILES`] with one of them replaced.
    fn with(path: &'static str, text: &'static str) -> Vec<(&'static str, &'static str)> {
        FILES.iter().map(|&(own, old)| if own == path { (own, text) } else { (own, old) }).collect()
    }

    #[test]
    fn tables_are_read_from_their_section_alone() {
        let document = "```\nnot/this\n```\n## Layers\ntext\n```text\na/src\n  low   # at the bottom, alone\n\n  b, c::d\n```\n\
                        more\n```\ne/src\n  (root)\n```\n### Why\n## Next\n```\nnor/this\n```\n";
        let line = |entries: &[&str]| entries.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            tables(document),
            [
                Table { folder: "a/src".into(), lines: vec![line(&["low"]), line(&["b", "c::d"])] },
                Table { folder: "e/src".into(), lines: vec![line(&["(root)"])] },
            ]
        );
    }

    #[test]
    fn imports_of_lower_lines_and_of_its_own_are_a_modules_right() {
        assert_eq!(faults("right", FILES, "low\nleft, right\nfs\n(root)"), [""; 0]);
        assert_eq!(faults("apart", FILES, "low\nleft, right\nfs\nfs::proc\n(root)"), [""; 0]);
    }

    #[test]
    fn an_import_upwards_is_a_fault() {
        let files = with("low.rs", "use crate::fs::{X, proc::Y};");
        assert_eq!(
            faults("upwards", &files, "low\nleft, right\nfs\n(root)"),
            ["low is not above fs: low.rs -> fs/mod.rs: X", "low is not above fs: low.rs -> fs/proc.rs: Y"]
        );
        assert_eq!(
            faults("nested", FILES, "low\nleft, right\nfs::proc\nfs\n(root)"),
            ["fs::proc is not above fs: fs/proc.rs -> fs/mod.rs: X"]
        );
        let files = with("right.rs", "use crate::X;");
        assert_eq!(
            faults("facade", &files, "low\nleft, right\nfs\n(root)"),
            ["right is not above (root): right.rs -> lib.rs: X"]
        );
    }

    #[test]
    fn an_import_along_a_line_is_a_fault() {
        let files = with("right.rs", "use crate::left::A;");
        assert_eq!(
            faults("along", &files, "low\nleft, right\nfs\n(root)"),
            ["right is not above left: right.rs -> left.rs: A"]
        );
    }

    #[test]
    fn source_and_table_name_the_same_modules() {
        assert_eq!(
            faults("differ", FILES, "low\nleft, gone, left\nfs\n(root)"),
            [
                "made/src: left is listed twice",
                "made/src: gone is listed, but no file is that module",
                "made/src: right is not listed",
            ]
        );
        assert_eq!(faults("unlisted", FILES, "low\nleft, right\nfs"), ["made/src: (root) is not listed"]);
        let files = with("lib.rs", "mod low; mod left; mod right; mod fs;");
        assert_eq!(faults("bare", &files, "low\nleft, right\nfs"), [""; 0]);
        assert_eq!(
            faults("needless", &files, "low\nleft, right\nfs\n(root)"),
            ["made/src: (root) is listed, but only declares modules"]
        );
    }
}
