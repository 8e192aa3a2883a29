//! A machine on which no further thread can be started. The test runs in a process of its own,
//! because the limit applies to a process.

use std::{
    env, fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    process::Command,
    thread,
    time::Duration,
};

use mock_node::{Fault, Target};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use testkit::ingest::{Node, eventually, ingest, settled};
use txpool_fetcher::{Fetcher, FetcherConfig, SourceState};

/// Environment variable that is set in the process with the limit.
const CHILD: &str = "MEMPOOL_INGEST_WITHOUT_THREADS";

/// The limit does not apply to root, so the test runs as this user.
const NOBODY: u32 = 65_534;

/// tokio starts a thread for blocking work when it needs one, and ends it after ten idle seconds.
/// No block may need a new one.
#[test]
fn transactions_are_pooled_while_no_thread_can_be_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("test");
    fs::copy(env::current_exe().expect("this program"), &program).expect("a copy");
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).expect("a folder");
    for (path, mode) in [(folder.path(), 0o755), (&program, 0o755), (&temporary, 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own");
    }
    let mut command = Command::new(&program);
    command
        .args(["--exact", "without_threads", "--ignored", "--nocapture"])
        .env(CHILD, "")
        .env("TMPDIR", &temporary)
        .current_dir(&temporary);
    if fs::metadata("/proc/self").expect("Linux").uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
#[ignore = "the other test runs it, in a process of its own"]
async fn without_threads() {
    assert!(env::var_os(CHILD).is_some(), "it changes the limits of its process");
    let node = Node::start(300, |config| config);
    let mut config = node.fetcher();
    config.audit_interval = Some(Duration::from_secs(1));
    let (fetcher, pool) = ingest(config).await;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NPROC).expect("the limit");
    setrlimit(Resource::RLIMIT_NPROC, 0, hard).expect("it may be lowered");
    let refused = thread::Builder::new().spawn(|| ());
    assert!(refused.is_err(), "the limit holds");
    let another = FetcherConfig::ipc(node.node.ipc_path());
    let error = Fetcher::start(another, pool.clone()).await.expect_err("it needs threads");
    assert!(format!("{error:?}").contains("the limit of threads is reached"), "{error:?}");

    // Longer than idle threads live, across blocks, audits and a reconnect.
    for (index, txs) in node.txs.chunks(20).enumerate() {
        for tx in txs {
            node.node.submit(tx.raw.clone()).expect("valid");
        }
        settled(&fetcher, "all are in", |counts| counts.pooled >= 20 * (index as u64 + 1)).await;
        if index % 5 == 2 {
            node.node.mine();
            let head = node.node.head().number;
            eventually("the head", || pool.head().is_some_and(|seen| seen.number == head)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let audits = fetcher.status()[0].audits;
    assert!(audits >= 5, "{audits} comparisons");
    node.node.inject(Fault::Close(Target::All));
    eventually("it is connected again", || {
        let status = &fetcher.status()[0];
        status.state == SourceState::Live && status.reconnects > 0
    })
    .await;
    setrlimit(Resource::RLIMIT_NPROC, soft, hard).expect("as before");
    assert_eq!(fetcher.counts().balance(), 0);
    assert!(fetcher.shutdown(Duration::from_secs(5)).await.ended);
}
