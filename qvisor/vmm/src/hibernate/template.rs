//! Pages that the sandbox is shown where its snapshot has them, instead of having them brought to its memory.
#![deny(unsafe_code)]

use abi::PAGE_SIZE;
use abi::hostcall as hc;
use abi::layout::TEMPLATE_PHYS;
use swap::{Base, Page, PageId, SwapError};

use super::Fetch;
use super::home::PagesHome;
use crate::memory::SandboxMemory;

/// Takes those out of `pages` that are shown: the template has them, and they are as they were written. If the first is not, that is an
/// error. Others are left, but with [`Fetch::Shown`] only where the first is one.
pub(super) fn shown(
    home: &PagesHome,
    memory: &SandboxMemory,
    pages: &mut Vec<Page>,
    how: Fetch,
) -> Result<Vec<PageId>, SwapError> {
    let Some(first) = pages.first().map(|page| page.id) else { return Ok(Vec::new()) };
    let Some(on_base) = home.on_a_base() else { return Ok(Vec::new()) };
    let is_shown = |page: &Page| {
        let place = u64::from(page.id) * PAGE_SIZE;
        // The file that is mapped is the base's.
        on_base.window(page.id) == Some(place)
            && memory.template_offset(TEMPLATE_PHYS + place, PAGE_SIZE).is_some()
    };
    let mut ids: Vec<PageId> = pages.extract_if(.., |page| is_shown(page)).map(|page| page.id).collect();
    if how == Fetch::Shown && pages.first().is_some_and(|page| page.id != first) {
        pages.clear();
    }
    ids.sort_unstable();
    let checked = on_base.base().check(&ids);
    let mut shown = Vec::with_capacity(ids.len());
    for (id, checked) in ids.into_iter().zip(checked) {
        match checked {
            Ok(()) => shown.push(id),
            Err(error) if id == first => return Err(error),
            // Whoever wants it hears of it.
            Err(_) => {}
        }
    }
    Ok(shown)
}

/// Marks the numbers of pages that are shown, which ascend.
pub(super) fn mark(numbers: &mut [PageId], shown: &[PageId]) {
    for number in numbers.iter_mut().filter(|number| shown.binary_search(number).is_ok()) {
        *number |= hc::SHOWN;
    }
}
