//! Files of control groups: numbers, and lines of a name and a number. What is missing counts as nothing.

use std::collections::HashMap;
use std::path::Path;

/// A directory of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a>(pub &'a Path);

impl Group<'_> {
    pub fn text(self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    pub fn number(self, file: &str) -> u64 {
        number(&self.text(file))
    }

    /// Lines of a name and a number.
    pub fn table(self, file: &str) -> Table {
        Table::read(&self.text(file))
    }
}

/// A number; `max` is the largest one.
pub(super) fn number(text: &str) -> u64 {
    match text.trim() {
        "max" => u64::MAX,
        text => text.parse().unwrap_or(0),
    }
}

/// Numbers by name.
#[derive(Debug, Default)]
pub(super) struct Table(HashMap<String, u64>);

impl Table {
    pub fn read(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Self(pairs.map(|(name, value)| (name.to_owned(), number(value))).collect())
    }

    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}
