//! Writes the image of a sandbox that is asleep: its kernel's memory while nothing of it can run, its pages then or behind it.
#![deny(unsafe_code)]

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use abi::boot::Platform;
use abi::hostcall::{CLASS_EXECUTABLE, CLASS_FILE, CLASS_STORE, EVENT_IMAGE_OVER, Event};

use swap::{BaseError, PageRegion, Regions};

use super::{
    FileId, ImageFiles, ImageHead, ImageNews, ImageSink, ImageTaken, ImageTerms, KnownParent, WantedImage,
};
use crate::errno::Errno;
use crate::footprint;
use crate::hibernate::{Hibernation, ImagePages, lists, micros};
use crate::hostcall::events::EventQueue;
use crate::image::{KERNEL_DIGEST, STUB_DIGEST};
use crate::memory::{SandboxMemory, frames_of};
use crate::sandbox::Sandbox;
use crate::snapshot::{self, MemoryCopy};

/// The stack of the thread that writes pages behind a sandbox that goes on, in bytes.
const WRITING_STACK: usize = 256 << 10;

/// Most bytes of the kernel's memory that are copied while nothing runs, and written afterwards.
const KERNEL_COPY_MAX: u64 = 16 << 20;

/// An image whose pages are still to be written.
struct Begun {
    request: i64,
    files: ImageFiles,
    /// The kernel's memory, if that is still to be written as well.
    kernel: Option<MemoryCopy>,
    parent: Option<KnownParent>,
    pages: ImagePages,
    taken: ImageTaken,
}

impl Sandbox {
    /// The parent of an image of it, by [its tables](KnownParent::read).
    pub fn read_parent(&self, tables: &[File], files: Vec<FileId>) -> Result<KnownParent, BaseError> {
        let config = self.config();
        KnownParent::read(tables, files, frames_of(config.memory_most_bytes.max(config.memory_bytes)))
    }

    /// Asks the kernel, which is asleep, to have its memory written to these files, whose content goes. The outcome is told to
    /// [`SandboxConfig::images`], or the kernel's refusal to [`SandboxConfig::report`]. It sleeps on then, or goes on, which may be before
    /// its pages are written. Those that `parent` has are left to it. The number of a request is used once.
    pub fn ask_for_image(
        &self,
        request: i64,
        files: ImageFiles,
        parent: Option<KnownParent>,
        terms: ImageTerms,
    ) -> std::io::Result<()> {
        let orphans = files.orphans.try_clone()?;
        orphans.set_len(0)?;
        *self.kept_orphans.lock() = Some(orphans);
        let (regions, goes_on) = (Regions::default(), terms.leave_running);
        let wanted = WantedImage { request, files, parent, regions, goes_on, seals: terms.seals };
        self.ask_for_memory(request, Some(wanted), terms.refuses_connections);
        Ok(())
    }

    /// Takes a request for an image back. False: it has been answered.
    pub fn give_up_image(&self, request: i64) -> bool {
        if self.wanted_image.lock().take_if(|wanted| wanted.request == request).is_some() {
            *self.kept_orphans.lock() = None;
        }
        self.hibernation().give_up_pages();
        self.is_answered(request)
    }

    /// Writes its image, and tells who asked for it. All vCPUs sleep but the one that calls. Where its pages have stayed in memory, and it is
    /// to go on, it may do so at once: they are written behind it. After an error it sleeps on.
    pub(crate) fn take_image(&self, wanted: WantedImage) -> Result<(), Errno> {
        let WantedImage { goes_on, request, .. } = wanted;
        let begun = self.begin_image(wanted).and_then(|begun| {
            if self.is_answered(request) { Ok(begun) } else { Err("it was given up meanwhile".into()) }
        });
        let writing = PagesWriter {
            hibernation: Arc::clone(self.hibernation()),
            memory: Arc::clone(&self.memory),
            events: Arc::clone(&self.events),
            images: Arc::clone(&self.config().images),
        };
        match begun {
            Ok(begun) if goes_on && begun.pages.may_follow() => {
                (writing.images)(request.cast_unsigned(), ImageNews::Captured);
                let write = move || writing.write(begun);
                let thread = thread::Builder::new().name("image".into()).stack_size(WRITING_STACK);
                if let Err(error) = thread.spawn(write) {
                    self.end_image(request, format!("no thread writes its pages: {error}"));
                }
                Ok(())
            }
            Ok(begun) => writing.write(begun),
            Err(why) => {
                self.end_image(request, why);
                Err(Errno(libc::EIO))
            }
        }
    }

    /// There is no image, for this reason.
    fn end_image(&self, request: i64, why: String) {
        self.hibernation().end_pages();
        self.events.post(Event { kind: EVENT_IMAGE_OVER, ..Event::default() });
        (self.config().images)(request.cast_unsigned(), ImageNews::Done(Err(why)));
    }

