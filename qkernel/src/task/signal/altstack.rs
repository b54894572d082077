//! The alternate signal stack: `sigaltstack(2)`.

use machine::errno::{Errno, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SS_ONSTACK: u32 = 1;
const SS_DISABLE: u32 = 2;
const SS_AUTODISARM: u32 = 1 << 31;
/// `MINSIGSTKSZ`.
const SIZE_MIN: u64 = 2048;

/// `stack_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct StackT {
    pub sp: u64,
    pub flags: u32,
    pub pad: u32,
    pub size: u64,
}
const _: () = assert!(size_of::<StackT>() == 24);

/// The alternate stack of handlers with `SA_ONSTACK` (`sigaltstack(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltStack {
    sp: u64,
    size: u64,
    flags: u32,
}

impl Default for AltStack {
    fn default() -> Self {
        Self { sp: 0, size: 0, flags: SS_DISABLE }
    }
}

impl AltStack {
    /// Whether `sp` lies on it, leaving out that it may disarm itself.
    pub fn contains(&self, sp: u64) -> bool {
        sp > self.sp && sp - self.sp <= self.size
    }

    /// Whether code with this stack pointer runs on it.
    pub fn in_use(&self, sp: u64) -> bool {
        self.flags & SS_AUTODISARM == 0 && self.contains(sp)
    }

    /// Its highest address (it grows down), when a handler that interrupts code at `sp` should switch to it.
    pub fn entry(&self, sp: u64) -> Option<u64> {
        (self.size != 0 && !self.in_use(sp)).then(|| self.sp.wrapping_add(self.size))
    }

    /// Returns the stack in the form that goes into a signal frame.
    pub fn saved(&self) -> StackT {
        StackT { sp: self.sp, flags: self.flags, pad: 0, size: self.size }
    }

    /// Returns the stack in the form that `sigaltstack(2)` reports to code at `sp`.
    pub fn described(&self, sp: u64) -> StackT {
        let state = match self.size {
            0 => SS_DISABLE,
            _ if self.in_use(sp) => SS_ONSTACK,
            _ => 0,
        };
        StackT { flags: state | (self.flags & SS_AUTODISARM), ..self.saved() }
    }

    /// A handler begins: a stack that disarms itself is none until the handler returns.
    pub fn enter_handler(&mut self) {
        if self.flags & SS_AUTODISARM != 0 {
            *self = Self::default();
        }
    }
}

/// The stack `sigaltstack(2)` asks for, when code at `sp` may ask for it.
pub fn change_alt_stack(now: &AltStack, new: &StackT, sp: u64) -> Result<AltStack> {
    if now.in_use(sp) {
        return Err(Errno::EPERM);
    }
    match new.flags & !SS_AUTODISARM {
        SS_DISABLE => Ok(AltStack { sp: 0, size: 0, flags: new.flags }),
        0 | SS_ONSTACK if new.size < SIZE_MIN => Err(Errno::ENOMEM),
        0 | SS_ONSTACK => Ok(AltStack { sp: new.sp, size: new.size, flags: new.flags }),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(flags: u32, size: u64) -> StackT {
        StackT { sp: 0x1000, flags, pad: 0, size }
    }

    #[test]
    fn what_is_set_is_reported() {
        let none = AltStack::default();
        assert_eq!(none.described(0x1800).flags, SS_DISABLE);
        let set = change_alt_stack(&none, &stack(0, 8192), 0x10_0000).unwrap();
        assert_eq!(set.described(0x10_0000), stack(0, 8192));
        assert_eq!(set.described(0x1800).flags, SS_ONSTACK);
        assert_eq!(change_alt_stack(&set, &stack(SS_DISABLE, 0), 0x1800), Err(Errno::EPERM));
        assert_eq!(change_alt_stack(&set, &stack(0, 100), 0), Err(Errno::ENOMEM));
        assert_eq!(change_alt_stack(&set, &stack(77, 8192), 0), Err(Errno::EINVAL));
    }

    #[test]
    fn a_stack_that_disarms_itself_is_gone_in_the_handler_and_back_after_it() {
        let mut stack = change_alt_stack(&AltStack::default(), &stack(SS_AUTODISARM, 8192), 0).unwrap();
        let saved = stack.saved();
        assert_eq!(stack.entry(0), Some(0x1000 + 8192));
        stack.enter_handler();
        assert_eq!(stack.described(0x1800).flags, SS_DISABLE);
        let again = change_alt_stack(&stack, &saved, 0).unwrap();
        assert_eq!(again.described(0).flags, SS_AUTODISARM);
    }
}
