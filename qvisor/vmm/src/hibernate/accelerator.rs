//! The accelerator that packs a sandbox's pages, if it is asked for by name.
//!
//! Its work queue is opened by the very process that uses it, before the jail: the host's kernel takes jobs of a queue from the
//! address space alone that opened it. Children of the VMM close it, end at once, or run another program.
//!
//! In debug builds `DORMOUSE_IAA` = *kind*[`:`*job*] puts a device of software in its place: `good`, or one whose jobs meet
//! page faults (`faults`, each third), fail (`fails`, each fifth), write what they should not (`lies`, each fifth), or hang
//! (`hangs`), from the given job on; or whose queue is mostly full (`full`).
#![deny(unsafe_code)]

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use iaa::{Fate, QueueEngine, Settings, SoftwareDevice, Unusable, discovery};
use swap::{Codec, Engine};

/// Opens the engine that packs pages for this codec; `None`: the processor packs them.
pub(super) fn open(codec: Codec) -> Result<Option<Arc<dyn Engine>>, Unusable> {
    if codec != Codec::Iaa {
        return Ok(None);
    }
    if let Some(device) = asked_for_software() {
        return Ok(Some(device.engine()));
    }
    iaa::open(&discovery::find(Path::new("/sys"), Path::new("/dev"))).map(Some)
}

/// A device of software, and what goes wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Software {
    fault: Fate,
    /// Each so many jobs one has the fault.
    every: u64,
    from_job: u64,
    /// Jobs that its queue holds.
    room: usize,
}

impl FromStr for Software {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (kind, from) = text.split_once(':').unwrap_or((text, "0"));
        let from_job = from.parse().map_err(drop)?;
        let of = |fault, every| Ok(Self { fault, every, from_job, room: 64 });
        match kind {
            "good" => of(Fate::Done, 1),
            "full" => Ok(Self { fault: Fate::Done, every: 1, from_job, room: 1 }),
            "faults" => of(Fate::PageFault, 3),
            "fails" => of(Fate::Fail, 5),
            "lies" => of(Fate::BadOutput, 5),
            "hangs" => of(Fate::Hang, 1),
            _ => Err(()),
        }
    }
}

impl Software {
    fn engine(self) -> Arc<dyn Engine> {
        let fate = move |job: u64| {
            let is_faulty = job >= self.from_job && job % self.every == self.every - 1;
            if is_faulty { self.fault } else { Fate::Done }
        };
        let settings = Settings { patience: Duration::from_millis(100), ..Settings::default() };
        Arc::new(QueueEngine::new(SoftwareDevice::new(self.room, fate), settings))
    }
}

fn asked_for_software() -> Option<Software> {
    if !cfg!(debug_assertions) {
        return None;
    }
    std::env::var("DORMOUSE_IAA").ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_software_are_read() {
        let hangs = Software { fault: Fate::Hang, every: 1, from_job: 40, room: 64 };
        assert_eq!("hangs:40".parse(), Ok(hangs));
        assert_eq!("full".parse::<Software>().map(|device| device.room), Ok(1));
        for wrong in ["", "silicon", "good:x", "hangs:"] {
            assert_eq!(wrong.parse::<Software>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn only_the_codec_of_its_name_opens_one() {
        assert!(open(Codec::Auto).unwrap().is_none());
    }
}
