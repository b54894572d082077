//! How `top` looks.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, Wrap};
use runtime::overview::Glance;
use vmm::hibernate::stats::Stats;

use super::model::{Model, is_asleep, size, state, time, why};

const KEYS: &str = "↑↓ choose   h hibernate   w wake   e shell   k kill   s sort   q quit";
/// Height of the lower part, and width of its histogram's bars.
const DETAILS: u16 = 10;
const BAR: u64 = 30;
/// Most signs of a text.
const LONGEST: usize = 300;

pub fn draw(frame: &mut Frame, model: &mut Model) {
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(DETAILS),
        Constraint::Length(1),
        Constraint::Length(1),
    ]);
    let [head, list, details, message, keys] = areas.areas(frame.area());
    frame.render_widget(totals(model), head);
    draw_list(frame, model, list);
    draw_details(frame, model.chosen(), details);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(printable(&model.message), bold), message);
    frame.render_widget(Line::styled(KEYS, Style::new().fg(Color::DarkGray)), keys);
}

fn totals(model: &Model) -> Line<'static> {
    let all = model.glances.iter().filter_map(|glance| glance.stats.as_ref()).map(|stats| &stats.memory);
    let (pss, disk) = all.fold((0_u64, 0_u64), |(pss, disk), memory| {
        let files = [memory.swap_file_bytes, memory.reap_file_bytes, memory.packed_file_bytes];
        // A VMM may say anything.
        let files = files.iter().fold(0_u64, |sum, file| sum.saturating_add(*file));
        (memory.vmm_pss_bytes.saturating_add(pss), files.saturating_add(disk))
    });
    let (sandboxes, asleep) = (model.count(|_| true), model.count(is_asleep));
    let noun = if sandboxes == 1 { "sandbox" } else { "sandboxes" };
    let (memory, disk, sort) = (size(pss), size(disk), model.sort.name());
    Line::styled(
        format!("dormouse   {sandboxes} {noun}, {asleep} asleep   memory {memory}   disk {disk}   by {sort}"),
        Style::new().add_modifier(Modifier::BOLD),
    )
}

fn draw_list(frame: &mut Frame, model: &mut Model, area: Rect) {
    if model.glances.is_empty() {
        let words = if model.is_known { "no sandbox runs" } else { "looking …" };
        frame.render_widget(Paragraph::new(words).block(Block::new().borders(Borders::TOP)), area);
        return;
    }
    let head = ["NAME", "POD", "STATE", "FOR", "MEMORY", "SWAPPED", "WAKES", "WHY"];
    let widths = [
        Constraint::Max(24),
        Constraint::Max(20),
        Constraint::Length(17),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(6),
        Constraint::Fill(1),
    ];
    let table = Table::new(model.glances.iter().map(row), widths)
        .header(Row::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::new().borders(Borders::TOP));
    frame.render_stateful_widget(table, area, &mut model.table);
}

fn row(glance: &Glance) -> Row<'static> {
    let color = match state(glance).as_str() {
        "hibernated" => Color::Blue,
        "running" | "hibernate-running" => Color::Green,
        "silent" => Color::Red,
        _ => Color::Reset,
    };
    let of = |figure: fn(&Stats) -> String| glance.stats.as_ref().map_or_else(String::new, figure);
    Row::new([
        Cell::new(glance.state.id.clone()),
        Cell::new(printable(&glance.pod().unwrap_or_default())),
        Cell::new(state(glance)).style(Style::new().fg(color)),
        Cell::new(of(|stats| time(stats.unchanged_ms))),
        Cell::new(of(|stats| size(stats.memory.vmm_pss_bytes))),
        Cell::new(of(|stats| size(stats.memory.swapped_bytes))),
        Cell::new(of(|stats| stats.wakes.to_string())),
        Cell::new(printable(&why(glance))),
    ])
}

fn draw_details(frame: &mut Frame, chosen: Option<&Glance>, area: Rect) {
    let name = chosen.map_or_else(String::new, |glance| format!(" {} ", glance.state.id));
    let block = Block::new().borders(Borders::TOP).title(name);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let Some(glance) = chosen else { return };
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(inner);
    frame.render_widget(Paragraph::new(facts(glance)).wrap(Wrap { trim: true }), left);
    if let Some(stats) = &glance.stats {
        frame.render_widget(Paragraph::new(histogram(stats)), right);
    }
}

