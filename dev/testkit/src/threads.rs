//! A test on a machine where no further thread can be started. It runs in a process of its own,
//! because the limit applies to a process, and as the user `nobody`, because it does not apply to
//! root.

use std::{
    env, fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    process::Command,
    thread,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Environment variable that is set in the process of its own.
const CHILD: &str = "MEMPOOL_INGEST_WITHOUT_THREADS";

const NOBODY: u32 = 65_534;

/// Runs an ignored test of this program in a process of its own.
///
/// # Panics
/// If it does not pass.
pub fn run_in_own_process(test: &str) {
    let folder = env::temp_dir().join(format!("{test}-{}", std::process::id()));
    let (program, temporary) = (folder.join("test"), folder.join("tmp"));
    fs::create_dir_all(&temporary).expect("a folder");
    fs::copy(env::current_exe().expect("this program"), &program).expect("a copy");
    for (path, mode) in [(&folder, 0o755), (&program, 0o755), (&temporary, 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own");
    }
    let mut command = Command::new(&program);
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(CHILD, "")
        .env("TMPDIR", &temporary)
        .current_dir(&temporary);
    if fs::metadata("/proc/self").expect("Linux").uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output();
    fs::remove_dir_all(&folder).expect("our own");
    let output = output.expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// No thread can be started until this is dropped.
#[derive(Debug)]
pub struct NoThreads {
    soft: u64,
    hard: u64,
}

impl NoThreads {
    /// # Panics
    /// Outside of [`run_in_own_process`], whose limits it would change.
    pub fn begin() -> Self {
        assert!(env::var_os(CHILD).is_some(), "it changes the limits of its process");
        let (soft, hard) = getrlimit(Resource::RLIMIT_NPROC).expect("the limit");
        setrlimit(Resource::RLIMIT_NPROC, 0, hard).expect("it may be lowered");
        assert!(thread::Builder::new().spawn(|| ()).is_err(), "the limit holds");
        Self { soft, hard }
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        setrlimit(Resource::RLIMIT_NPROC, self.soft, self.hard).expect("as before");
    }
}
