//! Workload files: blocks of `key: value` lines separated by empty lines, `#` for comments. The keys are explained in
//! `test/workloads.txt`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The expected outcome.
#[derive(Debug, PartialEq, Eq)]
pub struct Expect {
    /// Any of these exit codes, or with `forbidden` any but these.
    pub codes: Vec<i32>,
    pub forbidden: bool,
    /// The exact output; `None`: the same output as natively.
    pub stdout: Option<Vec<u8>>,
    /// Whether the output counts at all.
    pub any_output: bool,
}

impl Expect {
    /// Whether the output is compared with that of a native run.
    pub fn is_native(&self) -> bool {
        self.stdout.is_none() && !self.any_output
    }
}

/// One workload.
pub struct Workload {
    pub name: String,
    command: String,
    scale: Option<String>,
    needs: Vec<String>,
    pub expect: Expect,
    pub options: Vec<String>,
    pub timeout: Option<u64>,
    pub sandbox_only: bool,
    /// The lab's emulated machine cannot run it in useful time, without a sandbox either.
    pub outside_lab: bool,
}

impl Workload {
    /// The command for this kind of machine.
    pub fn command(&self, lab: bool) -> String {
        match &self.scale {
            Some(scale) if lab => format!("export {scale}; {}", self.command),
            _ => self.command.clone(),
        }
    }

    /// The first program it needs that isn't installed.
    pub fn missing_program(&self) -> Option<&str> {
        let path = env::var_os("PATH").unwrap_or_default();
        let found = |name: &str| {
            if name.contains('/') {
                return Path::new(name).exists();
            }
            env::split_paths(&path).any(|dir: PathBuf| dir.join(name).exists())
        };
        self.needs.iter().map(String::as_str).find(|name| !found(name))
    }
}

/// Reads a workload file.
pub fn read(file: &Path) -> Result<Vec<Workload>, String> {
    let text =
        fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let mut workloads = Vec::new();
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            if !keys.is_empty() {
                let workload = build(&std::mem::take(&mut keys));
                workloads.push(workload.map_err(|error| format!("{}: {error}", file.display()))?);
            }
            continue;
        }
        let (key, value) =
            line.split_once(':').ok_or_else(|| format!("{}: not a key: {line}", file.display()))?;
        keys.push((key, value.trim()));
    }
    Ok(workloads)
}

fn build(keys: &[(&str, &str)]) -> Result<Workload, String> {
    let mut workload = Workload {
        name: String::new(),
        command: String::new(),
        scale: None,
        needs: Vec::new(),
        expect: Expect { codes: vec![0], forbidden: false, stdout: None, any_output: false },
        options: Vec::new(),
        timeout: None,
        sandbox_only: false,
        outside_lab: false,
    };
    for (key, value) in keys {
        let words = || value.split_whitespace().map(str::to_owned).collect();
        match *key {
            "name" => workload.name = (*value).to_owned(),
            "cmd" => workload.command = (*value).to_owned(),
            "scale" => workload.scale = Some((*value).to_owned()),
            "needs" => workload.needs = words(),
            "options" => workload.options = words(),
            "timeout" => {
                workload.timeout = Some(value.parse().map_err(|_| format!("not a number: {value}"))?)
            }
            "only" if *value == "sandbox" => workload.sandbox_only = true,
            "only" if *value == "outside-lab" => workload.outside_lab = true,
            "expect" => workload.expect = expectation(value)?,
            _ => return Err(format!("unknown key {key}")),
        }
    }
    if workload.name.is_empty() || workload.command.is_empty() {
        return Err(format!("workload {} has no name or no command", workload.name));
    }
    Ok(workload)
}

/// `CODE[,CODE…]` or `!CODE[,CODE…]`, then `same-as-native`, `any`, or the output as a quoted printf format.
fn expectation(text: &str) -> Result<Expect, String> {
    let (codes, output) = text.split_once(' ').unwrap_or((text, "same-as-native"));
    let number = |code: &str| code.parse().map_err(|_| format!("not an exit code: {code}"));
    let (codes, forbidden) = codes.strip_prefix('!').map_or((codes, false), |codes| (codes, true));
    let codes = codes.split(',').map(number).collect::<Result<_, _>>()?;
    let quoted = output.strip_prefix('\'').and_then(|output| output.strip_suffix('\''));
    let stdout = match (output, quoted) {
        ("same-as-native" | "any", _) => None,
        (_, Some(quoted)) => Some(quoted.replace("\\n", "\n").into_bytes()),
        _ => return Err(format!("unknown expectation: {text}")),
    };
    Ok(Expect { codes, forbidden, stdout, any_output: output == "any" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_are_read() {
        let exact =
            Expect { codes: vec![7], forbidden: false, stdout: Some(b"hello\n".to_vec()), any_output: false };
        assert_eq!(expectation("7 'hello\\n'"), Ok(exact));
        assert_eq!(expectation("0,137 any").unwrap().codes, [0, 137]);
        assert!(expectation("!125 any").unwrap().forbidden);
        assert!(expectation("0 nonsense").is_err());
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(build(&[("nmae", "x")]).is_err());
    }

    #[test]
    fn the_scale_goes_before_the_command() {
        let workload = build(&[("name", "x"), ("cmd", "echo $N"), ("scale", "N=1")]).unwrap();
        assert_eq!(workload.command(true), "export N=1; echo $N");
        assert_eq!(workload.command(false), "echo $N");
    }
}
