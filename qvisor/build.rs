//! Tells the command which commit it was built from, for `dormouse --version`.

use std::path::Path;
use std::process::Command;

fn main() {
    // A file that is not there, as in a source archive, would have this run at every build.
    for name in ["HEAD", "logs/HEAD"] {
        let path = Path::new("../.git").join(name);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DORMOUSE_COMMIT");
    let given = std::env::var("DORMOUSE_COMMIT").ok().filter(|given| !given.is_empty());
    let commit = given.or_else(head).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=DORMOUSE_COMMIT={commit}");
}

/// The commit that is checked out.
fn head() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
