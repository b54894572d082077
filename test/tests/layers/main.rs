//! The order of modules inside each crate: the tables in `docs/architecture.md`, section "Layers", hold.
//!
//! A module may import only modules on earlier lines of its crate's table. Imports are read from the source itself,
//! without the compiler: paths that begin with `crate`, `super`, `self`, a child module, or a module that a `use` names
//! lead to the file of the deepest module on them. Not seen are: methods and values that reach a module without a path,
//! names that a glob imports, paths in strings (`#[serde(with = "…")]`), code that a macro builds from parts, files
//! that are taken in by `include!` or `#[path]`, and paths to the own crate by its name. A macro's body counts where it
//! is written.

mod contents;
mod graph;
mod table;
mod tokens;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use graph::Graph;
use table::{Table, tables};

/// Files that may import each other in a circle.
const LARGEST_CIRCLE: usize = 8;

/// Crates that need no table as long as they have fewer files than [`SMALL_FILES`].
const SMALL: &[&str] = &["qvisor/regex/src", "test/src", "test/ring0/src", "qvisor/testdir/src"];
const SMALL_FILES: usize = 12;

/// Shows the imports of the files under a path.
const SHOW: &str = "LAYERS_SHOW";

#[test]
fn no_module_imports_from_above() {
    let repository = repository();
    let document = read(&repository.join("docs/architecture.md"));
    let tables = tables(&document);
    let mut folders = source_folders(&repository);
    let mut faults = Vec::new();
    for table in &tables {
        if tables.iter().filter(|other| other.folder == table.folder).count() > 1 {
            faults.push(format!("{} has two tables", table.folder));
        }
    }
    for listed in SMALL {
        if !folders.iter().any(|folder| folder == listed) {
            faults.push(format!("{listed} needs no exemption: it is no crate of the workspace"));
        }
    }
    folders.extend(tables.iter().map(|table| table.folder.clone()));
    folders.sort();
    folders.dedup();

    let show = std::env::var(SHOW).ok();
    let mut report = String::from("\n");
    for folder in &folders {
        let graph = match Graph::read(&repository.join(folder)) {
            Ok(graph) => graph.relative_to(&repository),
            Err(error) => {
                faults.push(error);
                continue;
            }
        };
        let own = faults_of(folder, tables.iter().find(|table| table.folder == *folder), &graph);
        write_report(&mut report, folder, &graph, &own);
        if let Some(under) = &show {
            write_imports(&mut report, Path::new(under), &graph);
        }
        faults.extend(own);
    }
    println!("{report}");
    assert!(
        faults.is_empty(),
        "the layers in docs/architecture.md do not hold ({}):\n  {}",
        faults.len(),
        faults.join("\n  ")
    );
}

/// The faults of the crate in `folder`: a sentence each.
fn faults_of(folder: &str, table: Option<&Table>, graph: &Graph) -> Vec<String> {
    let mut faults = match table {
        None if SMALL.contains(&folder) && graph.files.len() < SMALL_FILES => Vec::new(),
        None => vec![format!("{folder} has no table")],
        Some(table) => table.faults(graph),
    };
    let circle = graph.largest_circle().len();
    if circle > LARGEST_CIRCLE {
        faults.push(format!("{folder}: {circle} files import each other in a circle; {LARGEST_CIRCLE} may"));
    }
    faults.extend(graph.strays.iter().map(|stray| format!("{} is declared by no module", stray.display())));
    faults
}

/// Writes a crate's figures and faults.
fn write_report(report: &mut String, folder: &str, graph: &Graph, faults: &[String]) {
    let circle = graph.largest_circle();
    let (files, arrows) = (graph.files.len(), graph.arrows.len());
    let mut line = |text: String| writeln!(report, "{text}").expect("a string takes all");
    line(format!("{folder}: {files} files, {arrows} arrows, largest circle {}", circle.len()));
    if circle.len() > 1 {
        let paths = circle.iter().map(|&id| graph.files[id].path.as_path());
        let mut paths: Vec<_> =
            paths.map(|path| path.strip_prefix(folder).unwrap_or(path).display().to_string()).collect();
        paths.sort();
        line(format!("  circle: {}", paths.join(" ")));
    }
    for fault in faults {
        line(format!("  {fault}"));
    }
}

/// Writes the imports of the files under a path: `a/b` stands for the folder `a/b` and for the file `a/b.rs`.
fn write_imports(report: &mut String, under: &Path, graph: &Graph) {
    let mut lines = Vec::new();
    for (&(from, to), imported) in &graph.arrows {
        let (from, to) = (&graph.files[from].path, &graph.files[to].path);
        if from.starts_with(under) || from.with_extension("") == under {
            lines.push(format!("  {} -> {}: {}\n", from.display(), to.display(), names(imported)));
        }
    }
    lines.sort();
    report.extend(lines);
}

/// Imported names, in one line.
fn names(imported: &BTreeSet<String>) -> String {
    imported.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The source folders of the workspace's members.
fn source_folders(repository: &Path) -> Vec<String> {
    let manifest = read(&repository.join("Cargo.toml"));
    let members = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (members, _) = members.expect("Cargo.toml lists the workspace's members");
    // Every second part is between quotes.
    let members = members.split('"').skip(1).step_by(2);
    members.map(|member| format!("{member}/src")).filter(|folder| repository.join(folder).is_dir()).collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// A crate's source folder made for a test, and removed with the value.
struct MadeCrate {
    source: PathBuf,
}

impl MadeCrate {
    /// Makes a folder with these files; `name` is one test's own.
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let source =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("layers-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = source.join(path);
            fs::create_dir_all(path.parent().expect("a file lies in a folder"))
                .expect("the folder can be made");
            fs::write(path, text).expect("the file can be written");
        }
        Self { source }
    }
}

impl Drop for MadeCrate {
    fn drop(&mut self) {
        // Files that cannot be removed stay under `target`.
        let _ = fs::remove_dir_all(&self.source);
    }
}

#[test]
fn members_are_read_from_the_manifest() {
    let folders = source_folders(&repository());
    assert!(folders.iter().any(|folder| folder == "allocator/src"), "{folders:?}");
}
