//! `/proc/pressure`: how much of the time tasks of the container were held up, and the same text for its control group.

use crate::proc::Whole;
use crate::pseudo::{Entry, Out};
use crate::task::container;
use machine::errno::Result;
use machine::owner::Owner;
use machine::sched;
use machine::sched::pressure::{PRESSURE_SHIFT, Stall};

pub static TABLE: &[Entry<Whole>] = &[
    Entry::text("cpu", |_, out| shown(out, push_cpu)),
    Entry::text("io", |_, out| shown(out, push_io)),
    Entry::text("memory", |_, out| shown(out, |out, _| push_memory(out))),
];

fn shown(out: &mut Out, push: fn(&mut Out, Owner)) -> Result<()> {
    push(out, container::current().memory().owner());
    Ok(())
}

/// Waits for a CPU. All tasks at once never wait for one.
pub fn push_cpu(out: &mut Out, owner: Owner) {
    push(out, &sched::pressure(owner).cpu, &Stall::default());
}

/// Waits for the host's files, and for pages that come back after a sleep.
pub fn push_io(out: &mut Out, owner: Owner) {
    let pressure = sched::pressure(owner);
    push(out, &pressure.io, &pressure.io_full);
}

/// Nobody waits for memory: this kernel takes none away from programs that run, and ends one where there is none left.
pub fn push_memory(out: &mut Out) {
    push(out, &Stall::default(), &Stall::default());
}

fn push(out: &mut Out, some: &Stall, full: &Stall) {
    for (name, stall) in [("some", some), ("full", full)] {
        out.push(name.as_bytes());
        for (window, average) in [10, 60, 300].iter().zip(stall.averages) {
            let hundredths = (average * 10_000) >> PRESSURE_SHIFT;
            write!(out, " avg{window}={}.{:02}", hundredths / 100, hundredths % 100);
        }
        writeln!(out, " total={}", stall.total_ns / 1000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_percent_with_two_digits() {
        let mut out = Out::default();
        let some = Stall { averages: [1 << PRESSURE_SHIFT, 1 << 15, 655], total_ns: 5_000_000_000 };
        push(&mut out, &some, &Stall::default());
        let shown = "some avg10=100.00 avg60=50.00 avg300=0.99 total=5000000\n\
                     full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(out.finish().unwrap(), shown.as_bytes());
    }
}