    /// Writes its image but for the pages, or says why it cannot be written.
    fn begin_image(&self, wanted: WantedImage) -> Result<Begun, String> {
        let WantedImage { request, files, parent, regions, seals, goes_on } = wanted;
        let start = Instant::now();
        let hibernation = self.hibernation();
        hibernation.may_be_written(seals)?;
        let vmms = self.vmms().ok_or("its kernel has had too many VMMs")?;
        let (taken_bytes, kernel) = self.take_kernel(&files.kernel, goes_on && hibernation.stays())?;
        let kernel_us = micros(start.elapsed());
        let pages = hibernation.begin_pages(&files.pages)?.of(regions);
        let config = self.config();
        let head = ImageHead {
            kernel: KERNEL_DIGEST.into(),
            stub: STUB_DIGEST.into(),
            is_kvm: config.platform == Platform::Kvm,
            cpus: config.cpus,
            memory_bytes: config.memory_bytes,
            memory_most_bytes: config.memory_most_bytes,
            kernel_bytes: config.kernel_bytes,
            vmms,
            handles: self.files.files().end(),
            last_container: self.coming_containers().last().0,
            last_exec: self.execs().last(),
            pages: pages.len(),
            taken_bytes,
        };
        let pause_us = micros(hibernation.rested_for().unwrap_or_else(|| start.elapsed()));
        let taken = ImageTaken {
            head,
            pause_us,
            kernel_us,
            pages_us: 0,
            further: Vec::new(),
            written: Vec::new(),
            below: Vec::new(),
            left_pages: 0,
        };
        Ok(Begun { request, files, kernel, parent, pages, taken })
    }

    /// Writes the kernel's memory, or, where the sandbox waits for this to go on, copies it. Result: how many bytes.
    fn take_kernel(&self, file: &File, waits: bool) -> Result<(u64, Option<MemoryCopy>), String> {
        let map = self.files.page_map().map_err(|error| format!("cannot read its page map: {error}"))?;
        let (memory, parts) = (&self.memory, self.image_parts());
        let elsewhere = self.hibernation().staying_ranges();
        let taken = file.set_len(0).and_then(|()| {
            let ranges = snapshot::ranges_to_take(memory, parts, &elsewhere, &map)?;
            let copied = if waits { MemoryCopy::of(memory, &ranges, KERNEL_COPY_MAX) } else { None };
            match copied {
                Some(copy) => Ok((copy.bytes(), Some(copy))),
                None => Ok((snapshot::write_ranges(memory, ranges, file)?, None)),
            }
        });
        taken.map_err(kernel_not_written)
    }

    /// `IMAGE_REGION`.
    pub(crate) fn note_region(&self, region: u64, phys: u64, words: u64) -> Result<i64, Errno> {
        let region = match u8::try_from(region) {
            Ok(CLASS_FILE) => PageRegion::File,
            Ok(CLASS_STORE) => PageRegion::Memory,
            Ok(CLASS_EXECUTABLE) => PageRegion::Executable,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let pages = lists::bits(&self.memory, phys, words).ok_or(Errno(libc::EFAULT))?;
        let mut wanted = self.wanted_image.lock();
        wanted.as_mut().ok_or(Errno(libc::ENODEV))?.regions.set(region, pages);
        Ok(0)
    }

    /// `KEEP_CONTENT`.
    pub(crate) fn keep_content(&self, handle: u64, offset: u64) -> Result<i64, Errno> {
        // Nobody waits for the copy who only takes the request back.
        let image = self.kept_orphans.lock().as_ref().map(File::try_clone).transpose();
        let image = image?.ok_or(Errno(libc::ENODEV))?;
        self.files.keep_content(handle, &image, offset, &|| self.kept_orphans.lock().is_some())
    }

    /// `PUT_CONTENT`.
    pub(crate) fn put_content(&self, handle: u64, offset: u64, len: u64) -> Result<i64, Errno> {
        let image = self.orphans.lock().as_ref().map(File::try_clone).transpose();
        let image = image?.ok_or(Errno(libc::ENODEV))?;
        self.files.put_content(handle, &image, offset, len)
    }

    /// The kernel has everything that a former VMM had open: what was kept of that goes.
    pub(crate) fn has_placed_all(&self) {
        *self.orphans.lock() = None;
    }
}

fn kernel_not_written(error: std::io::Error) -> String {
    format!("cannot write its kernel's memory: {error}")
}

/// The parts of a sandbox by which the pages of its image are written.
struct PagesWriter {
    hibernation: Arc<Hibernation>,
    memory: Arc<SandboxMemory>,
    events: Arc<EventQueue>,
    images: ImageSink,
}

impl PagesWriter {
    /// Writes them, and tells who asked for the image.
    fn write(self, begun: Begun) -> Result<(), Errno> {
        let Begun { request, files, kernel, mut parent, pages, mut taken } = begun;
        let (start, follows) = (Instant::now(), pages.may_follow());
        let written = self.hibernation.write_begun_pages(
            &self.memory,
            &pages,
            (&files.pages, &files.table),
            parent.as_mut(),
        );
        taken.below = parent.iter().flat_map(KnownParent::used).collect();
        taken.left_pages = parent.as_mut().map_or(0, |parent| parent.pages().left().len());
        taken.pages_us = micros(start.elapsed());
        if follows {
            self.events.post(Event { kind: EVENT_IMAGE_OVER, ..Event::default() });
        }
        let write_kernel = |copy: MemoryCopy| copy.write_to(&files.kernel).map_err(kernel_not_written);
        let is_copied = kernel.is_some();
        let written = written.and_then(|()| kernel.map_or(Ok(()), write_kernel));
        if is_copied {
            footprint::trim_heap();
        }
        let is_written = written.is_ok();
        (self.images)(request.cast_unsigned(), ImageNews::Done(written.map(|()| Box::new(taken))));
        if is_written { Ok(()) } else { Err(Errno(libc::EIO)) }
    }
}
