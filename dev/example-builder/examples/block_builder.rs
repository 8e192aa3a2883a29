//! Fills a block from the mempool at every head of a node, and shows the transactions of each
//! block. It submits none.
//!
//! Without an endpoint it starts a mock node with contracts and funded senders in a child process.
//! With `--ipc PATH` it builds on a real node. With `--json` the last line on stdout is one JSON
//! object: the fields are those of `Summary` in `dev/example-builder/src/report.rs`. How it works
//! is in `dev/example-builder/src/lib.rs`.

// The same allocator as `mempool-ingest`, for the same reason.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    example_builder::main()
}
