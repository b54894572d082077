//! Terminal settings: `struct termios` and the meaning of its bits.

use abi::word::low16;
use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes};

bitflags! {
    /// `c_iflag`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Input: u32 {
        const PARMRK = 0x8;
        const ISTRIP = 0x20;
        const INLCR = 0x40;
        const IGNCR = 0x80;
        const ICRNL = 0x100;
        const IUCLC = 0x200;
        const IXON = 0x400;
        const IXANY = 0x800;
        const IMAXBEL = 0x2000;
        const IUTF8 = 0x4000;
        const _ = !0;
    }
}

bitflags! {
    /// `c_oflag`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Output: u32 {
        const OPOST = 1;
        const OLCUC = 2;
        const ONLCR = 4;
        const OCRNL = 8;
        const ONOCR = 0x10;
        const ONLRET = 0x20;
        const XTABS = 0x1800;
        const _ = !0;
    }
}

bitflags! {
    /// `c_lflag`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Local: u32 {
        const ISIG = 1;
        const ICANON = 2;
        const ECHO = 8;
        const ECHOE = 0x10;
        const ECHOK = 0x20;
        const ECHONL = 0x40;
        const NOFLSH = 0x80;
        const TOSTOP = 0x100;
        const ECHOCTL = 0x200;
        const ECHOPRT = 0x400;
        const ECHOKE = 0x800;
        const IEXTEN = 0x8000;
        const EXTPROC = 0x1_0000;
        const _ = !0;
    }
}

/// `CLOCAL` of `c_cflag`.
pub const CLOCAL: u32 = 0x800;

/// Indices into `c_cc`.
pub const VINTR: usize = 0;
pub const VQUIT: usize = 1;
pub const VERASE: usize = 2;
pub const VKILL: usize = 3;
pub const VEOF: usize = 4;
pub const VTIME: usize = 5;
pub const VMIN: usize = 6;
pub const VSTART: usize = 8;
pub const VSTOP: usize = 9;
pub const VSUSP: usize = 10;
pub const VEOL: usize = 11;
pub const VREPRINT: usize = 12;
pub const VWERASE: usize = 14;
pub const VLNEXT: usize = 15;
pub const VEOL2: usize = 16;

/// `struct termios` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, Immutable, IntoBytes)]
pub struct Termios {
    pub iflag: u32,
    pub oflag: u32,
    pub cflag: u32,
    pub lflag: u32,
    pub line: u8,
    pub cc: [u8; 19],
}
const _: () = assert!(size_of::<Termios>() == 36);

/// `struct termios2`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, Immutable, IntoBytes)]
pub struct Termios2 {
    pub termios: Termios,
    pub ispeed: u32,
    pub ospeed: u32,
}

/// `struct termio`: the lower halves of the flags and the first control characters.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, Immutable, IntoBytes)]
pub struct Termio {
    pub iflag: u16,
    pub oflag: u16,
    pub cflag: u16,
    pub lflag: u16,
    pub line: u8,
    pub cc: [u8; 8],
    _pad: u8,
}
const _: () = assert!(size_of::<Termio>() == 18);

/// `struct winsize`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, Immutable, IntoBytes)]
pub struct WinSize {
    pub rows: u16,
    pub columns: u16,
    pub x_pixels: u16,
    pub y_pixels: u16,
}

impl Termios {
    /// Nothing set: what is locked in a terminal at first.
    pub const NOTHING: Self = Self { iflag: 0, oflag: 0, cflag: 0, lflag: 0, line: 0, cc: [0; 19] };

    /// The settings of a new terminal (`tty_std_termios`).
    pub const fn standard() -> Self {
        const ECHOES: u32 =
            Local::ECHO.bits() | Local::ECHOE.bits() | Local::ECHOK.bits() | Local::ECHOCTL.bits();
        const B38400_CS8_CREAD: u32 = 0xf | 0x30 | 0x80;
        Self {
            iflag: Input::ICRNL.bits() | Input::IXON.bits(),
            oflag: Output::OPOST.bits() | Output::ONLCR.bits(),
            cflag: B38400_CS8_CREAD,
            lflag: ECHOES
                | Local::ISIG.bits()
                | Local::ICANON.bits()
                | Local::ECHOKE.bits()
                | Local::IEXTEN.bits(),
            line: 0,
            cc: [3, 0x1c, 0x7f, 0x15, 4, 0, 1, 0, 0x11, 0x13, 0x1a, 0, 0x12, 0xf, 0x17, 0x16, 0, 0, 0],
        }
    }

    /// The part that `struct termio` has.
    pub fn old(&self) -> Termio {
        let mut cc = [0; 8];
        cc.copy_from_slice(&self.cc[..8]);
        Termio {
            iflag: low16(self.iflag.into()),
            oflag: low16(self.oflag.into()),
            cflag: low16(self.cflag.into()),
            lflag: low16(self.lflag.into()),
            line: self.line,
            cc,
            _pad: 0,
        }
    }

    /// These settings with the part that `struct termio` has replaced.
    pub fn with_old(mut self, old: &Termio) -> Self {
        let join = |now: u32, low: u16| now & 0xffff_0000 | u32::from(low);
        self.iflag = join(self.iflag, old.iflag);
        self.oflag = join(self.oflag, old.oflag);
        self.cflag = join(self.cflag, old.cflag);
        self.lflag = join(self.lflag, old.lflag);
        self.line = old.line;
        self.cc[..8].copy_from_slice(&old.cc);
        self
    }

    /// These settings, but what is set in `locked` as it was in `was` (`TIOCSLCKTRMIOS`).
    pub fn keeping(mut self, was: &Self, locked: &Self) -> Self {
        let keep = |new: u32, was: u32, locked: u32| new & !locked | was & locked;
        self.iflag = keep(self.iflag, was.iflag, locked.iflag);
        self.oflag = keep(self.oflag, was.oflag, locked.oflag);
        self.cflag = keep(self.cflag, was.cflag, locked.cflag);
        self.lflag = keep(self.lflag, was.lflag, locked.lflag);
        if locked.line != 0 {
            self.line = was.line;
        }
        for (index, new) in self.cc.iter_mut().enumerate() {
            if locked.cc[index] != 0 {
                *new = was.cc[index];
            }
        }
        self
    }

    pub fn input(&self, flags: Input) -> bool {
        self.iflag & flags.bits() == flags.bits()
    }

    pub fn output(&self, flags: Output) -> bool {
        self.oflag & flags.bits() == flags.bits()
    }

    pub fn local(&self, flags: Local) -> bool {
        self.lflag & flags.bits() == flags.bits()
    }

    /// Whether `byte` is the control character at `index`. Zero means that there is none.
    pub fn is(&self, index: usize, byte: u8) -> bool {
        byte != 0 && self.cc[index] == byte
    }
}
