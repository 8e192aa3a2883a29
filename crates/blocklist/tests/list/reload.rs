//! Tests of the list in force: when it is replaced, and when it may no longer be used.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, address};
use blocklist::{
    Blocklist, BlocklistConfig, CLOCK_TOLERANCE, DEFAULT_MAX_AGE, Error, MAX_BYTES, Policy,
    Reloaded, SharedBlocklist,
};
use metrics_util::{
    CompositeKey,
    debugging::{DebugValue, DebuggingRecorder},
};

use tempfile::TempDir;
use testkit::configured;

use super::{HOUR, LISTED_IN_A, LISTED_IN_B, SECOND, UNLISTED, hourly, start};

const A: &[u8] = b"0x00000000000000000000000000000000000000aa\n";
const B: &[u8] = b"0x00000000000000000000000000000000000000bb\n";

fn list_a() -> SharedBlocklist {
    SharedBlocklist::new(A, start(), hourly(), start()).expect("a good list")
}

#[test]
fn a_list_is_used_up_to_its_maximum_age_and_not_longer() {
    let shared = list_a();
    assert!(shared.begin_block(UNLISTED, None, start() + HOUR).is_ok());
    for refused in [
        shared.current(start() + HOUR + SECOND).map(drop),
        shared.begin_block(UNLISTED, None, start() + HOUR + SECOND).map(drop),
    ] {
        let Err(Error::Stale { age, max_age }) = refused else { panic!("{refused:?}") };
        assert_eq!((age, max_age), (HOUR + SECOND, HOUR));
    }
}

#[test]
fn a_failed_reload_keeps_the_list_and_its_date() {
    let shared = list_a();
    let (later, too_old) = (start() + HOUR / 2, start() - HOUR);
    let bad: [(&[u8], SystemTime); 7] = [
        (b"", later),
        (b"# cut off", later),
        (b"<html>", later),
        (b"[\"0x00\"]", later),
        (b"\xff\xfe", later),
        (b"0x5aaeb6053F3E94C9b9A09f33669435E7Ef1BeAed", later),
        (B, too_old),
    ];
    for (text, as_of) in bad {
        assert!(shared.reload(text, as_of, later).is_err(), "{text:?}");
        assert!(shared.current(later).expect("still fresh").contains(&LISTED_IN_A));
        assert_eq!(shared.as_of(), start());
        // The attempt did not make it younger.
        assert!(matches!(shared.current(start() + HOUR + SECOND), Err(Error::Stale { .. })));
    }
}

#[test]
fn a_stale_list_is_back_in_use_after_a_good_reload() {
    let shared = list_a();
    let late = start() + 2 * HOUR;
    assert!(shared.current(late).is_err());
    let previous_hash = shared.current(start()).expect("fresh").hash();
    let reloaded = shared.reload(B, late, late).expect("a good list");
    let current = shared.current(late).expect("fresh again");
    assert_eq!(reloaded, Reloaded::Changed { previous_hash, hash: current.hash() });
    assert!(!current.contains(&LISTED_IN_A));
    let again = shared.reload(&[b"# same\n", B].concat(), late + HOUR, late + HOUR).expect("good");
    assert_eq!(again, Reloaded::Unchanged { hash: current.hash() });
    assert!(shared.current(late + 2 * HOUR).is_ok(), "an unchanged list is as new as its text");
}

#[test]
fn a_reload_that_is_older_than_the_list_in_force_is_refused() {
    let shared = list_a();
    let later = start() + HOUR / 2;
    shared.reload(B, later, later).expect("a newer list");
    // Somebody restored the file of the day before, which lacks later additions.
    let older = shared.reload(A, later - SECOND, later);
    assert!(matches!(older, Err(Error::Older { behind: SECOND })), "{older:?}");
    assert!(!shared.current(later).expect("fresh").contains(&LISTED_IN_A));
    assert_eq!(shared.as_of(), later);
    // Within the same second, the resolution of file times on some systems, the later reload wins.
    shared.reload(A, later, later).expect("as new as the one in force");
    assert!(shared.current(later).expect("fresh").contains(&LISTED_IN_A));
}

