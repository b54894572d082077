//! A keeper at work: it stands between the container's leash, the pod's VMM and, for as long as that stays, the front end.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use vmm::footprint;
use vmm::leash::{Leash, News};
use vmm::process::{self, ChildEvent, SignalFd, Terminal};

use crate::control::{self, Answer, Lines, Order, Report};

/// See the module.
pub(super) struct Links {
    leash: Leash,
    vmm: Lines,
    front: Option<Lines>,
    children: SignalFd,
    terminal: Option<Terminal>,
    /// The front end may go.
    is_released: bool,
}

impl Links {
    pub(super) fn new(
        leash: Leash,
        vmm: UnixStream,
        front: Arc<UnixStream>,
        terminal: Option<Terminal>,
    ) -> io::Result<Self> {
        Ok(Self {
            leash,
            vmm: Lines::new(vmm),
            front: Some(Lines::new(front.try_clone()?)),
            children: SignalFd::new(&[libc::SIGCHLD])?,
            terminal,
            is_released: false,
        })
    }

    /// Passes messages on until the container has ended.
    pub(super) fn serve(&mut self) -> ! {
        footprint::trim();
        loop {
            // Before it waits: what came before the signals were collected is not told by one.
            self.see_leash();
            let front = self.front.as_ref().map_or(-1, Lines::as_raw_fd);
            let fds = [self.vmm.as_raw_fd(), front, self.leash.as_raw_fd(), self.children.as_raw_fd()];
            let [from_vmm, from_front, from_leash, child] = process::wait_readable(fds, -1);
            if child {
                while self.children.next().is_some() {}
            }
            if from_leash {
                self.hear_leash();
            }
            if from_front {
                self.hear_front();
            }
            if from_vmm {
                self.hear_vmm();
            }
        }
    }

    fn order(&self, order: Order) {
        control::send_now(self.vmm.stream(), &order);
    }

    fn tell_front(&self, report: &Report) {
        if let Some(front) = &self.front {
            let _ = control::send(front.stream(), report);
        }
    }

    fn see_leash(&self) {
        while let Some(seen) = self.leash.look() {
            let signal = match seen {
                ChildEvent::Stopped => libc::SIGSTOP,
                ChildEvent::Continued => libc::SIGCONT,
                ChildEvent::Ended => return,
            };
            self.order(Order::Kill { signal, foreground: false, all: false });
        }
    }

    fn hear_leash(&mut self) {
        match self.leash.news() {
            Some(News::Signal(signal)) => self.order(Order::Kill { signal, foreground: false, all: false }),
            Some(News::Resized) => {
                if let Some((rows, columns)) = self.terminal.as_ref().map(Terminal::size) {
                    self.order(Order::Winsize { rows, columns });
                }
            }
            // Its status is there for the subreaper; nothing else may run on. The VMM sees the keeper's end.
            Some(News::Gone) => {
                let _ = self.vmm.stream().shutdown(Shutdown::Write);
                self.leash.outlive_companions();
                self.end(libc::SIGKILL, &Report::Exited { status: libc::SIGKILL });
            }
            None => {}
        }
    }

    fn hear_front(&mut self) {
        let Some(front) = &mut self.front else { return };
        let (lines, is_over) = front.receive();
        for order in lines.iter().filter_map(|line| control::parse(line).ok()) {
            match order {
                Order::Release => {
                    self.is_released = true;
                    process::survive_parent();
                    self.tell_front(&Report::Released);
                }
                order => self.order(order),
            }
        }
        if is_over {
            self.front = None;
            if !self.is_released {
                // Nobody is left to whom the container matters.
                process::exit_now(1);
            }
        }
    }

    fn hear_vmm(&mut self) {
        let (lines, is_over) = self.vmm.receive();
        for line in lines {
            match serde_json::from_slice::<Report>(&line) {
                Ok(Report::Leash { stops: true }) => self.leash.stop(),
                Ok(Report::Leash { stops: false }) => self.leash.resume(),
                Ok(report @ Report::Exited { status }) => self.end(status, &report),
                Ok(report @ Report::Failed { .. }) => self.end(failure_status(&report), &report),
                Ok(report) => self.tell_front(&report),
                Err(_) => self.refused(&line),
            }
        }
        if is_over {
            let message = "its pod's sandbox has ended".into();
            self.end(libc::SIGKILL, &Report::Failed { message, code: None });
        }
    }

    /// The container was refused.
    fn refused(&self, line: &[u8]) {
        if let Ok(Answer { error: Some(why), .. }) = serde_json::from_slice(line) {
            let message = format!("its pod's sandbox cannot begin it: {why}");
            let report = Report::Failed { message, code: None };
            self.end(failure_status(&report), &report);
        }
    }

    /// The container has ended: first the leash, since whoever hears of the end may look at it.
    fn end(&self, status: i32, report: &Report) -> ! {
        self.leash.end(status);
        self.tell_front(report);
        process::exit_now(0)
    }
}

/// The wait status of a container whose program does not run.
fn failure_status(report: &Report) -> i32 {
    match report {
        Report::Failed { code: Some(code), .. } => i32::from(*code) << 8,
        _ => 125 << 8,
    }
}
