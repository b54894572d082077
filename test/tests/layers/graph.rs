//! The files of a crate and the imports between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::contents::{Body, Contents, Mention, contents, without_tests};
use crate::tokens::tokens;

/// A module's path from the crate's root, which is empty.
pub type ModulePath = Vec<String>;

/// A file, by its place in [`Graph::files`].
pub type FileId = usize;

/// The files of a crate and the imports between them.
pub struct Graph {
    /// The root comes first.
    pub files: Vec<File>,
    /// The imports of each file from each other one: the names, or `(module)` if only the module is imported.
    pub arrows: BTreeMap<(FileId, FileId), BTreeSet<String>>,
    /// Files that no module declares.
    pub strays: Vec<PathBuf>,
    /// The root declares modules and nothing else.
    pub root_only_declares: bool,
}

/// A file that is a module.
pub struct File {
    pub module: ModulePath,
    pub path: PathBuf,
}

/// The modules of a crate, found by following declarations from its root.
struct Modules {
    files: Vec<File>,
    contents: Vec<Contents>,
    /// Where each module's source is, inline modules included.
    homes: BTreeMap<ModulePath, FileId>,
}

impl Graph {
    /// Reads the crate in the folder `source`. An error says which file is missing or cannot be read.
    pub fn read(source: &Path) -> Result<Self, String> {
        let modules = Modules::read(source, true)?;
        Ok(Self {
            arrows: modules.arrows(),
            strays: strays(source)?,
            root_only_declares: modules.contents[0].only_declares,
            files: modules.files,
        })
    }

    /// The graph with its paths shown from the folder `base` on.
    pub fn relative_to(mut self, base: &Path) -> Self {
        let files = self.files.iter_mut().map(|file| &mut file.path);
        for path in files.chain(&mut self.strays) {
            if let Ok(relative) = path.strip_prefix(base) {
                *path = relative.to_owned();
            }
        }
        self
    }

    /// The largest set of files that all import each other, directly or by others.
    pub fn largest_circle(&self) -> Vec<FileId> {
        let mut next = vec![Vec::new(); self.files.len()];
        for &(from, to) in self.arrows.keys() {
            next[from].push(to);
        }
        largest_circle(&next)
    }
}

/// The largest set of nodes that reach each other in the graph that leads from node `n` to each of `next[n]`. Graphs
/// are small, so each node's reach is walked on its own.
pub fn largest_circle(next: &[Vec<usize>]) -> Vec<usize> {
    let reach: Vec<Vec<bool>> = (0..next.len())
        .map(|start| {
            let mut reached = vec![false; next.len()];
            let mut open = vec![start];
            while let Some(node) = open.pop() {
                for &to in &next[node] {
                    if !std::mem::replace(&mut reached[to], true) {
                        open.push(to);
                    }
                }
            }
            reached
        })
        .collect();
    let circle_of = |a: usize| (0..next.len()).filter(|&b| a == b || (reach[a][b] && reach[b][a])).collect();
    (0..next.len()).map(circle_of).max_by_key(|circle: &Vec<usize>| circle.len()).unwrap_or_default()
}

