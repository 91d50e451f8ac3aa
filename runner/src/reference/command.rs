//! The engine as a process of its own.
//!
//! When the weights are loaded and the socket is open, exactly one line goes to standard
//! output: `{"listening":"127.0.0.1:PORT","pid":PID}`. Whoever started the process reads it
//! and needs neither a fixed port nor a guess at readiness.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::engine::Engine;
use super::error::EngineError;
use super::server::{ServeOptions, serve};

/// Serve a checkpoint with the reference engine.
#[derive(Debug, Clone, clap::Args)]
pub struct EngineArgs {
    /// Checkpoint folder in the Hugging Face layout.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Name clients ask for.
    #[arg(long, default_value = "runseal-reference", value_name = "NAME")]
    pub served_model_name: String,
    /// Requests that run at once.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub max_running: usize,
    /// Pause before each token is sent.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub token_delay_ms: u64,
    /// Pause before each prompt is processed.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub prefill_delay_ms: u64,
    /// End when standard input reaches its end, so that a killed parent leaves no orphan.
    #[arg(long)]
    pub die_with_parent: bool,
}

/// Loads, announces and serves until SIGTERM, SIGINT or (if asked) the end of standard input.
pub fn run_blocking(args: EngineArgs) -> Result<(), EngineError> {
    let engine = Arc::new(Engine::load(&args.model)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| EngineError::Serve {
            action: "cannot start the async runtime".into(),
            source,
            hint: "the system refuses new threads, check its limits",
        })?;
    let result = runtime.block_on(listen(engine, args));
    // Jobs whose clients are gone end within one token; they need no waiting for.
    runtime.shutdown_background();
    result
}

async fn listen(engine: Arc<Engine>, args: EngineArgs) -> Result<(), EngineError> {
    // Handlers first: a signal after the announcement must find them installed.
    let mut terminate = handler(SignalKind::terminate())?;
    let mut interrupt = handler(SignalKind::interrupt())?;
    let orphaned = args.die_with_parent.then(stdin_closed);

    let address = (args.host.as_str(), args.port);
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| EngineError::Serve {
            action: format!("cannot listen on {}:{}", args.host, args.port),
            source,
            hint: "use --port 0 for any free port",
        })?;
    announce(&listener).map_err(|source| EngineError::Serve {
        action: "cannot announce the address on standard output".into(),
        source,
        hint: "keep standard output open until the first line was read",
    })?;

    let shutdown = async move {
        let orphaned = async {
            match orphaned {
                // An error means the watching thread is gone, which it is only at the end.
                Some(closed) => drop(closed.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = orphaned => {}
        }
    };
    let options = ServeOptions {
        served_model_name: args.served_model_name,
        max_running: args.max_running,
        token_delay: Duration::from_millis(args.token_delay_ms),
        prefill_delay: Duration::from_millis(args.prefill_delay_ms),
        ..ServeOptions::default()
    };
    serve(engine, listener, options, shutdown).await
}

fn announce(listener: &TcpListener) -> io::Result<()> {
    let line = json!({"listening": listener.local_addr()?.to_string(), "pid": std::process::id()});
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

fn handler(kind: SignalKind) -> Result<Signal, EngineError> {
    signal(kind).map_err(|source| EngineError::Serve {
        action: "cannot install a signal handler".into(),
        source,
        hint: "run the engine where SIGTERM and SIGINT may be handled",
    })
}

/// Completes when standard input is at its end. A plain thread: it may block in the read
/// until the process exits, which an async runtime would wait for.
fn stdin_closed() -> oneshot::Receiver<()> {
    let (closed, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _ = closed.send(());
    });
    receiver
}
