//! Tests of the pool's public interface. Tests that need a process of their own are beside this
//! file.

mod common;

mod it {
    mod bundles;
    mod config;
    mod feed;
    mod heads;
    mod private;
    mod retention;
    mod shares;
    mod sidecars;
    mod sinks;
    mod transactions;
    mod upkeep;
    mod wire;
}