fn facts(glance: &Glance) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(printable(&why(glance)))];
    if let Some(error) = &glance.state.hibernate_error {
        lines.push(Line::from(format!("could not sleep: {}", printable(error))));
    }
    let Some(stats) = &glance.stats else { return lines };
    let memory = &stats.memory;
    let (programs, heap, vmm) = (memory.user_resident_bytes, memory.kernel_heap_bytes, memory.vmm_rss_bytes);
    let (swap, reap, packed) = (memory.swap_file_bytes, memory.reap_file_bytes, memory.packed_file_bytes);
    lines.extend(
        [
            format!("memory   programs {}, kernel {}, VMM {}", size(programs), size(heap), size(vmm)),
            format!("disk     swap {}, REAP {}, packed {}", size(swap), size(reap), size(packed)),
            format!(
                "sleeps   {} ({} failed), {} in all",
                stats.hibernations,
                stats.failed_hibernations,
                time(stats.asleep_ms)
            ),
            format!("faults   {}, {} pages", stats.swap_in_faults, stats.swap_in_pages),
        ]
        .map(Line::from),
    );
    if let Some(usage) = &glance.usage {
        let limit = usage.limit_bytes.map_or_else(String::new, |limit| format!(" of {}", size(limit)));
        lines.push(Line::from(format!(
            "charged  {}{limit}, {} tasks",
            size(usage.memory_bytes),
            usage.tasks
        )));
    }
    lines
}

/// A bar for each class of wake times; of many, the ones with most wakes stay in sight.
fn histogram(stats: &Stats) -> Vec<Line<'static>> {
    let most = stats.wake_times.iter().map(|class| class.wakes).max().unwrap_or(0).max(1);
    let noun = if stats.wakes == 1 { "wake" } else { "wakes" };
    let mut lines = vec![Line::from(format!("{} {noun}, by how long they took", stats.wakes))];
    lines.extend(stats.wake_times.iter().take(usize::from(DETAILS) - 2).map(|class| {
        let len = usize::try_from(class.wakes.saturating_mul(BAR).div_ceil(most).min(BAR)).unwrap_or(0);
        Line::from(vec![
            Span::from(format!("below {:>9} ", millis(class.below_us))),
            Span::styled("█".repeat(len), Style::new().fg(Color::Blue)),
            Span::from(format!(" {}", class.wakes)),
        ])
    }));
    lines
}

fn millis(us: u64) -> String {
    if us < 1000 { format!("{us} µs") } else { format!("{}.{} ms", us / 1000, us / 100 % 10) }
}

/// A text of others as far as it can be seen: without what a terminal would obey, and signs that hide in others.
fn printable(text: &str) -> String {
    let signs = text.chars().take(LONGEST);
    signs.map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::tests::glance;
    use super::*;

    fn screen(model: &mut Model, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(width));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }

    #[test]
    fn sandboxes_and_the_chosen_ones_wakes_are_seen() {
        let mut model = Model::default();
        assert!(screen(&mut model, (120, 30)).contains("looking"));
        model.looked(Ok(Vec::new()));
        assert!(screen(&mut model, (120, 30)).contains("no sandbox runs"));
        model.looked(Ok(vec![glance("sleeper", true, 3), glance("worker", false, 0)]));
        model.message = "a\u{1b}[2Jb".into();
        let seen = screen(&mut model, (120, 30));
        for words in [
            "2 sandboxes, 1 asleep",
            "sleeper                  shop/cart            hibernated        1m05s   5.0M     40.0M    3",
            "below    8.1 ms ██████████████████████████████ 3",
            "a?[2Jb",
        ] {
            assert!(seen.contains(words), "no {words:?} in\n{seen}");
        }
    }

    #[test]
    fn no_size_of_a_terminal_is_too_small() {
        let mut model = Model::default();
        model.looked(Ok((0..50).map(|number| glance(&format!("s{number}"), true, 3)).collect()));
        let stats = model.glances[0].stats.as_mut().unwrap();
        stats.memory.vmm_pss_bytes = u64::MAX;
        stats.wake_times.iter_mut().for_each(|class| class.wakes = u64::MAX);
        (stats.unchanged_ms, stats.asleep_ms, stats.swap_in_pages) = (u64::MAX, u64::MAX, u64::MAX);
        for size in [(1, 1), (10, 3), (20, 12), (200, 2), (300, 60)] {
            screen(&mut model, size);
        }
    }
}
