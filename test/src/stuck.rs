//! Reports about a command that is still running though its time is over.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::Options;

/// Threads of one name that are shown.
const ALIKE: u32 = 8;
/// Names the functions in which the kernel's tasks sleep; in a checkout, on systrap.
const STACKS: &str = "scripts/kernel-stacks";

/// The threads of a process group; of a sandbox also its processes, and where they sleep in the kernel.
pub fn report(sandbox: Option<&Options>, group: u32) -> String {
    let mut text = threads_of(group);
    if let Some(options) = sandbox {
        text +=
            &processes(&options.dormouse, group).unwrap_or_else(|error| format!("no processes: {error}\n"));
        if options.platform == "systrap" && Path::new(STACKS).exists() {
            text += &output(Command::new(STACKS).arg(group.to_string()))
                .unwrap_or_else(|error| format!("{STACKS}: {error}\n"));
        }
    }
    text.lines().map(|line| format!("        {line}\n")).collect()
}

/// The processes inside the sandbox whose VMM is a child of this one.
fn processes(dormouse: &Path, front: u32) -> io::Result<String> {
    let list = output(Command::new(dormouse).arg("list"))?;
    let children = fs::read_to_string(format!("/proc/{front}/task/{front}/children"))?;
    let id = list.lines().map(|line| line.split_whitespace()).find_map(|mut words| {
        let id = words.next()?;
        let pid = words.next()?;
        children.split_whitespace().any(|child| child == pid).then_some(id)
    });
    output(Command::new(dormouse).args(["ps", id.ok_or(io::ErrorKind::NotFound)?]))
}

fn output(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

/// The activity of the threads of a process group, a line each: ids, name, state, ticks in user code and for it, where
/// it waits.
fn threads_of(group: u32) -> String {
    let mut text = String::new();
    let mut alike = BTreeMap::<String, u32>::new();
    let tasks = |process: io::Result<fs::DirEntry>| fs::read_dir(process.ok()?.path().join("task")).ok();
    for task in fs::read_dir("/proc").into_iter().flatten().filter_map(tasks).flatten().flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let stat = read("stat");
        let Some((name, rest)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        if fields.get(2).and_then(|of| of.parse().ok()) != Some(group) {
            continue;
        }
        let command = name.split_once('(').map_or(name, |(_, command)| command);
        let count = alike.entry(command.to_owned()).or_default();
        *count += 1;
        if *count <= ALIKE {
            let (state, user, system) = (fields[0], fields[11], fields[12]);
            let place = (read("wchan"), read("syscall").trim().to_owned());
            text += &format!("{name}) {state} {user} {system} {} {}\n", place.0, place.1);
        }
    }
    for (name, count) in alike.iter().filter(|(_, count)| **count > ALIKE) {
        text += &format!("{count} threads ({name}), of which {ALIKE} are shown\n");
    }
    text
}
