//! `faas CONFIG`: the gateway.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use faas::backend::Backend;
use faas::config::{BackendKind, Config};
use faas::gateway::Gateway;
use faas::oci::Oci;
use faas::proxy;
use faas::runtimes::{Containers, Dormouse, Runc, RuncFreeze, check_swap};

/// A gateway whose functions sleep under a memory budget.
#[derive(Parser)]
struct Arguments {
    /// The configuration, a file in TOML (docs/faas.md).
    config: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("faas: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &Path) -> Result<(), Box<dyn Error>> {
    let config = Config::read(path)?;
    // So that it learns how containers end, and they leave no zombies.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let oci = Oci::new(&config)?;
        match config.backend {
            BackendKind::Dormouse => serve(Containers(oci, Dormouse), config).await,
            BackendKind::Runc => serve(Containers(oci, Runc), config).await,
            BackendKind::RuncFreeze => {
                check_swap(Path::new("/proc/swaps"))?;
                serve(Containers(oci, RuncFreeze), config).await
            }
        }
    })
}

/// Serves until it is told to end, and then stops all functions.
async fn serve<B: Backend>(backend: B, config: Config) -> Result<(), Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", config.listen))?;
    println!("listening on {}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let gateway = Gateway::new(backend, config);
    tokio::select! {
        () = proxy::serve(Arc::clone(&gateway), listener) => {}
        () = Arc::clone(&gateway).tick() => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    gateway.close().await;
    Ok(())
}