impl Modules {
    fn read(source: &Path, leave_out_tests: bool) -> Result<Self, String> {
        let root =
            ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|root| root.is_file());
        let root = root.ok_or_else(|| format!("{} has no lib.rs and no main.rs", source.display()))?;
        let mut modules = Self { files: Vec::new(), contents: Vec::new(), homes: BTreeMap::new() };
        let mut open = vec![File { module: Vec::new(), path: root }];
        while let Some(file) = open.pop() {
            let text = fs::read_to_string(&file.path)
                .map_err(|error| format!("cannot read {}: {error}", file.path.display()))?;
            let tokens = tokens(&text);
            let contents = contents(&if leave_out_tests { without_tests(&tokens) } else { tokens });
            let id = modules.files.len();
            for declared in &contents.modules {
                let module: ModulePath = file.module.iter().chain(&declared.path).cloned().collect();
                match &declared.body {
                    Body::Inline => drop(modules.homes.insert(module, id)),
                    Body::OwnFile => open.push(File { path: file_of(source, &module)?, module }),
                    Body::At(_) => {}
                }
            }
            modules.homes.insert(file.module.clone(), id);
            modules.files.push(file);
            modules.contents.push(contents);
        }
        Ok(modules)
    }

    /// The imports of each file from each other one. A name that a file takes through a re-export comes from the file
    /// that re-exports it.
    fn arrows(&self) -> BTreeMap<(FileId, FileId), BTreeSet<String>> {
        let exported: BTreeSet<_> =
            self.contents.iter().flat_map(|contents| &contents.exported_macros).collect();
        let aliases = self.aliases();
        let mut arrows: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for (from, module, mention) in self.mentions() {
            let Some((mut target, mut rest)) = self.resolve(&module, &mention.path, &aliases) else {
                continue;
            };
            // Only `use` can mean a module by its last name: elsewhere it is an item called like its neighbour.
            if rest.is_empty() && mention.alias.is_none() && target.pop().is_some() {
                rest = &mention.path[mention.path.len() - 1..];
            }
            let to = self.homes[&target];
            // The path of an exported macro does not say where it is defined.
            let is_macro = target.is_empty() && rest.first().is_some_and(|name| exported.contains(name));
            if to != from && !is_macro {
                let name = rest.first().map_or("(module)", String::as_str);
                arrows.entry((from, to)).or_default().insert(name.to_owned());
            }
        }
        for names in arrows.values_mut().filter(|names| names.len() > 1) {
            names.remove("(module)");
        }
        arrows
    }

    /// Each path that the crate mentions, with its file and its module.
    fn mentions(&self) -> impl Iterator<Item = (FileId, ModulePath, &Mention)> {
        self.files.iter().zip(&self.contents).enumerate().flat_map(|(id, (file, contents))| {
            contents.paths.iter().map(move |mention| {
                let module = file.module.iter().chain(&mention.inside).cloned().collect();
                (id, module, mention)
            })
        })
    }

    /// The modules that `use` brings into modules under some name, so that `use crate::a; a::b::X` leads to `a::b`.
    fn aliases(&self) -> BTreeMap<ModulePath, ModulePath> {
        let mut aliases = BTreeMap::new();
        loop {
            let known = aliases.len();
            for (_, module, mention) in self.mentions() {
                let Some(alias) = &mention.alias else { continue };
                if let Some((target, [])) = self.resolve(&module, &mention.path, &aliases) {
                    aliases.insert(child(&module, alias), target);
                }
            }
            if aliases.len() == known {
                return aliases;
            }
        }
    }

    /// The deepest module that exists on `path` as it is written in `module`, and what is left of the path. Nothing if
    /// the path begins with another crate or with an item.
    fn resolve<'a>(
        &self,
        module: &[String],
        path: &'a [String],
        aliases: &BTreeMap<ModulePath, ModulePath>,
    ) -> Option<(ModulePath, &'a [String])> {
        let (first, mut rest) = path.split_first()?;
        let named = child(module, first);
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module.split_last()?.1.to_vec(),
            _ if self.homes.contains_key(&named) => named,
            _ => aliases.get(&named)?.clone(),
        };
        while let Some((name, after)) = rest.split_first() {
            let below = child(&at, name);
            if name == "super" {
                at.pop();
            } else if self.homes.contains_key(&below) {
                at = below;
            } else {
                break;
            }
            rest = after;
        }
        Some((at, rest))
    }
}

fn child(module: &[String], name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// The file of a module that is declared without a body.
fn file_of(source: &Path, module: &[String]) -> Result<PathBuf, String> {
    let base: PathBuf = module.iter().map(|name| name.strip_prefix("r#").unwrap_or(name)).collect();
    let candidates = [source.join(base.with_extension("rs")), source.join(base.join("mod.rs"))];
    candidates
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| format!("the module {} in {} has no file", module.join("::"), source.display()))
}

