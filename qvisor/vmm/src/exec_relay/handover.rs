//! Exec'd processes on their way to another VMM: their connections, and what was read of these but not understood yet.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use super::{EXECS_MAX, Exec, ExecPeer, ExecRelay, Table};
use crate::handover::{HandOverError, LEAVES, Placed};

/// Most bytes that a peer may have read of an order.
const UNREAD_MAX: usize = 8 << 10;

/// The exec'd processes for the next VMM.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecRelayPlan {
    last: u64,
    execs: Vec<ExecPlan>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecPlan {
    id: u64,
    /// The connection; `None`: the peer is gone, and the process has been told to end.
    peer: Option<RawFd>,
    unread: Vec<u8>,
}

/// Makes the peer of a connection, of which so many bytes were read and not understood yet.
pub type MakePeer<'m> = &'m dyn Fn(OwnedFd, Vec<u8>) -> Box<dyn ExecPeer>;

/// Exec'd processes that are left to the next VMM.
pub(crate) struct ExecRelayLeft(Table);

impl ExecRelay {
    /// Refuses whoever comes from now on, if a plan has words for all that are there: the program of each runs.
    pub(crate) fn close(&self) -> Result<(), HandOverError> {
        let mut table = self.lock();
        if let Some(why) = table.refuses {
            return Err(HandOverError::Refused(why));
        }
        let comes_in = |exec: &Exec| !exec.is_started;
        if table.execs.values().any(comes_in) {
            return Err(HandOverError::Refused("a process comes in"));
        }
        table.refuses = Some(LEAVES);
        Ok(())
    }

    /// Takes processes in again.
    pub(crate) fn reopen(&self) {
        let mut table = self.lock();
        table.refuses = table.refuses.filter(|why| *why != LEAVES);
    }

    /// Leaves all to the next VMM, once it is closed. Nobody may take the peers' orders any more.
    pub(crate) fn leave(&self) -> ExecRelayLeft {
        let mut table = self.lock();
        let left = Table { last: table.last, execs: std::mem::take(&mut table.execs), ..Table::default() };
        ExecRelayLeft(left)
    }
}

impl ExecRelayLeft {
    pub(crate) fn plan(&self) -> ExecRelayPlan {
        let plan = |(id, exec): (&u64, &Exec)| ExecPlan {
            id: *id,
            peer: exec.peer.as_ref().map(|peer| peer.descriptor().as_raw_fd()),
            unread: exec.peer.as_ref().map_or_else(Vec::new, |peer| peer.unread().to_vec()),
        };
        ExecRelayPlan { last: self.0.last, execs: self.0.execs.iter().map(plan).collect() }
    }

    /// The descriptors that the plan names.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.0.execs.values().filter_map(|exec| Some(exec.peer.as_ref()?.descriptor())).collect()
    }
}

impl ExecRelayPlan {
    /// Takes the processes over, whose connections have their old numbers again.
    pub(crate) fn open(self, placed: &mut Placed, make: MakePeer<'_>) -> Result<ExecRelay, HandOverError> {
        let damaged = || HandOverError::Damaged("its exec'd processes contradict each other");
        let ids: BTreeSet<u64> = self.execs.iter().map(|exec| exec.id).collect();
        let has_one_twice = ids.len() < self.execs.len();
        // Ids that are yet to be given are above it.
        let is_high = self.last > u64::MAX / 2;
        if has_one_twice || is_high || ids.len() > EXECS_MAX || ids.last().is_some_and(|id| *id > self.last) {
            return Err(damaged());
        }
        let relay = ExecRelay::default();
        {
            let mut table = relay.lock();
            table.last = self.last;
            for ExecPlan { id, peer, unread } in self.execs {
                if unread.len() > UNREAD_MAX {
                    return Err(damaged());
                }
                let connection = peer.map(|fd| placed.take(fd).ok_or_else(damaged)).transpose()?;
                let peer = connection.map(|connection| make(connection, unread));
                let exec = Exec { peer, request: None, is_started: true, waiting: Vec::new() };
                table.execs.insert(id, exec);
            }
        }
        Ok(relay)
    }
}

/// A peer that says nothing, for tests and the fuzzer.
#[cfg(any(test, fuzzing))]
#[derive(Debug)]
pub(crate) struct SilentPeer(pub(crate) OwnedFd, pub(crate) Vec<u8>);

#[cfg(any(test, fuzzing))]
impl ExecPeer for SilentPeer {
    fn descriptor(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.0)
    }

    fn report(&self, _: &super::ExecReport) {}

    fn refuse(&self, _: String) {}

    fn unread(&self) -> &[u8] {
        &self.1
    }

    fn receive(&mut self) -> super::Received {
        super::Received::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ExecReport;
    use super::super::tests::{execs, told};
    use super::*;
    use crate::handover::Numbered;

    fn null(number: RawFd) -> Numbered {
        Numbered { number, fd: std::fs::File::open("/dev/null").unwrap().into() }
    }

    fn open(text: &str, fds: &[RawFd]) -> Result<ExecRelay, HandOverError> {
        let plan: ExecRelayPlan = serde_json::from_str(text).unwrap();
        let (mut placed, _) = Placed::place(fds.iter().copied().map(null).collect()).unwrap();
        plan.open(&mut placed, &|fd, unread| Box::new(SilentPeer(fd, unread)))
    }

    #[test]
    fn processes_go_on_and_ids_are_not_given_twice() {
        let (relay, id, peer) = execs();
        assert!(relay.close().is_err(), "it has not begun");
        relay.started(id, 7);
        relay.close().unwrap();
        assert_eq!(relay.lock().refuses, Some(LEAVES));
        relay.reopen();
        assert_eq!(relay.lock().refuses, None);
        let left = relay.leave();
        let (plan, number) = (left.plan(), left.descriptors()[0].as_raw_fd());
        assert_eq!((plan.last, plan.execs[0].id, plan.execs[0].peer), (id, id, Some(number)));
        drop(left);
        assert_eq!(told(&peer), [ExecReport::Started { pid: 7 }], "its end is told by the next VMM");

        let next = open(
            r#"{"last":9,"execs":[{"id":4,"peer":810,"unread":[123]},{"id":5,"peer":null,"unread":[]}]}"#,
            &[810],
        );
        let next = next.unwrap();
        assert_eq!(next.descriptors(), [810]);
        assert_eq!(next.leave().plan().execs[0].unread, b"{");
        assert!(!next.is_any_starting() && next.lock().last == 9);
    }

    #[test]
    fn a_plan_that_contradicts_itself_is_refused() {
        for (text, fds) in [
            (
                r#"{"last":9,"execs":[{"id":4,"peer":null,"unread":[]},{"id":4,"peer":null,"unread":[]}]}"#,
                &[][..],
            ),
            (r#"{"last":3,"execs":[{"id":4,"peer":null,"unread":[]}]}"#, &[]),
            (r#"{"last":9,"execs":[{"id":4,"peer":820,"unread":[]}]}"#, &[]),
            (
                r#"{"last":9,"execs":[{"id":4,"peer":830,"unread":[]},{"id":5,"peer":830,"unread":[]}]}"#,
                &[830],
            ),
        ] {
            assert!(open(text, fds).is_err(), "{text}");
        }
    }
}
