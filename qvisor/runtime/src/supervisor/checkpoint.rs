//! Checkpoints: the sandbox is put to sleep as by [`crate::control::Order::Hibernate`], its memory is written to files, and then it
//! goes on, if it did before, or ends.
//!
//! It is *held* for that: connections and data that come meanwhile wait, as for a sandbox that is paused. A process or signal that comes wakes
//! it; it is put to sleep again once that is served, a few times. An order of somebody's
//! that wakes or pauses it ends the checkpoint. A sandbox that is to end does so once its asker says that the image is safe: until then none
//! of it runs, and without that word it goes on.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl};
use vmm::checkpoint::{FileId, ImageFiles, ImageNews, ImageTaken, ImageTerms, KnownParent, WrittenFile};
use vmm::lock::Guard;
use vmm::process;

use super::Supervisor;
use super::containers::{ContainerId, Rest};
use super::progress::{News, Progress};
use super::stage::{Cause, Stage};
use super::state_machine::Input;
use super::waiters::{For, WAITERS_MAX, Waiter};
use crate::control::{self, Figures, KEPT, refuse};

/// How often it is put to sleep, or asked for its memory.
const TRIES: u32 = 5;
/// How long it may take, and how much longer when its files are just being written.
const CHECKPOINT_PATIENCE: Duration = Duration::from_secs(600);
const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// The files that an image is written to.
const IMAGE_FILES: usize = 4;
const NOT_COPIED: &str = "its files were not copied";
/// How long the asker may take to copy its files, or to bring the image to the disk.
const KEEP_PATIENCE: Duration = Duration::from_secs(300);

/// A checkpoint under way.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// The number by which its waiter is found.
    number: u64,
    /// The request by which the sandbox, which is asleep, was asked for its memory.
    request: Option<u64>,
    files: ImageFiles,
    parent: Option<KnownParent>,
    terms: ImageTerms,
    /// The further containers that are in its memory.
    further: Vec<u64>,
    /// The files of the host that its programs may be writing to.
    written: Vec<WrittenFile>,
    /// It goes on afterwards: it did before, and nobody has wanted it to rest since.
    goes_on: bool,
    /// Somebody has ordered it to go on.
    is_overtaken: bool,
    tries: u32,
    pub deadline: Instant,
    /// The kernel was told that no wake event is to wake it.
    holds: bool,
    /// Its image is written, and the asker, who has the answer, is to say whether it is safe.
    keeping: Option<UnixStream>,
    /// Whether it is.
    is_kept: Option<bool>,
    /// The sandbox goes on, or sleeps for other reasons: only its pages are still written.
    is_captured: bool,
    /// Its asker has copied its files.
    is_copied: bool,
}