/// Files in the folder `source` that no module declares, not even one for tests, and that are not programs' roots.
fn strays(source: &Path) -> Result<Vec<PathBuf>, String> {
    let modules = Modules::read(source, false)?;
    let mut known: BTreeSet<PathBuf> = modules.files.iter().map(|file| file.path.clone()).collect();
    known.insert(source.join("main.rs"));
    for (file, contents) in modules.files.iter().zip(&modules.contents) {
        let folder = file.path.parent().unwrap_or(source);
        for declared in &contents.modules {
            if let Body::At(path) = &declared.body {
                known.insert(folder.join(path));
            }
        }
    }
    let mut found = Vec::new();
    let mut folders = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        let unreadable = |error| format!("cannot read {}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.is_dir() {
                if path != source.join("bin") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") && !known.contains(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MadeCrate;

    /// The arrows of a crate of these files, as `from -> to: names`.
    fn arrows(name: &str, files: &[(&str, &str)]) -> Vec<String> {
        let made = MadeCrate::new(name, files);
        let graph = Graph::read(&made.source).unwrap();
        assert!(graph.strays.is_empty(), "{:?}", graph.strays);
        let name =
            |id: FileId| graph.files[id].path.strip_prefix(&made.source).unwrap().display().to_string();
        let shown = graph.arrows.iter().map(|(&(from, to), names)| {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            format!("{} -> {}: {}", name(from), name(to), names.join(" "))
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort();
        shown
    }

    #[test]
    fn paths_lead_to_the_deepest_module() {
        let found = arrows(
            "deepest",
            &[
                ("lib.rs", "mod a; mod b; pub use a::inner::{X, y::Z};"),
                ("a/mod.rs", "pub mod inner; pub use inner::X; use super::b::f;"),
                ("a/inner/mod.rs", "pub mod y; fn g() { y::h(); super::super::b::f(); super::own() }"),
                ("a/inner/y.rs", "use super::super::X; use super::X as Y; use std::io;"),
                ("b.rs", "use crate::a; fn f() -> a::inner::y::Z { a::own() } use crate::Z;"),
            ],
        );
        assert_eq!(
            found,
            [
                "a/inner/mod.rs -> a/inner/y.rs: h",
                "a/inner/mod.rs -> a/mod.rs: own",
                "a/inner/mod.rs -> b.rs: f",
                "a/inner/y.rs -> a/inner/mod.rs: X",
                "a/inner/y.rs -> a/mod.rs: X",
                "a/mod.rs -> a/inner/mod.rs: X",
                "a/mod.rs -> b.rs: f",
                "b.rs -> a/inner/y.rs: Z",
                "b.rs -> a/mod.rs: own",
                "b.rs -> lib.rs: Z",
                "lib.rs -> a/inner/mod.rs: X",
                "lib.rs -> a/inner/y.rs: Z",
            ]
        );
    }

    #[test]
    fn a_function_may_be_called_like_a_module() {
        let found = arrows(
            "alike",
            &[
                ("lib.rs", "mod a; mod b; mod c;"),
                ("a/mod.rs", "mod start; pub fn start() {}"),
                ("a/start.rs", ""),
                ("b.rs", "use crate::a; fn f() { a::start(); }"),
                ("c.rs", "use crate::a::start; fn f() { start::g(); }"),
            ],
        );
        assert_eq!(found, ["b.rs -> a/mod.rs: start", "c.rs -> a/start.rs: g"]);
    }

    #[test]
    fn declarations_tests_and_exported_macros_give_no_arrow() {
        let found = arrows(
            "none",
            &[
                ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"),
                (
                    "a.rs",
                    "#[macro_export] macro_rules! say { () => {} } #[cfg(test)] #[path = \"a_tests.rs\"] mod t;",
                ),
                ("b.rs", "use crate::say; fn f() { crate::say!(); vec::Vec::new() } // crate::a::X"),
                ("tests.rs", "use crate::a::X; mod more;"),
                ("tests/more.rs", "use crate::a::X;"),
                ("a_tests.rs", "use crate::b::X;"),
                ("main.rs", "use other::a::X;"),
                ("bin/tool.rs", "fn main() {}"),
            ],
        );
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn inline_modules_are_part_of_their_file() {
        let found = arrows(
            "inline",
            &[
                ("main.rs", "mod a; mod b { mod c; pub use super::a::X; } use b::X;"),
                ("a.rs", "mod own { use super::Y; use crate::b::X; } use own::Z;"),
                ("b/c.rs", "use super::X; use super::super::a::W;"),
            ],
        );
        assert_eq!(
            found,
            ["a.rs -> main.rs: X", "b/c.rs -> a.rs: W", "b/c.rs -> main.rs: X", "main.rs -> a.rs: X"]
        );
    }

    #[test]
    fn a_file_that_nothing_declares_is_a_stray() {
        let made =
            MadeCrate::new("stray", &[("lib.rs", "mod a;"), ("a.rs", ""), ("lost.rs", "use crate::a::X;")]);
        assert_eq!(Graph::read(&made.source).unwrap().strays, [made.source.join("lost.rs")]);
    }

    #[test]
    fn a_module_without_a_file_is_an_error() {
        let made = MadeCrate::new("missing", &[("lib.rs", "mod a;")]);
        let error = Graph::read(&made.source).err().unwrap();
        assert!(error.starts_with("the module a in "), "{error}");
    }

    #[test]
    fn the_largest_circle_is_found() {
        assert_eq!(largest_circle(&[]), [0; 0]);
        assert_eq!(largest_circle(&[vec![1], vec![]]).len(), 1);
        // 0 and 1 call each other and lead to 2 → 3 → 4 → 2; 5 leads in, 6 is led to.
        let next = [vec![1], vec![0, 2], vec![3], vec![4], vec![2, 6], vec![0], vec![]];
        assert_eq!(largest_circle(&next), [2, 3, 4]);
    }
}
