//! Tests of everything that needs no EVM: the list, its file, its server, and the checks over plain
//! addresses.

mod finish;
mod parse;
mod reload;
#[cfg(feature = "url")]
mod url;

use std::time::{Duration, SystemTime};

use alloy_primitives::{Address, address};
use blocklist::BlocklistConfig;
use testkit::configured;

const LISTED_IN_A: Address = address!("0x00000000000000000000000000000000000000aa");
const LISTED_IN_B: Address = address!("0x00000000000000000000000000000000000000bb");
const UNLISTED: Address = address!("0x00000000000000000000000000000000000000cc");
const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn hourly() -> BlocklistConfig {
    configured(BlocklistConfig::default(), |config| config.max_age = Some(HOUR))
}
