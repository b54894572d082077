//! Answers Prometheus' scrapes over HTTP/1.1 (RFC 9112): one page, a connection a scrape.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, say};

/// Most connections at a time; further ones are told so.
const CONNECTIONS_MAX: usize = 64;
/// Most bytes of a request's head, and how long it, or the answer, may take.
const HEAD_MAX: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const WORDS: &str = "text/plain; charset=utf-8";

/// Serves until the process ends; comes back only with what is wrong with the address.
pub fn serve(address: &str, page: &(impl Fn() -> Result<String, String> + Sync)) -> Result<(), Failure> {
    let failed = |error| format!("cannot listen at {address}: {error}; pass --listen HOST:PORT");
    let listener = TcpListener::bind(address).map_err(failed)?;
    say(&format!("metrics at http://{}/metrics\n", listener.local_addr().map_err(failed)?))?;
    let (open, one_at_a_time) = (AtomicUsize::new(0), Mutex::new(()));
    let page = || {
        let _turn = one_at_a_time.lock();
        page()
    };
    thread::scope(|scope| {
        loop {
            let Ok((connection, _)) = listener.accept() else {
                // No descriptors are left, most likely.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                let _ =
                    answer(&connection, "503 Service Unavailable", WORDS, "too many scrapes at once\n", true);
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            scope.spawn(|| {
                // A scraper that does not read or write as it should gets no answer.
                let _ = attend(connection, &page);
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    })
}

fn attend(connection: TcpStream, page: &impl Fn() -> Result<String, String>) -> io::Result<()> {
    let head = head(&connection)?;
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
    answer(&connection, status, format, &body, method != b"HEAD")
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

fn answer(
    mut connection: &TcpStream,
    status: &str,
    format: &str,
    body: &str,
    with_body: bool,
) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {format}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    let text = if with_body { head + body } else { head };
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
    Ok(())
}
