//! Properties of system calls. A call has those that stand in its line of the table.

use bitflags::bitflags;

use crate::seccomp::filter::NUMBERS;

bitflags! {
    /// The properties of a call that matter before its handler runs, or after.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Properties: u8 {
        /// The call gives memory back, ends things or waits: it goes on when the kernel's memory is down to its reserve.
        const GIVES_BACK = 1;
        /// Seccomp's strict mode allows the call.
        const STRICT = 2;
        /// The call runs another program, and the memory of the former one goes.
        const RUNS_PROGRAM = 4;
        /// The call goes on with a sleep that was interrupted.
        const RESUMES = 8;
    }
}

/// The properties of all calls, by number.
pub(super) struct PropertyTable([Properties; NUMBERS]);

impl PropertyTable {
    /// A table in which no call has any.
    pub(super) const fn new() -> Self {
        Self([Properties::empty(); NUMBERS])
    }

    /// The table in which the call `number` has these properties.
    pub(super) const fn with(mut self, number: usize, properties: Properties) -> Self {
        self.0[number] = properties;
        self
    }

    /// The properties of a call. One that the kernel does not have has none.
    #[inline]
    pub(super) fn of(&self, number: u64) -> Properties {
        usize::try_from(number)
            .ok()
            .and_then(|number| self.0.get(number))
            .copied()
            .unwrap_or(Properties::empty())
    }

    /// The number of the only call that has all of these properties.
    pub(super) const fn only(&self, properties: Properties) -> u64 {
        let (mut found, mut number) = (None, 0);
        while number < NUMBERS {
            if self.0[number].contains(properties) {
                assert!(found.is_none(), "several calls have the property");
                found = Some(number as u64);
            }
            number += 1;
        }
        found.expect("a call has the property")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_own_properties_alone() {
        let both = Properties::GIVES_BACK.union(Properties::STRICT);
        let table = PropertyTable::new().with(1, both).with(NUMBERS - 1, Properties::RESUMES);
        assert_eq!(table.of(1), both);
        assert_eq!([0, 2, NUMBERS as u64, u64::MAX].map(|number| table.of(number)), [Properties::empty(); 4]);
        assert_eq!(table.only(Properties::RESUMES), NUMBERS as u64 - 1);
        assert_eq!(table.only(Properties::STRICT), 1);
    }
}
