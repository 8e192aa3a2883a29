//! How an execution node's pending transactions get into a block builder: connections, fetch slots, gaps
