//! Files of control groups: numbers, and lines of a name and a number. What is missing counts as nothing.

use std::collections::BTreeMap;
use std::path::Path;

/// A directory of a group.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a>(pub &'a Path);

impl Group<'_> {
    #[must_use]
    pub fn text(self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    /// A file with one number; `max` is the largest one.
    #[must_use]
    pub fn number(self, file: &str) -> u64 {
        number(&self.text(file))
    }

    /// The number in a file that holds a limit; `None`: it sets no limit, or there is no such file.
    #[must_use]
    pub fn limit(self, file: &str) -> Option<u64> {
        self.text(file).trim().parse().ok()
    }

    /// Lines of a name and a number.
    #[must_use]
    pub fn table(self, file: &str) -> Table {
        Table::read(&self.text(file))
    }
}

/// A number; `max` is the largest one.
#[must_use]
pub fn number(text: &str) -> u64 {
    match text.trim() {
        "max" => u64::MAX,
        text => text.parse().unwrap_or(0),
    }
}

/// Numbers by name.
#[derive(Debug, Default)]
pub struct Table(pub BTreeMap<String, u64>);

impl Table {
    #[must_use]
    pub fn read(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Self(pairs.map(|(name, value)| (name.to_owned(), number(value))).collect())
    }

    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}
