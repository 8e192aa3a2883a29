//! Measures how fast one publisher fills a stream of one replica.

use std::{io, time::Instant};

use testkit::{
    figures::{Goal, Spread},
    member::{Config, Progress},
};

use crate::{
    Size, machine,
    servers::{reset_streams, start, stored},
    start_member,
};

pub(crate) fn run(size: &Size) -> io::Result<()> {
    let count = size.burst;
    println!("\n== One publisher, one server, one replica: {count} transactions at once ==");
    let (_folder, server) = start()?;
    let servers = vec![server.url()];
    let mut rates = Vec::new();
    let mut bytes_each = 0;
    for _ in 0..size.rounds {
        reset_streams(&servers)?;
        let mut publisher = start_member(Config { signs: count, ..machine(&servers) })?;
        publisher.wait("live", |progress| progress.is_live)?;
        let begin = Instant::now();
        publisher.insert(None)?;
        let are_all_stored = |progress: &Progress| progress.stored >= count as u64;
        publisher.wait("the last acknowledgement", are_all_stored)?;
        rates.push(count as f64 / begin.elapsed().as_secs_f64());
        publisher.finish()?;
        let (messages, bytes) = stored(&servers)?;
        assert_eq!(messages, count as u64, "nothing is lost, nothing is stored twice");
        bytes_each = bytes / messages;
    }
    println!("{bytes_each} bytes on the disk for each");
    println!("{}", Goal::at_least("stored", Spread::of(rates), 20_000.0, "/s"));
    Ok(())
}
