//! `counted PORT`: a server on tokio that answers with a nonce and how often it was asked. `test/snapshots` has it go on from snapshots.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Answers once a further tick of the timer has come.
async fn answer(mut client: TcpStream, text: String, ticks: Arc<AtomicU64>) -> io::Result<()> {
    let mut request = [0; 1024];
    let _ = client.read(&mut request).await?;
    let before = ticks.load(Ordering::Relaxed);
    while ticks.load(Ordering::Relaxed) == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
    client.write_all((head + &text).as_bytes()).await?;
    client.shutdown().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let port = std::env::args().nth(1).and_then(|word| word.parse::<u16>().ok());
    let port = port.ok_or_else(|| io::Error::other("usage: counted PORT"))?;
    let nonce = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let ticks = Arc::new(AtomicU64::new(0));
    let timer = Arc::clone(&ticks);
    tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(10));
        loop {
            every.tick().await;
            timer.fetch_add(1, Ordering::Relaxed);
        }
    });
    for asked in 1_u64.. {
        let (client, _) = listener.accept().await?;
        tokio::spawn(answer(client, format!("{} {asked}\n", nonce.trim()), Arc::clone(&ticks)));
    }
    Ok(())
}
