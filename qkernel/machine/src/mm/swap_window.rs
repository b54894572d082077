//! How many pages come back with the one that is touched: those around it where touches are scattered, many in front of it
//! where memory is scanned.
#![deny(unsafe_code)]

use super::page::PAGE;

/// Pages on each side that come along at most, while touches are scattered.
const AROUND_MAX: u64 = 31;
/// Touches that are no further apart than this belong together.
const CLOSE_PAGES: u64 = 64;
/// Pages that a scan brings back at a time: twice as many as came before, and more and more, up to 4 MiB.
const SCAN_MIN: u64 = 8;
const SCAN_MAX: u64 = 1024;
/// A touch so far behind the end of the last window goes on with it: some pages in between need no bringing back.
const SCAN_GAP: u64 = 16;

/// The last touch in a mapping, and how much came with it.
#[derive(Clone, Default)]
pub struct SwapWindow {
    last: u64,
    /// Pages on each side that come along while touches are scattered.
    around: u64,
    /// Pages of a scan's window; 0: touches are scattered.
    scan: u64,
    /// The last touch was where a scan would have touched. One such touch is no scan yet.
    went_on: bool,
    /// The present window.
    start: u64,
    end: u64,
}

/// The pages to bring back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub start: u64,
    pub end: u64,
    /// Those from `end` up to here will be wanted next, too.
    pub ahead: u64,
}

impl Extent {
    /// Whether memory is scanned.
    pub fn is_scan(&self) -> bool {
        self.ahead > self.end
    }
}

impl SwapWindow {
    /// A page is touched whose content is away, or was.
    pub fn touch(&mut self, page: u64) -> Extent {
        let goes_on = self.goes_on(page);
        if goes_on && (self.went_on || self.scan > 0) {
            let pages = (self.end - self.start) / PAGE;
            self.scan = (2 * pages).clamp(SCAN_MIN, SCAN_MAX);
            (self.start, self.end) = (page, page.saturating_add(self.scan * PAGE));
        } else if self.scan == 0 || !(self.start..self.end).contains(&page) {
            self.scatter(page);
        }
        self.went_on = goes_on || self.went_on && page == self.last;
        self.last = page;
        let ahead = self.end.saturating_add(self.scan * PAGE);
        Extent { start: self.start, end: self.end, ahead }
    }

    /// Whether it is where a scan would touch next.
    fn goes_on(&self, page: u64) -> bool {
        self.last != 0 && (self.end..self.end.saturating_add(SCAN_GAP * PAGE)).contains(&page)
    }

    fn scatter(&mut self, page: u64) {
        self.scan = 0;
        if page == self.last {
            // The same touch once more, now that the content has come.
            return;
        }
        self.around = match self.last {
            0 => AROUND_MAX,
            last if last.abs_diff(page) <= CLOSE_PAGES * PAGE => (2 * self.around).clamp(1, AROUND_MAX),
            // Many touches jump between places that are each worth their neighbours.
            _ => self.around - self.around.div_ceil(8),
        };
        self.start = page.saturating_sub(self.around * PAGE);
        self.end = page + (self.around + 1) * PAGE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 1 << 30;

    fn at(page: u64) -> u64 {
        BASE + page * PAGE
    }

    fn pages(extent: Extent) -> (u64, u64, u64) {
        let page = |addr: u64| (addr - BASE) / PAGE;
        (page(extent.start), page(extent.end), page(extent.ahead))
    }

    #[test]
    fn scattered_touches_bring_fewer_and_fewer_neighbours() {
        let mut window = SwapWindow::default();
        assert_eq!(pages(window.touch(at(1000))), (969, 1032, 1032));
        let mut last = 63;
        for round in 1..60 {
            let (start, end, _) = pages(window.touch(at(1000 + round * 5000)));
            assert!(end - start <= last);
            last = end - start;
        }
        assert_eq!(last, 1);
        // Touches that stay together bring more again.
        assert_eq!(pages(window.touch(at(900_000))), (900_000, 900_001, 900_001));
        assert_eq!(pages(window.touch(at(900_040))), (900_039, 900_042, 900_042));
        assert_eq!(pages(window.touch(at(900_080))), (900_078, 900_083, 900_083));
    }

    #[test]
    fn the_same_touch_twice_is_one() {
        let mut window = SwapWindow::default();
        window.touch(at(1000));
        let first = window.touch(at(9000));
        assert_eq!(window.touch(at(9000)), first);
    }

    #[test]
    fn a_scan_brings_more_and_more_and_reads_ahead() {
        let mut window = SwapWindow::default();
        assert_eq!(pages(window.touch(at(968))).1, 1000);
        for _ in 0..2 {
            assert_eq!(pages(window.touch(at(1000))), (969, 1032, 1032));
        }
        let first = (1032, 1158, 1284);
        for _ in 0..2 {
            assert_eq!(pages(window.touch(at(1032))), first);
        }
        // A page of the window that comes later.
        assert_eq!(pages(window.touch(at(1080))), first);
        assert_eq!(pages(window.touch(at(1158))), (1158, 1410, 1662));
        // Some pages need no bringing back.
        assert_eq!(pages(window.touch(at(1412))), (1412, 1916, 2420));
        let mut end = 1916;
        for _ in 0..3 {
            end = pages(window.touch(at(end))).1;
        }
        assert_eq!(pages(window.touch(at(end))), (end, end + SCAN_MAX, end + 2 * SCAN_MAX));
        // Elsewhere it is no scan any more.
        assert!(!window.touch(at(500_000)).is_scan());
    }
}
