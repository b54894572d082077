//! `dormouse home`: where a sandbox's pages are while it sleeps.

use std::fmt::Write;
use std::time::Duration;

use clap::{Args, ValueEnum};
use runtime::orders;
use runtime::state::{Id, Root};
use vmm::hibernate::{HomeState, Tier};

use crate::failure::{Failure, say};

/// How often a move is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub struct HomeArgs {
    pub id: String,
    /// Where its pages go, now if it sleeps, and from now on; without it, show where they are
    #[arg(value_enum)]
    pub to: Option<TierChoice>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// A place for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TierChoice {
    Disk,
    Memory,
}

impl From<TierChoice> for Tier {
    fn from(choice: TierChoice) -> Self {
        match choice {
            TierChoice::Disk => Self::Disk,
            TierChoice::Memory => Self::Memory,
        }
    }
}

pub fn run(root: &Root, args: &HomeArgs) -> Result<u8, Failure> {
    let id = Id::new(&args.id)?;
    let mut state = orders::home(root, &id, args.to.map(Tier::from))?;
    // Without a name the pages are just being stored.
    while state.is_moving && (args.to.is_some() || state.home.is_empty()) {
        std::thread::sleep(LOOK_EVERY);
        state = orders::home(root, &id, None)?;
    }
    if let Some(why) = state.error.as_ref().filter(|_| args.to.is_some()) {
        return Err(format!("cannot move the pages of sandbox {}: {why}", args.id).into());
    }
    if args.json {
        return say(&(serde_json::to_string_pretty(&state)? + "\n"));
    }
    say(&text(&state)?)
}

fn text(state: &HomeState) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    writeln!(text, "home     {}", state.home)?;
    writeln!(text, "memory   {} pages in {} bytes", state.memory_pages, state.memory_bytes)?;
    writeln!(text, "disk     {} bytes", state.disk_bytes)?;
    if state.is_moving {
        writeln!(text, "moving   yes")?;
    }
    Ok(text)
}
