//! `dormouse completion`, and the manual pages of packages.

use std::fs;
use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::{Failure, say};

/// Writes what a shell completes the command line by to standard output.
pub fn completion(shell: Shell) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "dormouse", &mut text);
    say(&String::from_utf8(text)?)
}

/// Writes a page for each command into a directory: `dormouse.1`, `dormouse-do.1`, ...
pub fn pages(directory: &Path) -> Result<u8, Failure> {
    let failed = |error: io::Error| {
        format!(
            "cannot write manual pages to {}: {error}; name a directory that can be written",
            directory.display()
        )
    };
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(Cli::command().name("dormouse"), directory).map_err(failed)?;
    Ok(0)
}
