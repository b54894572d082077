//! Answers Prometheus' scrapes over HTTP/1.1 (RFC 9112): one page, a connection a scrape.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, say};

/// Most connections at a time. For a further one the oldest that has not asked yet is closed.
const CONNECTIONS_MAX: usize = 64;
/// Most bytes of a request's head, and how long it, or the answer, may take.
const HEAD_MAX: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one that is closed before it was read to its end may take to notice.
const FAREWELL: Duration = Duration::from_millis(200);
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const WORDS: &str = "text/plain; charset=utf-8";

type Made = Result<String, String>;

/// Serves until the process ends; comes back only with what is wrong with the address.
pub fn serve(address: &str, make: &(impl Fn() -> Made + Sync)) -> Result<(), Failure> {
    let failed = |error| format!("cannot listen at {address}: {error}; pass --listen HOST:PORT");
    let listener = TcpListener::bind(address).map_err(failed)?;
    say(&format!("metrics at http://{}/metrics\n", listener.local_addr().map_err(failed)?))?;
    let (page, silent, open) = (Page::default(), Silent::default(), AtomicUsize::new(0));
    thread::scope(|scope| {
        loop {
            let Ok((connection, _)) = listener.accept() else {
                // No descriptors are left, most likely.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let connection = Arc::new(connection);
            let is_full = open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX;
            if is_full && !silent.close_oldest() {
                let _ = answer(
                    &connection,
                    "503 Service Unavailable",
                    WORDS,
                    "too many scrapes at once\n",
                    b"GET",
                );
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            silent.add(&connection);
            let (page, silent, open, kept) = (&page, &silent, &open, connection.clone());
            let attend = move || {
                // A scraper that does not read or write as it should gets no answer.
                let _ = attend(&connection, silent, || page.get(make));
                silent.remove(&connection);
                open.fetch_sub(1, Ordering::Relaxed);
            };
            // Where no more threads may be, the connection is closed.
            if thread::Builder::new().spawn_scoped(scope, attend).is_err() {
                silent.remove(&kept);
                open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    })
}

/// The page that was made last. Those who come while one is made share the next.
#[derive(Default)]
struct Page(Mutex<Option<(Instant, Made)>>);

impl Page {
    /// A page of now: its making began after it was asked for.
    fn get(&self, make: impl Fn() -> Made) -> Made {
        let asked = Instant::now();
        let mut last = lock(&self.0);
        if let Some((_, made)) = last.as_ref().filter(|(begun, _)| *begun >= asked) {
            return made.clone();
        }
        let begun = Instant::now();
        let made = make();
        *last = Some((begun, made.clone()));
        made
    }
}

/// Connections that have not asked yet, the oldest first.
#[derive(Default)]
struct Silent(Mutex<VecDeque<Arc<TcpStream>>>);

impl Silent {
    fn add(&self, connection: &Arc<TcpStream>) {
        lock(&self.0).push_back(connection.clone());
    }

    fn remove(&self, connection: &Arc<TcpStream>) {
        lock(&self.0).retain(|other| !Arc::ptr_eq(other, connection));
    }

    /// False: all have asked.
    fn close_oldest(&self) -> bool {
        let Some(oldest) = lock(&self.0).pop_front() else { return false };
        // It may be gone already.
        let _ = oldest.shutdown(Shutdown::Both);
        true
    }
}

/// Nothing that is held here is left half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn attend(connection: &Arc<TcpStream>, silent: &Silent, page: impl FnOnce() -> Made) -> io::Result<()> {
    let head = head(connection)?;
    silent.remove(connection);
    let mut words = head.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, format, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => match page() {
            Ok(page) => ("200 OK", FORMAT, page),
            Err(why) => ("500 Internal Server Error", WORDS, why + "\n"),
        },
        (b"GET" | b"HEAD", _) => ("404 Not Found", WORDS, "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", WORDS, "only GET and HEAD are answered\n".to_owned()),
    };
    answer(connection, status, format, &body, method)?;
    take_rest(connection)
}

/// Takes what was sent beyond the head, for which the host would reset the connection, and the answer be lost.
fn take_rest(mut connection: &TcpStream) -> io::Result<()> {
    let deadline = Instant::now() + FAREWELL;
    connection.set_read_timeout(Some(FAREWELL))?;
    while connection.read(&mut [0; 4096])? > 0 && Instant::now() < deadline {}
    Ok(())
}

/// The request's first line and header fields.
fn head(mut connection: &TcpStream) -> io::Result<Vec<u8>> {
    let (deadline, mut head, mut part) = (Instant::now() + PATIENCE, Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        connection.set_read_timeout(Some(left))?;
        match connection.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => head.extend_from_slice(part.get(..len).unwrap_or_default()),
        }
    }
    Ok(head)
}

/// Answers a request by a method, of which HEAD gets no body, and closes the connection.
fn answer(
    mut connection: &TcpStream,
    status: &str,
    format: &str,
    body: &str,
    method: &[u8],
) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {format}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    let text = if method == b"HEAD" { head } else { head + body };
    let mut rest = text.as_bytes();
    // A reader that takes a byte at a time does not keep the connection for ever.
    while !rest.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.set_write_timeout(Some(left))?;
        match connection.write(rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            len => rest = rest.get(len..).unwrap_or_default(),
        }
    }
    connection.shutdown(Shutdown::Write)
}