impl Progress {
    /// Somebody wants the sandbox to rest: it is not to go on after a checkpoint.
    pub(super) fn rests_after_checkpoint(&mut self) {
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.goes_on = false;
        }
    }

    /// The sandbox is to go on. What comes for it is served in between; somebody's order ends a checkpoint.
    pub(super) fn overtakes_checkpoint(&mut self, cause: Cause) {
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.goes_on = true;
            checkpoint.is_overtaken |= !matches!(cause, Cause::Request(_));
        }
    }

    /// Whether a sleep that is ordered now is a checkpoint's, and so is held.
    pub(super) fn is_held_for_checkpoint(&mut self) -> bool {
        self.checkpoint.as_mut().filter(|checkpoint| !checkpoint.is_captured).is_some_and(|checkpoint| {
            checkpoint.holds = true;
            true
        })
    }

    /// The kernel, whose memory is about to be taken, says which files of the host its programs may be writing to.
    pub(super) fn note_written(&mut self, lines: &[u8]) {
        if let Some(checkpoint) = &mut self.checkpoint {
            let text = String::from_utf8_lossy(lines);
            checkpoint.written = text.lines().filter_map(WrittenFile::parse).collect();
        }
    }

    /// Why the further containers of a pod cannot be in an image: all that lives of them is to go on by itself.
    fn why_not_all(&self) -> Option<&'static str> {
        self.containers.further().find_map(|(_, container)| match container.stage {
            Stage::Stopped => None,
            Stage::Running if container.rest == Rest::No => None,
            Stage::Running => Some("a further container of its pod is paused; resume it first"),
            _ => Some("a further container of its pod does not run yet; start it first"),
        })
    }

    /// Whether whoever asked for a checkpoint is there.
    fn is_awaited(&self, number: u64) -> bool {
        let mut waiters = self.waiters.iter().filter(|waiter| waiter.what == For::Checkpoint(number));
        waiters.any(|waiter| !process::has_hung_up(&waiter.peer))
    }

    /// Answers whoever waits for the image that was just taken, and is to keep it; false: nobody has got the answer.
    fn deliver_image(&mut self, number: u64, taken: &ImageTaken) -> bool {
        if !self.is_awaited(number) {
            return false;
        }
        let at = self.waiters.iter().position(|waiter| waiter.what == For::Checkpoint(number));
        let Some(waiter) = at.map(|at| self.waiters.swap_remove(at)) else { return false };
        let figures = Figures::Checkpoint(Box::new(taken.clone()));
        let is_told = control::send_now(&waiter.peer, &self.answer(waiter.of, Ok(Some(figures))));
        if let Some(checkpoint) = self.checkpoint.as_mut().filter(|_| is_told) {
            checkpoint.keeping = Some(waiter.peer);
            checkpoint.deadline = Instant::now() + KEEP_PATIENCE;
        }
        is_told
    }

    /// Has the asker copy the sandbox's files, unless it has or is not to. Result: the deadline that counted before.
    fn ask_for_copy(&mut self, number: u64) -> Option<Instant> {
        let waits = |checkpoint: &Checkpoint| {
            checkpoint.number == number && checkpoint.terms.copies_files && !checkpoint.is_copied
        };
        let before = self.checkpoint.as_ref().filter(|checkpoint| waits(checkpoint))?.deadline;
        let waiter = self.waiters.iter().find(|waiter| waiter.what == For::Checkpoint(number));
        let asked = waiter.and_then(|waiter| Some((waiter.of, waiter.peer.try_clone().ok()?)));
        let told = asked.filter(|(of, peer)| control::send_now(peer, &self.answer(*of, Ok(None))));
        let checkpoint = self.checkpoint.as_mut()?;
        match told {
            Some((_, peer)) => checkpoint.keeping = Some(peer),
            // Nobody copies them.
            None => checkpoint.is_kept = Some(false),
        }
        checkpoint.deadline = Instant::now() + KEEP_PATIENCE;
        Some(before)
    }

    /// Whether the pages of one are written behind the sandbox.
    pub(super) fn is_captured(&self) -> bool {
        self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.is_captured)
    }

    /// The connection of an asker who is to say whether the image is safe.
    pub(super) fn keeper_of_image(&self) -> Option<&UnixStream> {
        self.checkpoint.as_ref()?.keeping.as_ref()
    }

    /// The verdict on the image of the checkpoint with this number, of which there may be none yet. A checkpoint that is gone has none to come.
    fn verdict(&self, number: u64) -> Option<bool> {
        match self.checkpoint.as_ref().filter(|checkpoint| checkpoint.number == number) {
            Some(checkpoint) => checkpoint.is_kept,
            None => Some(false),
        }
    }
}

impl Supervisor {
    /// Carries out [`crate::control::Order::Checkpoint`]. `files`: the descriptors that came with it, and the files of its parent.
    pub(super) fn checkpoint(
        &self,
        peer: UnixStream,
        of: ContainerId,
        files: (Vec<OwnedFd>, Vec<FileId>),
        terms: ImageTerms,
    ) {
        // Tables of a parent are read only if there is a use for them, and not under the lock.
        let may = {
            let progress = &mut *self.lock();
            self.take_leash_news(progress);
            self.may_checkpoint(progress, of, terms)
        };
        let given = may.and_then(|()| self.files_of(files.0, files.1));
        let progress = &mut *self.lock();
        self.take_leash_news(progress);
        let may = self.may_checkpoint(progress, of, terms);
        let (files, parent) = match may.and(given) {
            Ok(given) => given,
            Err(why) => return refuse(&peer, why),
        };
        progress.checkpoints += 1;
        let (number, since) = (progress.checkpoints, Instant::now());
        let deadline = since + CHECKPOINT_PATIENCE;
        let what = For::Checkpoint(number);
        progress.waiters.push(Waiter { peer, of, what, since, deadline: deadline + 2 * LAST_PATIENCE });
        let goes_on = !progress.machine.wants_rest() || progress.machine.is_waking();
        let checkpoint = Checkpoint {
            number,
            request: None,
            files,
            parent,
            terms,
            further: Vec::new(),
            written: Vec::new(),
            goes_on,
            is_overtaken: false,
            tries: 1,
            deadline,
            holds: false,
            keeping: None,
            is_kept: None,
            is_captured: false,
            is_copied: false,
        };
        progress.checkpoint = Some(checkpoint);
        self.sleep_for_checkpoint(progress);
        self.settle(progress);
    }