#[test]
fn the_latest_date_wins_among_concurrent_reloads() {
    let shared = list_a();
    let now = start() + HOUR / 2;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: it only ends the loop and orders no other memory.
            while !done.load(Ordering::Relaxed) {
                let list = shared.current(now).expect("fresh");
                assert!([1, 500].contains(&list.len()), "one list or another");
                let again = Blocklist::from_addresses(list.iter().copied(), &hourly());
                assert_eq!(again.expect("addresses").hash(), list.hash(), "nothing between");
            }
        });
        let write = |thread: u64| {
            let shared = &shared;
            scope.spawn(move || {
                for step in 0..50_u64 {
                    let n = step * 4 + thread;
                    let addresses = n + 1..=n + 500;
                    let text: String = addresses.map(|n| format!("0x{n:040x}\n")).collect();
                    match shared.reload(text.as_bytes(), start() + n as u32 * SECOND, now) {
                        Ok(_) | Err(Error::Older { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        };
        let writers = [0, 1, 2, 3].map(write);
        let all_ended = writers.map(|writer| writer.join().is_ok());
        done.store(true, Ordering::Relaxed);
        assert_eq!(all_ended, [true; 4]);
    });
    assert_eq!(shared.as_of(), start() + 199 * SECOND);
    let latest = shared.current(now).expect("fresh");
    assert_eq!([200, 199].map(|n| latest.contains(&Address::with_last_byte(n))), [true, false]);
}

#[test]
fn a_list_that_is_stale_or_from_the_future_does_not_start() {
    let new = |as_of| SharedBlocklist::new(A, as_of, hourly(), start()).map(drop);
    assert!(matches!(new(start() - HOUR - SECOND), Err(Error::Stale { .. })));
    assert!(new(start() + CLOCK_TOLERANCE).is_ok());
    let ahead = CLOCK_TOLERANCE + SECOND;
    let refused = new(start() + ahead);
    assert!(matches!(refused, Err(Error::FromTheFuture { ahead: by, .. }) if by == ahead));
    // The clock jumped back under a running builder.
    let jumped = list_a().current(start() - CLOCK_TOLERANCE - SECOND);
    assert!(matches!(jumped, Err(Error::FromTheFuture { .. })));
    // The default maximum age is a day; a list that is part of a release has none.
    let default = BlocklistConfig::default();
    let day_later = start() + DEFAULT_MAX_AGE + SECOND;
    let aged = |config| SharedBlocklist::new(A, start(), config, day_later);
    assert!(matches!(aged(default), Err(Error::Stale { .. })));
    let forever = configured(default, |config| config.max_age = None);
    assert!(aged(forever).is_ok());
    // A date in the future is refused all the same: no list with a true date could replace it.
    let shared = SharedBlocklist::new(A, start(), forever, start()).expect("a good list");
    let refused = shared.reload(A, start() + HOUR, start());
    assert!(matches!(refused, Err(Error::FromTheFuture { .. })), "{refused:?}");
    assert!(shared.reload(B, start() + SECOND, start() + SECOND).is_ok());
    // No list is younger than a maximum age of zero.
    let never = configured(default, |config| config.max_age = Some(Duration::ZERO));
    assert!(matches!(aged(never), Err(Error::Config { field: "max_age", .. })));
}

#[test]
fn a_listed_fee_recipient_stops_the_block_also_after_a_reload() {
    let shared = list_a();
    let refused = shared.begin_block(LISTED_IN_A, None, start()).map(drop);
    assert!(matches!(refused, Err(Error::FeeRecipientListed { address: LISTED_IN_A })));
    shared.reload(B, start(), start()).expect("a good list");
    let guard = shared.begin_block(LISTED_IN_A, None, start()).expect("no longer listed");
    // A block is judged by one list, whatever is loaded meanwhile.
    shared.reload(A, start(), start()).expect("a good list");
    assert!(!guard.list().contains(&LISTED_IN_A));
    assert_eq!((guard.fee_recipient(), guard.policy()), (LISTED_IN_A, Policy::PostState));
    assert!(shared.begin_block(LISTED_IN_A, None, start()).is_err());
}

/// Writes a file with this text and the date of the start, in a directory that is deleted when
/// dropped.
fn file(text: &[u8]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("blocklist");
    write(&path, text, start());
    (directory, path)
}

fn write(path: &Path, text: &[u8], modified: SystemTime) {
    fs::write(path, text).expect("writable");
    let file = fs::File::options().append(true).open(path).expect("writable");
    file.set_modified(modified).expect("settable");
}

#[test]
fn a_file_is_as_old_as_its_last_change() {
    let (_directory, path) = file(A);
    let shared = SharedBlocklist::open(&path, hourly(), start()).expect("a good file");
    assert_eq!(shared.as_of(), start());
    let later = start() + HOUR;
    assert!(matches!(shared.reload_file(&path, later), Ok(Reloaded::Unchanged { .. })));
    assert!(matches!(shared.reload_file(&path, later + SECOND), Err(Error::Stale { .. })));
    assert!(matches!(shared.current(later + SECOND), Err(Error::Stale { .. })));
    write(&path, B, later);
    assert!(matches!(shared.reload_file(&path, later + SECOND), Ok(Reloaded::Changed { .. })));
    assert!(shared.current(later + HOUR).is_ok());
}

#[test]
fn a_file_that_vanishes_or_turns_to_garbage_leaves_the_list_until_its_maximum_age() {
    let json = b"[\"0x00000000000000000000000000000000000000aa\"]";
    let (_directory, path) = file(json);
    let shared = SharedBlocklist::open(&path, hourly(), start()).expect("a good file");
    let still_in_force = || {
        assert!(shared.current(start() + HOUR).expect("fresh").contains(&LISTED_IN_A));
        assert!(shared.current(start() + HOUR + SECOND).is_err());
    };
    fs::remove_file(&path).expect("removable");
    assert!(matches!(shared.reload_file(&path, start()), Err(Error::Read { .. })));
    still_in_force();
    write(&path, &json[..20], start());
    assert!(matches!(shared.reload_file(&path, start()), Err(Error::Json { .. })));
    still_in_force();
    fs::remove_file(&path).expect("removable");
    fs::create_dir(&path).expect("creatable");
    assert!(matches!(shared.reload_file(&path, start()), Err(Error::Read { .. })));
    still_in_force();
}

#[test]
fn a_file_that_is_missing_or_too_long_does_not_start() {
    let (_directory, path) = file(A);
    let absent = path.with_extension("absent");
    let missing = SharedBlocklist::open(&absent, hourly(), start()).map(drop);
    assert!(matches!(missing, Err(Error::Read { path, .. }) if path == absent));
    let padded = |bytes: usize| [A, &vec![b' '; bytes - A.len()]].concat();
    write(&path, &padded(MAX_BYTES), start());
    assert!(SharedBlocklist::open(&path, hourly(), start()).is_ok());
    write(&path, &padded(MAX_BYTES + 10), start());
    let long = SharedBlocklist::open(&path, hourly(), start()).map(drop);
    // Reading stops one byte after the limit.
    let shown = MAX_BYTES + 1;
    assert!(matches!(long, Err(Error::TooLarge { bytes, max_bytes: MAX_BYTES }) if bytes == shown));
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    // Files of /proc report a length of zero, like a file that is being written.
    let path = "/proc/self/status";
    let refused = SharedBlocklist::open(path, hourly(), start()).map(drop);
    let Err(Error::ChangedWhileRead { path: named }) = refused else { panic!("{refused:?}") };
    assert_eq!(named, Path::new(path));
}

#[test]
fn metrics_show_the_list_in_force_and_count_refusals() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let hash = metrics::with_local_recorder(&recorder, || {
        let shared = list_a();
        // The results are tested above; here the counts are.
        let twice = [B, b"0x00000000000000000000000000000000000000cd\n", B].concat();
        let _ = shared.reload(&twice, start(), start());
        let _ = shared.reload(b"", start(), start());
        let _ = shared.reload_file("/nonexistent/blocklist", start());
        let _ = shared.current(start() + 2 * HOUR);
        let _ = shared.current(start() - HOUR);
        let _ = shared.begin_block(LISTED_IN_B, None, start());
        let _ = shared.begin_block(UNLISTED, Some(LISTED_IN_B), start());
        let list = shared.current(start()).expect("fresh");
        let guard = shared.begin_block(UNLISTED, None, start()).expect("not listed");
        let recipient = Some(address!("0x00000000000000000000000000000000000000cd"));
        assert!(guard.precheck_addresses(UNLISTED, recipient, [], []).is_err());
        list.hash()
    });
    let value = |(key, _, _, value): (CompositeKey, _, _, DebugValue)| {
        let labels = key.key().labels().map(|label| format!(" {}", label.value()));
        let value = match value {
            DebugValue::Counter(n) => n as f64,
            DebugValue::Gauge(n) => n.into_inner(),
            DebugValue::Histogram(_) => panic!("there is none"),
        };
        (format!("{}{}", key.key().name(), labels.collect::<String>()), value)
    };
    let values: BTreeMap<_, _> = snapshotter.snapshot().into_vec().into_iter().map(value).collect();
    let prefix = u64::from_str_radix(&format!("{hash:x}")[..12], 16).expect("hexadecimal");
    for (name, value) in [
        ("blocklist_addresses", 2.0),
        ("blocklist_duplicate_entries", 1.0),
        ("blocklist_content_hash_prefix", prefix as f64),
        ("blocklist_as_of_timestamp_seconds", 1.8e9),
        ("blocklist_reloads_total changed", 1.0),
        ("blocklist_reloads_total unchanged", 0.0),
        ("blocklist_reloads_total failed", 2.0),
        ("blocklist_refusals_total stale", 1.0),
        ("blocklist_refusals_total from_the_future", 1.0),
        ("blocklist_refusals_total fee_recipient_listed", 1.0),
        ("blocklist_refusals_total proposer_listed", 1.0),
        ("blocklist_blocked_total recipient", 1.0),
        ("blocklist_blocked_total sender", 0.0),
    ] {
        assert_eq!(values.get(name), Some(&value), "{name} of {values:?}");
    }
}
