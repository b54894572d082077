//! `dormouse pause`, `resume` and `ps`.

use std::fmt::Write;

use runtime::orders;
use runtime::orders::GuestProcess;
use runtime::state::{Id, Root};

use crate::choices::ListFormat;
use crate::failure::{Failure, remark, say};

pub fn pause(root: &Root, id: &str) -> Result<u8, Failure> {
    orders::pause(root, &Id::new(id)?)?;
    Ok(0)
}

pub fn resume(root: &Root, id: &str) -> Result<u8, Failure> {
    orders::resume(root, &Id::new(id)?)?;
    Ok(0)
}

/// The JSON is runc's, of pids that the host knows; the table is of the processes inside.
pub fn ps(root: &Root, id: &str, format: ListFormat, options: &[String]) -> Result<u8, Failure> {
    let id = Id::new(id)?;
    if format == ListFormat::Json {
        return say(&(serde_json::to_string(&orders::leashes(root, &id)?)? + "\n"));
    }
    if !options.is_empty() {
        remark("options of ps are not applied: the processes of a sandbox are not the host's");
    }
    say(&table(&orders::processes(root, &id)?))
}

fn table(processes: &[GuestProcess]) -> String {
    let mut text = format!(
        "{:>7} {:>7} {:>7} S {:>4} {:>10} {:>9} NAME\n",
        "PID", "PPID", "UID", "THR", "MEMORY", "TIME"
    );
    for process in processes {
        let GuestProcess { pid, parent, uid, state, threads, memory_kib, cpu_ms, name } = process;
        let (seconds, hundredths) = (cpu_ms / 1000, cpu_ms % 1000 / 10);
        let time = format!("{}:{:02}.{hundredths:02}", seconds / 60, seconds % 60);
        let memory = format!("{memory_kib}K");
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{pid:>7} {parent:>7} {uid:>7} {state} {threads:>4} {memory:>10} {time:>9} {name}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_process() {
        let process = GuestProcess {
            pid: 1,
            parent: 0,
            uid: 7,
            state: 'S',
            threads: 2,
            memory_kib: 512,
            cpu_ms: 61_230,
            name: "sh".into(),
        };
        let text = table(&[process]);
        let words: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["1", "0", "7", "S", "2", "512K", "1:01.23", "sh"]);
    }
}