    /// Whether one can be taken now, or why not.
    fn may_checkpoint(&self, progress: &Progress, of: ContainerId, terms: ImageTerms) -> Result<(), String> {
        self.can_hibernate.clone()?;
        let why_not = match of {
            _ if progress.ending => "it ends",
            _ if of != ContainerId::FIRST => "its pod is written with the first container, as a whole",
            _ if self.is_command && !terms.copies_files => {
                "it is a command's, whose changes to files end with it"
            }
            _ if !progress.is_running() => "its first process does not run yet; start it first",
            _ if progress.machine.is_held() => "it is paused; resume it first",
            _ if progress.rests_at_start => "it has not gone on yet since it was restored",
            _ if let Some(why) = progress.why_not_all() => why,
            _ if progress.checkpoint.is_some() => "another checkpoint of it is being taken",
            _ if progress.waiters.len() >= WAITERS_MAX => "too many others wait for it already",
            // Before anything of it is written.
            _ => return self.hibernation.may_be_written(terms.seals),
        };
        Err(why_not.into())
    }

    /// It is to be hibernated, unless it is.
    fn sleep_for_checkpoint(&self, progress: &mut Progress) {
        let input = Input::WantRest { cause: Cause::Order, hibernates: true, now: Instant::now() };
        self.step(progress, input, News::default());
    }

    /// Does what is next for a checkpoint under way.
    pub(super) fn go_on_with_checkpoint(&self, progress: &mut Progress) {
        let Some(Checkpoint { number, request, is_overtaken, deadline, tries, .. }) = progress.checkpoint
        else {
            return;
        };
        let is_late = deadline <= Instant::now();
        match request {
            Some(_) if progress.keeper_of_image().is_some() => {
                if let Some(checkpoint) = progress.checkpoint.as_mut().filter(|_| is_late) {
                    checkpoint.is_kept.get_or_insert(false);
                }
            }
            Some(request) if is_late => self.give_up_image(progress, request),
            Some(_) if progress.is_captured() && !progress.is_awaited(number) => {
                self.hibernation.give_up_pages();
            }
            // Its outcome is told.
            Some(_) => {}
            None if is_late => self.fail_checkpoint(progress, "it did not come to rest"),
            None if progress.machine.is_held() => self.fail_checkpoint(progress, "it was paused meanwhile"),
            None if is_overtaken => self.fail_checkpoint(progress, "it was woken meanwhile"),
            None if !progress.is_awaited(number) => self.fail_checkpoint(progress, "nobody waits for it"),
            None if progress.machine.is_asleep() => self.ask_for_image(progress),
            None if progress.machine.wants_rest() => {}
            // It goes on.
            None => match progress.failure.clone() {
                Some(why) => self.fail_checkpoint(progress, &why),
                None if tries >= TRIES => self.fail_checkpoint(progress, "it was woken again and again"),
                None => {
                    if let Some(checkpoint) = &mut progress.checkpoint {
                        checkpoint.tries += 1;
                        checkpoint.goes_on = true;
                    }
                    self.sleep_for_checkpoint(progress);
                }
            },
        }
    }

    /// Asks the sandbox, which is asleep, for its memory.
    fn ask_for_image(&self, progress: &mut Progress) {
        if let Some(why) = progress.why_not_all() {
            return self.fail_checkpoint(progress, why);
        }
        let living = progress.containers.further().filter(|(_, one)| one.stage != Stage::Stopped);
        let further = living.map(|(id, _)| id.0).collect();
        let Some(checkpoint) = &mut progress.checkpoint else { return };
        let (terms, parent) = (checkpoint.terms, checkpoint.parent.clone());
        let files = match checkpoint.files.try_clone() {
            Ok(files) => files,
            Err(error) => {
                return self.fail_checkpoint(progress, &format!("cannot write to its files: {error}"));
            }
        };
        checkpoint.further = further;
        progress.images_asked += 1;
        checkpoint.request = Some(progress.images_asked);
        let request = progress.images_asked.cast_signed();
        let asked = self.sandbox().map(|sandbox| sandbox.ask_for_image(request, files, parent, terms));
        if let Some(Err(error)) = asked {
            self.fail_checkpoint(progress, &format!("cannot write to its files: {error}"));
        }
    }

