//! Tests of the fetcher and the pool on real nodes (anvil and geth), and of the sample
//! configuration of NATS servers. `scripts/real-nodes.sh` installs them; if one is missing, a test
//! fails.

mod half_broken;
mod load;
mod nats_rights;
mod nodes;
mod proxy;
