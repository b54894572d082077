//! Tells the command which commit it was built from, for `dormouse --version`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DORMOUSE_COMMIT");
    let given = std::env::var("DORMOUSE_COMMIT").ok().filter(|given| !given.is_empty());
    let commit = given.or_else(head).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=DORMOUSE_COMMIT={commit}");
}

/// The commit that is checked out. A source archive has none, and is not asked about the repository that it may lie in.
fn head() -> Option<String> {
    if !Path::new("../.git").exists() {
        return None;
    }
    // Where a work tree keeps them, `.git` may be a file.
    for name in ["HEAD", "logs/HEAD"] {
        // A path that is not there would have this run at every build.
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
