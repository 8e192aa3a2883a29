//! `mempool-ingest check`: whether a configuration is valid, and what its sources say of themselves.

use std::time::{Duration, SystemTime};

use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, PoolConfig,
    txpool_fetcher::{Announcements, AuditMode, Backfill, Endpoint, SourceState, StartPolicy},
};

use crate::{
    Args, Failure, left,
    options::Options,
    say::{say, say_error},
};

/// How long one source may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Prints a line for each source. An error if transactions cannot be ingested from all of them.
pub(crate) async fn run(args: &Args) -> Result<(), Failure> {
    let options = args.options()?;
    options.validate()?;
    let (mut chains, mut failed) = (Vec::new(), 0);
    for source in &options.fetcher.sources {
        match check(source, &options).await {
            Ok((chain, text)) => {
                say!("{source}: {text}");
                chains.push(chain);
            }
            Err(error) => {
                say_error(&*error);
                failed += 1;
            }
        }
    }
    match chains.iter().find(|chain| **chain != chains[0]) {
        Some(other) => {
            Err(format!("a source is on chain {}, another on chain {other}", chains[0]).into())
        }
        None if failed > 0 => Err(format!("{failed} of the sources cannot be used").into()),
        None => Ok(()),
    }
}

/// Its chain, and what is printed of it.
async fn check(source: &Endpoint, options: &Options) -> Result<(u64, String), Failure> {
    let config = FetcherConfig {
        sources: vec![source.clone()],
        start: StartPolicy::RequireNode,
        backfill: Backfill::Off,
        audit_interval: None,
        ..options.fetcher.clone()
    };
    let by = std::time::Instant::now() + LIMIT;
    let ingest = Ingest::start(IngestConfig::new(config, PoolConfig::default())).await?;
    let fetcher = ingest.fetcher();
    while fetcher.status()[0].state == SourceState::Connecting && !left(by).is_zero() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let audit = tokio::time::timeout(left(by), fetcher.audit(0, AuditMode::CompareOnly)).await;
    let (status, head) = (fetcher.status().swap_remove(0), ingest.head());
    ingest.shutdown(Duration::from_secs(2)).await;
    let node = status.node.ok_or_else(|| format!("{source}: its node says nothing of itself"))?;
    let head = head.map_or("no head yet".to_owned(), |head| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(head.timestamp);
        format!("head {}, {} s old", head.number, time.elapsed().unwrap_or_default().as_secs())
    });
    let announces = match status.announcements {
        Announcements::Hashes => "hashes",
        _ => "whole transactions",
    };
    let lists = match audit {
        Ok(Ok(report)) => format!("lists its pool ({} pending)", report.listed),
        Ok(Err(error)) => format!("does not list its pool: {error}"),
        Err(_) => format!("does not list its pool within {LIMIT:?}"),
    };
    let named = format!("{}, chain {}", node.client, node.chain_id);
    if status.state == SourceState::Syncing {
        return Err(format!("{source}: {named}: it is syncing, {head}").into());
    }
    Ok((node.chain_id, format!("{named}, {head}; announces {announces}; {lists}")))
}
