//! An execution node's IPC face with a pool, a chain and faults, for tests, benches and the demo
