//! `dormouse top`: all sandboxes in a terminal, and keys that act on them. Looking wakes nobody.

mod model;
mod view;

use std::io::IsTerminal;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use runtime::overview::{Glance, overview};
use runtime::state::{Id, Root};
use runtime::units::parse_time;
use runtime::{container, orders};
use vmm::signals;

use crate::failure::Failure;
use model::{Model, Step};

#[derive(Debug, Args)]
pub struct TopArgs {
    /// How far apart it looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    interval: Duration,
}

/// An event for which the screen is drawn anew.
enum News {
    Key(KeyEvent),
    Resized,
    Looked(Result<Vec<Glance>, String>),
    /// How an order went.
    Done(String),
}

pub fn run(root: &Root, args: &TopArgs) -> Result<u8, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(
            "dormouse top needs a terminal; dormouse list, stats and metrics write to anything".into()
        );
    }
    // Whoever looks waits while a shell has the terminal.
    let (news, mut told) = sync_channel(1);
    look_again_and_again(root.clone(), args.interval.max(Duration::from_millis(100)), news.clone());
    let mut terminal = ratatui::try_init().map_err(|error| format!("cannot use the terminal: {error}"))?;
    let result = attend(root, &mut terminal, &news, &mut told);
    ratatui::restore();
    result
}

fn attend(
    root: &Root,
    terminal: &mut DefaultTerminal,
    news: &SyncSender<News>,
    told: &mut Receiver<News>,
) -> Result<u8, Failure> {
    let mut model = Model::default();
    loop {
        terminal.draw(|frame| view::draw(frame, &mut model))?;
        match next(told)? {
            News::Resized => {}
            News::Looked(result) => model.looked(result),
            News::Done(words) => model.message = words,
            News::Key(key) => match model.key(key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
                Step::Stay => {}
                Step::Quit => return Ok(0),
                Step::Order(order, id) => carry_out(root.clone(), order, id, news.clone()),
                Step::Exec(id) => {
                    ratatui::restore();
                    model.message = shell(root, &id);
                    *terminal = ratatui::try_init()?;
                }
            },
        }
    }
}

/// The next key, or whatever else comes first. Keys are read here and nowhere else, so that a shell has them all.
fn next(told: &Receiver<News>) -> Result<News, Failure> {
    loop {
        if event::poll(Duration::from_millis(20))? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release && key.code != KeyCode::Null => {
                    return Ok(News::Key(key));
                }
                Event::Resize(..) => return Ok(News::Resized),
                _ => {}
            }
        }
        match told.recv_timeout(Duration::from_millis(30)) {
            Ok(news) => return Ok(news),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("nobody looks any more".into()),
        }
    }
}

/// Beside the keys: a VMM that does not answer holds nobody up.
fn look_again_and_again(root: Root, interval: Duration, news: SyncSender<News>) {
    thread::spawn(move || {
        while news.send(News::Looked(overview(&root).map_err(|error| error.to_string()))).is_ok() {
            thread::sleep(interval);
        }
    });
}

/// Beside the keys as well: memory takes its time to come and go.
fn carry_out(root: Root, order: model::Order, id: String, news: SyncSender<News>) {
    thread::spawn(move || {
        let words = match obey(&root, order, &id) {
            Ok(words) => words,
            Err(error) => error.to_string(),
        };
        let _ = news.send(News::Done(words));
    });
}

fn obey(root: &Root, order: model::Order, id: &str) -> Result<String, Failure> {
    let name = Id::new(id)?;
    Ok(match order {
        model::Order::Hibernate => {
            let done = orders::hibernate(root, &name)?;
            format!("{id}: hibernated in {} ms, {} pages stored", done.total_us / 1000, done.pages)
        }
        model::Order::Wake => {
            let done = orders::wake(root, &name, None)?;
            format!("{id}: woken in {} ms", done.total_us / 1000)
        }
        model::Order::Kill => {
            let signal = signals::parse("KILL").ok_or("there is no signal KILL here")?;
            container::kill(root, &name, signal, false)?;
            format!("{id}: killed")
        }
    })
}

/// A shell in a sandbox, on this terminal; result: what is to be said of it.
fn shell(root: &Root, id: &str) -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| "dormouse".into());
    let status =
        Command::new(program).arg("--root").arg(root.path()).args(["exec", "--tty", "--", id, "sh"]).status();
    match status {
        Ok(status) if status.success() => format!("{id}: the shell has ended"),
        Ok(status) => format!("{id}: the shell has ended, {status}"),
        Err(error) => format!("{id}: cannot start dormouse exec: {error}"),
    }
}
