//! Workload files: blocks of `key: value` lines separated by empty lines, `#` for comments.
//!
//! | key | meaning |
//! |---|---|
//! | `name` | unique |
//! | `cmd` | run by `/bin/sh -c`; further lines, indented, belong to it |
//! | `lab` | the command for slow, emulated machines (default: the same) |
//! | `needs` | programs that must be installed, else the workload is skipped |
//! | `expect` | `same-as-native` (default), `exit N`, `exit N: TEXT` (exact output and a newline), or `one-of N M …` |
//! | `options` | further options of `dormouse do` |
//! | `timeout` | seconds |
//! | `only` | `sandbox`: there is nothing to run natively |

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// What must come out.
pub enum Expect {
    SameAsNative,
    Exactly { code: i32, stdout: Option<String> },
    OneOf { codes: Vec<i32> },
}

/// One workload.
pub struct Workload {
    pub name: String,
    full: String,
    lab: Option<String>,
    needs: Vec<String>,
    pub expect: Expect,
    pub options: Vec<String>,
    pub timeout: Option<u64>,
    pub sandbox_only: bool,
}

impl Workload {
    /// The command for this kind of machine.
    pub fn command(&self, lab: bool) -> &str {
        match &self.lab {
            Some(command) if lab => command,
            _ => &self.full,
        }
    }

    /// The first program it needs that isn't on `PATH`.
    pub fn missing_program(&self) -> Option<&str> {
        let path = env::var_os("PATH").unwrap_or_default();
        let found = |name: &str| env::split_paths(&path).any(|dir: PathBuf| dir.join(name).exists());
        self.needs.iter().map(String::as_str).find(|name| !found(name))
    }
}

/// Reads a workload file.
pub fn read(file: &Path) -> Result<Vec<Workload>, String> {
    let text =
        fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let mut workloads = Vec::new();
    let mut keys: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.trim_start().starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            if !keys.is_empty() {
                workloads.push(
                    build(std::mem::take(&mut keys))
                        .map_err(|error| format!("{}: {error}", file.display()))?,
                );
            }
        } else if let Some((_, value)) = keys.last_mut().filter(|_| line.starts_with(' ')) {
            value.push('\n');
            value.push_str(line.trim());
        } else {
            let (key, value) =
                line.split_once(':').ok_or_else(|| format!("{}: not a key: {line}", file.display()))?;
            keys.push((key.to_owned(), value.trim().to_owned()));
        }
    }
    Ok(workloads)
}

fn build(keys: Vec<(String, String)>) -> Result<Workload, String> {
    let mut workload = Workload {
        name: String::new(),
        full: String::new(),
        lab: None,
        needs: Vec::new(),
        expect: Expect::SameAsNative,
        options: Vec::new(),
        timeout: None,
        sandbox_only: false,
    };
    for (key, value) in keys {
        let words = || value.split_whitespace().map(str::to_owned).collect();
        match key.as_str() {
            "name" => workload.name = value,
            "cmd" => workload.full = value,
            "lab" => workload.lab = Some(value),
            "needs" => workload.needs = words(),
            "options" => workload.options = words(),
            "timeout" => {
                workload.timeout = Some(value.parse().map_err(|_| format!("not a number: {value}"))?)
            }
            "only" if value == "sandbox" => workload.sandbox_only = true,
            "expect" => workload.expect = expectation(&value)?,
            _ => return Err(format!("unknown key {key}")),
        }
    }
    if workload.name.is_empty() || workload.full.is_empty() {
        return Err(format!("workload {} has no name or no command", workload.name));
    }
    Ok(workload)
}

fn expectation(text: &str) -> Result<Expect, String> {
    if text == "same-as-native" {
        return Ok(Expect::SameAsNative);
    }
    let number = |text: &str| text.trim().parse::<i32>().map_err(|_| format!("not an exit code: {text}"));
    if let Some(codes) = text.strip_prefix("one-of ") {
        let codes = codes.split_whitespace().map(number).collect::<Result<_, _>>()?;
        return Ok(Expect::OneOf { codes });
    }
    let rest = text.strip_prefix("exit ").ok_or_else(|| format!("unknown expectation: {text}"))?;
    let (code, stdout) = match rest.split_once(':') {
        Some((code, stdout)) => (code, Some(format!("{}\n", stdout.trim()))),
        None => (rest, None),
    };
    Ok(Expect::Exactly { code: number(code)?, stdout })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_with_a_continued_command_is_read() {
        let keys = vec![
            ("name".into(), "x".into()),
            ("cmd".into(), "a\nb".into()),
            ("expect".into(), "exit 3: hi".into()),
        ];
        let workload = build(keys).unwrap();
        assert_eq!(workload.command(true), "a\nb");
        assert!(matches!(workload.expect, Expect::Exactly { code: 3, stdout: Some(text) } if text == "hi\n"));
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(build(vec![("nmae".into(), "x".into())]).is_err());
    }
}