    /// The image takes too long.
    fn give_up_image(&self, progress: &mut Progress, request: u64) {
        let sandbox = self.sandbox();
        if sandbox.is_none_or(|sandbox| sandbox.give_up_image(request.cast_signed())) {
            self.fail_checkpoint(progress, "its memory was not written in time");
        } else if let Some(checkpoint) = &mut progress.checkpoint {
            // It has just been written.
            checkpoint.deadline = Instant::now() + LAST_PATIENCE;
        }
    }

    /// Takes the news of a request for its memory. Where the sandbox is to end, this waits for the asker, and nothing of it runs meanwhile.
    pub(crate) fn imaged(&self, request: u64, news: ImageNews) {
        let mut progress = self.lock();
        let result = match news {
            ImageNews::Captured => return self.captured(progress, request),
            ImageNews::Done(result) => result,
        };
        let asked = progress.checkpoint.as_ref().filter(|checkpoint| checkpoint.request == Some(request));
        let Some(Checkpoint { number, terms, is_overtaken, further, written, .. }) = asked else { return };
        let (number, leave_running, is_overtaken) = (*number, terms.leave_running, *is_overtaken);
        let result =
            result.map(|taken| ImageTaken { further: further.clone(), written: written.clone(), ..*taken });
        match result {
            Err(why) => self.fail_checkpoint(&mut progress, &why),
            Ok(taken) if leave_running => {
                let (is_copied, mut progress) = self.wait_for_copy(progress, number);
                let outcome = if is_copied { Ok(taken) } else { Err(NOT_COPIED.into()) };
                self.end_checkpoint(&mut progress, outcome);
                return self.settle(&mut progress);
            }
            Ok(_) if is_overtaken => self.fail_checkpoint(&mut progress, "it was woken meanwhile"),
            Ok(_) if progress.machine.is_held() => {
                self.fail_checkpoint(&mut progress, "it was paused meanwhile");
            }
            Ok(taken) if progress.deliver_image(number, &taken) => {
                let is_kept;
                (is_kept, progress) = self.wait_for_verdict(progress, number);
                if is_kept {
                    drop(progress);
                    self.finish(Ok(libc::SIGKILL))
                }
                if let Some(asker) = progress.keeper_of_image() {
                    control::refuse(asker, "it goes on, since its snapshot was not kept in time".into());
                }
                self.fail_checkpoint(&mut progress, "its snapshot was not kept");
            }
            Ok(_) => self.fail_checkpoint(&mut progress, "nobody waits for it"),
        }
        self.settle(&mut progress);
    }

    /// Its memory is taken but for the pages, which are written behind it once its files are copied, if they are.
    fn captured(&self, progress: Guard<'_, Progress>, request: u64) {
        let asked = progress.checkpoint.as_ref().filter(|checkpoint| checkpoint.request == Some(request));
        let Some(&Checkpoint { number, .. }) = asked else { return };
        let (is_copied, mut progress) = self.wait_for_copy(progress, number);
        let progress = &mut *progress;
        match progress.checkpoint.as_mut().filter(|checkpoint| checkpoint.number == number) {
            Some(checkpoint) if is_copied => {
                checkpoint.is_captured = true;
                let (goes_on, holds) = (checkpoint.goes_on, checkpoint.holds);
                self.leave_to_itself(progress, goes_on, holds);
            }
            // It goes on when its pages have not been written.
            _ => self.hibernation.give_up_pages(),
        }
        self.settle(progress);
    }

