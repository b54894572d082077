//! The pages of a sandbox on their way to an image, and those of an image under a sandbox.
#![deny(unsafe_code)]

use swap::StackedBase;

use super::{BaseInMemory, Hibernation};
use crate::lock::{Rank, RwLock};

impl Hibernation {
    /// Whether its pages may be written to an image, or why not. `sealed`: whoever asked for it seals it.
    pub fn may_be_written(&self, sealed: bool) -> Result<(), String> {
        if self.plan.packing.encrypt && !sealed {
            return Err("its pages are encrypted, and would be in the clear; pass --key-file".into());
        }
        self.check()
    }

    /// Has pages in memory compared with a base in memory. An error says why that cannot be.
    pub fn comparing_with(self, base: &BaseInMemory) -> Result<Self, String> {
        let mut home = self.home?.into_inner();
        home.compare_with(base)?;
        Ok(Self { home: Ok(RwLock::new(Rank::Hibernation, home)), ..self })
    }

    /// Puts the home, which is empty, on the pages of an image. An error says why there is no home.
    pub fn on_base(self, base: StackedBase) -> Result<Self, String> {
        let home = self.home.map(|home| home.into_inner().on_base(base))?;
        Ok(Self { home: Ok(RwLock::new(Rank::Hibernation, home)), ..self })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use abi::hostcall::SWAP_IN_ALL;
    use swap::{PAGE_BYTES, Packing, PageId};

    use super::super::tests::{begin, phys, sleep, swap_in};
    use super::*;
    use crate::checkpoint::{BadImage, ImageFiles, ImageHead, Style};
    use crate::hibernate::SwapPlan;
    use crate::host_paths::HostPaths;
    use crate::memory::{SandboxMemory, memory_file};

    fn files() -> ImageFiles {
        let file = || File::from(memory_file(c"image").unwrap());
        ImageFiles::alone(file(), file(), file(), file())
    }

    fn head(pages: u64) -> ImageHead {
        ImageHead {
            kernel: String::new(),
            stub: String::new(),
            is_kvm: true,
            cpus: 1,
            memory_bytes: 4 << 20,
            memory_most_bytes: 4 << 20,
            kernel_bytes: 16 << 20,
            vmms: 1,
            handles: 0,
            last_container: 0,
            last_exec: 0,
            pages,
            taken_bytes: 0,
        }
    }

    fn ids() -> Vec<PageId> {
        (3..900).filter(|id| id % 3 != 0).collect()
    }

    fn write(memory: &SandboxMemory, hibernation: &Hibernation, files: &ImageFiles) -> u64 {
        let pages = hibernation.begin_pages(&files.pages).unwrap();
        hibernation.write_begun_pages(memory, &pages, (&files.pages, &files.table), None).unwrap();
        pages.len()
    }

    fn image() -> (ImageFiles, u64) {
        let (memory, hibernation) = begin();
        sleep(&memory, &hibernation, &ids());
        let files = files();
        let pages = write(&memory, &hibernation, &files);
        (files, pages)
    }

    #[test]
    fn pages_go_to_an_image_and_come_from_it() {
        let (files, pages) = image();
        assert_eq!(pages, ids().len() as u64);
        files.verify_pages(&head(pages), &[false], None).unwrap();
        let (memory, other) = begin();
        let other = other.on_base(files.open_base(&head(pages), None).unwrap()).unwrap();
        assert_eq!(swap_in(&memory, &other, &ids(), SWAP_IN_ALL).0, 0);
        assert!(ids().iter().all(|id| memory.read(phys(*id)) == Some(*id)));
        // An image of a sandbox that began with one.
        sleep(&memory, &other, &[4, 6, 7]);
        let again = self::files();
        assert_eq!(write(&memory, &other, &again), 3);
        again.verify_pages(&head(3), &[false], None).unwrap();
    }

    #[test]
    fn an_image_that_is_packed_has_the_same_pages() {
        let (plain, pages) = image();
        let packed = files();
        plain.pack(&head(pages), (Style::Zstd(1), None), (&packed.pages, &packed.table), &|| true).unwrap();
        packed.verify_pages(&head(pages), &[true], None).unwrap();
        assert!(packed.verify_pages(&head(pages), &[false], None).is_err());
        let (memory, other) = begin();
        let other = other.on_base(packed.open_base(&head(pages), None).unwrap()).unwrap();
        assert_eq!(swap_in(&memory, &other, &ids(), SWAP_IN_ALL).0, 0);
        assert!(ids().iter().all(|id| memory.read(phys(*id)) == Some(*id)));
        // Damage is found by who reads the page, and by who looks for it.
        packed.pages.write_all_at(&[0xff; 64], 40).unwrap();
        assert!(packed.verify_pages(&head(pages), &[true], None).is_err());
        let (memory, again) = begin();
        let again = again.on_base(packed.open_base(&head(pages), None).unwrap()).unwrap();
        assert!(again.fetch(&memory, &mut [4], super::super::Fetch::All).is_err());
        // What is packed is not packed again.
        let (more, sums) = (files(), packed.sums(&head(pages)).unwrap());
        let twice =
            swap::pack_base((&packed.pages, &sums), (Style::Lz4, None), (&more.pages, &more.table), &|| true)
                .unwrap_err();
        assert!(twice.to_string().contains("packed already"), "{twice}");
        let twice =
            packed.pack(&head(pages), (Style::Lz4, None), (&more.pages, &more.table), &|| true).unwrap_err();
        assert!(matches!(twice, BadImage::Pack(_)), "{twice}");
    }

    #[test]
    fn a_damaged_page_is_named() {
        let (files, pages) = image();
        files.pages.write_all_at(&[9], 400 * PAGE_BYTES as u64 + 99).unwrap();
        let error = files.verify_pages(&head(pages), &[false], None).unwrap_err();
        assert_eq!(error.to_string(), "page 400 is not the one that was written");
        let (memory, other) = begin();
        let other = other.on_base(files.open_base(&head(pages), None).unwrap()).unwrap();
        assert_eq!(swap_in(&memory, &other, &[398, 401], SWAP_IN_ALL).0, 0);
        let error = other.fetch(&memory, &mut [400], super::super::Fetch::All).unwrap_err();
        assert!(error.to_string().starts_with("page 400 came back"), "{error}");
    }

    #[test]
    fn an_image_that_is_not_what_its_head_says_is_refused() {
        let (files, pages) = image();
        let error = files.open_base(&head(pages + 1), None).unwrap_err();
        assert!(matches!(error, BadImage::PageCount { .. }), "{error}");
        files.table.set_len(100).unwrap();
        assert!(matches!(files.open_base(&head(pages), None), Err(BadImage::Pages(_))));
        assert!(Hibernation::none().on_base(image().0.open_base(&head(pages), None).unwrap()).is_err());
    }

    #[test]
    fn encrypted_pages_are_not_shown() {
        let packing = Packing { encrypt: true, ..Packing::default() };
        let plan = SwapPlan { dir: Some(std::env::temp_dir()), packing, ..SwapPlan::default() };
        let hibernation = Hibernation::open(&HostPaths::of_new_process(), plan).unwrap();
        assert!(hibernation.may_be_written(false).unwrap_err().contains("encrypted"));
        assert!(hibernation.may_be_written(true).is_ok());
        assert!(Hibernation::none().may_be_written(true).is_err());
    }
}