    /// If the asker is to copy the files of a sandbox that goes on, has it do so, and waits for it; nothing of the sandbox runs meanwhile.
    /// Result: whether they are copied, or need not be.
    fn wait_for_copy<'p>(
        &'p self,
        mut progress: Guard<'p, Progress>,
        number: u64,
    ) -> (bool, Guard<'p, Progress>) {
        let Some(before) = progress.ask_for_copy(number) else { return (true, progress) };
        let (is_copied, mut progress) = self.wait_for_verdict(progress, number);
        if let Some(checkpoint) =
            progress.checkpoint.as_mut().filter(|checkpoint| checkpoint.number == number)
        {
            (checkpoint.keeping, checkpoint.is_kept, checkpoint.is_copied) = (None, None, is_copied);
            checkpoint.deadline = before;
        }
        (is_copied, progress)
    }

    /// Waits until the asker has said whether all is well, or is gone.
    fn wait_for_verdict<'p>(
        &'p self,
        mut progress: Guard<'p, Progress>,
        number: u64,
    ) -> (bool, Guard<'p, Progress>) {
        self.nudge();
        loop {
            match progress.verdict(number) {
                Some(verdict) => return (verdict, progress),
                None => progress = progress.wait(&self.changed),
            }
        }
    }

    /// The asker says that the image is safe, or is gone.
    pub(super) fn hear_keeper_of_image(&self) {
        let progress = &mut *self.lock();
        let mut word = [0; 16];
        let heard = progress.keeper_of_image().and_then(|asker| process::receive_now(asker, &mut word));
        if let (Some(len), Some(checkpoint)) = (heard, &mut progress.checkpoint) {
            checkpoint.is_kept.get_or_insert(word.get(..len) == Some(KEPT));
        }
        self.changed.notify_all();
    }

    /// The kernel refuses to have its memory taken: it is not asleep any more, or cannot be taken at all.
    pub(super) fn not_taken(&self, progress: &mut Progress, request: u64, why: &str) {
        let asked = progress.checkpoint.as_mut().filter(|checkpoint| checkpoint.request == Some(request));
        let Some(checkpoint) = asked else { return };
        checkpoint.request = None;
        checkpoint.tries += 1;
        if checkpoint.tries > TRIES {
            self.fail_checkpoint(progress, why);
        }
    }

    fn fail_checkpoint(&self, progress: &mut Progress, why: &str) {
        self.end_checkpoint(progress, Err(why.into()));
    }

    /// A checkpoint is over, and the sandbox is as it would be without it.
    fn end_checkpoint(&self, progress: &mut Progress, outcome: Result<ImageTaken, String>) {
        let Some(Checkpoint { number, goes_on, holds, is_captured, .. }) = progress.checkpoint.take() else {
            return;
        };
        progress.image = Some((number, outcome));
        self.hibernation.end_stay();
        if !is_captured {
            self.leave_to_itself(progress, goes_on, holds);
        }
    }

    /// The files that came with an order, and the parent whose pages are in these other files.
    fn files_of(
        &self,
        mut descriptors: Vec<OwnedFd>,
        parent: Vec<FileId>,
    ) -> Result<(ImageFiles, Option<KnownParent>), String> {
        let tables = descriptors.split_off(descriptors.len().min(IMAGE_FILES));
        let files: Result<Vec<File>, String> = descriptors.into_iter().map(file_of).collect();
        let [kernel, pages, table, orphans] = files?.try_into().map_err(|_| "it is written to four files")?;
        let files = ImageFiles::alone(kernel, pages, table, orphans);
        if tables.is_empty() && parent.is_empty() {
            return Ok((files, None));
        }
        let tables: Vec<File> = tables.into_iter().map(File::from).collect();
        let sandbox = self.sandbox().ok_or("its first process does not run yet; start it first")?;
        let parent = sandbox.read_parent(&tables, parent);
        Ok((files, Some(parent.map_err(|error| format!("its parent cannot be used: {error}"))?)))
    }

    /// The sandbox, which sleeps for a checkpoint or is about to, is to be as it would be without.
    fn leave_to_itself(&self, progress: &mut Progress, goes_on: bool, holds: bool) {
        if (goes_on || holds) && progress.machine.wants_rest() && !progress.machine.is_held() {
            // It is hibernated, or about to be.
            let _ = self.wake(progress, None);
            if !goes_on {
                // By an order that lets wake events wake it.
                self.want_rest(progress, Cause::Order);
            }
        }
    }
}

/// A regular file that can be written to at any place.
fn file_of(descriptor: OwnedFd) -> Result<File, String> {
    let flags = fcntl_getfl(&descriptor).map_err(|error| error.to_string())?;
    let file = File::from(descriptor);
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let is_open = [OFlags::WRONLY, OFlags::RDWR].contains(&(flags & OFlags::RWMODE));
    if is_file && is_open && !flags.intersects(OFlags::APPEND | OFlags::DIRECT) {
        Ok(file)
    } else {
        Err("it is written to regular files that are open to write".into())
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
